"""The hook on its way: packed, compiled, made into a package in the target, and gone again."""

from __future__ import annotations

import dataclasses
import importlib.util
import marshal
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aitop.attach import (
    in_target,
    other_python,
    preflight,
)
from aitop.attach.bundle import hook_sources, pack
from aitop.attach.proc_status import read_status

GOOD = (
    ("__init__", "from .a import VALUE\ndef install(way): return 'installed'\ndef remove(): return 'removed'\n"),
    ("a", "VALUE = 1\n"),
)


@pytest.fixture(autouse=True)
def no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the hook in the same process may have left theirs in."""
    monkeypatch.delitem(sys.modules, "_aitop_hook", raising=False)


def run(action: str, sources: tuple[tuple[str, str], ...], magic: bytes | None = None) -> str:
    *_, start = marshal.loads(pack(action, sources))  # type: ignore[arg-type]
    return in_target.run(start["action"], start["modules"], magic or start["magic"], marshal.loads)


class Untouchable(list):  # type: ignore[type-arg]
    """Finders that another thread may be iterating: a change would hide one of them from it."""

    def insert(self, *_: object) -> None:
        raise AssertionError("sys.meta_path was changed")

    append = remove = pop = insert


def test_modules_come_after_what_they_import() -> None:
    sources = (("a", "from .c import X\nfrom . import b\n"), ("b", "from .c import X\n"), ("c", "X = 1\n"))
    *_, start = marshal.loads(pack("install", (("__init__", "from . import a\n"), *sources)))
    assert [name for name, _, _ in start["modules"]] == [
        "_aitop_hook.c", "_aitop_hook.b", "_aitop_hook.a", "_aitop_hook",
    ]  # fmt: skip


@pytest.mark.parametrize("magic", [None, b"another Python"])
def test_the_package_comes_and_goes(magic: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pack("remove", ())  # what reading our own files imports is not the target's
    before, finders = set(sys.modules), Untouchable(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", finders)
    assert run("install", GOOD, magic) == "installed"
    assert sys.modules["_aitop_hook.a"].VALUE == 1 and sys.meta_path is finders
    assert sys.modules["_aitop_hook"].install.__code__.co_filename == "<aitop hook>/__init__.py"
    assert run("remove", GOOD) == "removed"
    assert set(sys.modules) == before
    assert run("remove", GOOD) == "absent"


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("1 / 0", "error: ZeroDivisionError: division by zero"),
        ("from . import gone", "error: ImportError: cannot import name 'gone' from '_aitop_hook' (unknown location)"),
        ("def install(way): raise SystemExit(3)", "error: SystemExit: 3"),
        ("def install(way): return 'busy'", "busy"),
        ("", "error: AttributeError: module '_aitop_hook' has no attribute 'install'"),
    ],
)
def test_what_goes_wrong_becomes_an_answer_and_leaves_nothing(source: str, answer: str) -> None:
    pack("remove", ())  # what reading our own files imports is not the target's
    before, finders = set(sys.modules), list(sys.meta_path)
    assert run("install", (("__init__", source), ("a", "A = 1"))) == answer
    assert set(sys.modules) == before and sys.meta_path == finders


def test_an_interrupt_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        run("install", (("__init__", "raise KeyboardInterrupt"),))
    assert "_aitop_hook" not in sys.modules


def test_the_bundle_is_made_of_the_hooks_own_files() -> None:
    hook_sources.cache_clear()
    folder = Path(preflight.__file__).parents[1] / "hook"
    assert dict(hook_sources()) == {path.stem: path.read_text() for path in folder.glob("*.py")}


def test_bytecode_comes_from_the_targets_own_interpreter_and_only_from_a_plain_one_of_our_user(tmp_path: Path) -> None:
    program = os.path.realpath(sys.executable)
    made = other_python.bytecode_by(program, (("x.py", "def f(a: int) -> int:\n    'Doc.'\n    return a\n"),))
    assert made is not None
    magic, (code,) = made
    namespace: dict[str, Any] = {}
    assert magic == importlib.util.MAGIC_NUMBER
    exec(marshal.loads(code), namespace)
    assert namespace["f"](3) == 3 and namespace["f"].__doc__ is None and not namespace["f"].__annotations__
    assert other_python.bytecode_by("/bin/true", (("x.py", ""),)) is None
    ours = read_status(os.getpid())
    assert ours is not None
    assert other_python.interpreter_of(ours) == os.readlink("/proc/self/exe")
    assert other_python.interpreter_of(dataclasses.replace(ours, uids=(ours.uids[0] + 1,) * 4)) is None
    assert other_python.interpreter_of(dataclasses.replace(ours, started=ours.started - 1)) is None, "who had the pid"
    with subprocess.Popen(["sleep", "20"]) as process:
        assert other_python.interpreter_of(dataclasses.replace(ours, pid=process.pid)) is None
        process.kill()
