"""The hook on its way: packed, compiled, made into a package in the target, and gone again."""

from __future__ import annotations

import contextlib
import dis
import importlib.util
import inspect
import marshal
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aitop.attach.attempt import turn
from aitop.attach.inspection.process import interpreter_of
from aitop.attach.payload import bundle, bytecode, in_target, request
from aitop.attach.payload.bundle import hook_sources, pack
from aitop.attach.payload.bytecode import compiled
from aitop.attach.refusal import AttachRefused
from aitop.hook.measures import MEASURES
from aitop.sources.process_status import read_status

GOOD = (
    (
        "hook.__init__",
        "from .a import VALUE\ndef install(way, load=None): return 'installed'\ndef remove(): return 'removed'\n",
    ),
    ("hook.a", "from ..protocol import ring\nVALUE = ring.WORD\n"),
    ("protocol.__init__", ""),
    ("protocol.ring", "WORD = 1\n"),
)


@pytest.fixture(autouse=True)
def no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the hook in the same process may have left theirs in."""
    monkeypatch.delitem(sys.modules, "_aitop_hook", raising=False)


def run(action: str, sources: tuple[tuple[str, str], ...], magic: bytes | None = None) -> str:
    return deliver(pack(action, sources), magic)  # type: ignore[arg-type]


def deliver(block: bytes, magic: bytes | None = None) -> str:
    """What a target answers to a block that has come in."""
    *_, start = marshal.loads(block)
    return in_target.run(start | {"magic": magic or start["magic"]}, marshal.loads)


class Untouchable(list):  # type: ignore[type-arg]
    """Finders that another thread may be iterating: a change would hide one of them from it."""

    def insert(self, *_: object) -> None:
        raise AssertionError("sys.meta_path was changed")

    append = remove = pop = insert


def test_modules_come_after_what_they_import() -> None:
    sources = (
        ("hook.a", "from .c import X\nfrom . import b\n"),
        ("hook.b", "from .c import X\nfrom .d import e\n"),
        ("hook.c", "from ..protocol.z import Z\nX = Z\n"),
        ("hook.d.__init__", "from .e import Y\n"),
        ("hook.d.e", "from ..c import X\nfrom ...protocol import z\nY = X\n"),
        ("protocol.__init__", ""),
        ("protocol.z", "Z = 1\n"),
    )
    *_, start = marshal.loads(pack("install", (("hook.__init__", "from . import a\n"), *sources)))
    assert [name.removeprefix("_aitop.") for name, _, _ in start["core"]] == [
        "protocol.z", "hook.c", "protocol.__init__", "hook.d.e", "hook.d.__init__", "hook.b", "hook.a", "hook.__init__",
    ]  # fmt: skip


@pytest.mark.parametrize("magic", [None, b"another Python"])
def test_the_package_comes_and_goes(magic: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pack("remove", ())  # what reading our own files imports is not the target's
    before, finders = set(sys.modules), Untouchable(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", finders)
    assert run("install", GOOD, magic) == "installed"
    assert sys.modules["_aitop.hook.a"].VALUE == 1 and sys.meta_path is finders
    assert sys.modules["_aitop_hook"].install.__code__.co_filename == "<aitop hook>/__init__.py"
    assert run("remove", GOOD) == "removed"
    assert set(sys.modules) == before
    assert run("remove", GOOD) == "absent"


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("1 / 0", "error: ZeroDivisionError: division by zero"),
        ("from . import gone", "error: ImportError: cannot import name 'gone' from '_aitop.hook' (unknown location)"),
        ("def install(way, load=None): return 'busy'", "busy"),
        ("", "error: AttributeError: module '_aitop.hook' has no attribute 'install'"),
    ],
)
def test_an_error_while_coming_in_is_the_answer_and_leaves_nothing_behind(source: str, answer: str) -> None:
    pack("remove", ())  # what reading our own files imports is not the target's
    before, finders = set(sys.modules), list(sys.meta_path)
    assert run("install", (("hook.__init__", source), ("hook.a", "A = 1"))) == answer
    assert set(sys.modules) == before and sys.meta_path == finders


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        ("'error: one\\ntwo'", "error: one two"),
        ("'error: ' + 9000 * 'x'", "error: " + 493 * "x"),
        ("'error: \\udc80'", "error: ?"),
    ],
    ids=["two lines", "long", "not encodable"],
)
def test_every_answer_can_be_read(answer: str, read: str) -> None:
    source = f"def install(way, load=None): return {answer}"
    with closing(request.Request(read_status(os.getpid()), pack("install", (("hook.__init__", source),)))) as sent:
        exec(sent.line.rstrip(b"\0"), {})
        assert sent.answer() == read


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_which_the_program_ends_arrives_again_behind_the_line(number: signal.Signals) -> None:
    inside: list[bool] = []

    def end(*_: object) -> None:
        inside.append("install" in [frame.function for frame in inspect.stack()])
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit

    source = f"def install(way, load=None): import signal; signal.raise_signal({int(number)})"
    before = signal.signal(number, end)
    try:
        with closing(request.Request(read_status(os.getpid()), pack("install", (("hook.__init__", source),)))) as sent:
            with pytest.raises((KeyboardInterrupt, SystemExit)):
                exec(sent.line.rstrip(b"\0"), {})
            assert sent.answer() == "error: interrupted"
    finally:
        signal.signal(number, before)
    assert inside == [True, False]


def test_an_interrupt_goes_through() -> None:
    with pytest.raises(KeyboardInterrupt):
        run("install", (("hook.__init__", "raise KeyboardInterrupt"),))
    assert not {"_aitop", "_aitop_hook"} & set(sys.modules)


LATER = (
    (
        "hook.__init__",
        "def install(way, load=None):\n    global LOAD; LOAD = load; return 'installed'\n"
        "def remove(): return 'removed'\n",
    ),
    ("hook.session", "from .core import A\n"),
    ("hook.core", "A = 1\n"),
    ("hook.measures.__init__", ""),
    ("hook.measures.one", "from ..core import A\nfrom .shared import B\n"),
    ("hook.measures.other", "from .shared import B\n"),
    ("hook.measures.shared", "B = 2\n"),
)


@pytest.mark.parametrize("magic", [None, b"another Python"])
def test_the_core_comes_first_and_loads_the_rest_later(magic: bytes | None) -> None:
    assert run("install", LATER, magic) == "installed"
    hook = sys.modules["_aitop_hook"]
    modules = {name.removeprefix("_aitop.hook") for name in sys.modules if name.startswith("_aitop.hook")}
    assert modules == {"", ".session", ".core"}
    assert hook.LOAD("measures.one").B == 2  # type: ignore[attr-defined]
    shared = sys.modules["_aitop.hook.measures.shared"]
    assert hook.LOAD("measures.other") is sys.modules["_aitop.hook.measures.other"]  # type: ignore[attr-defined]
    assert sys.modules["_aitop.hook.measures.shared"] is shared, "it is loaded once"
    with pytest.raises(KeyError):
        hook.LOAD("measures.gone")  # type: ignore[attr-defined]
    assert run("remove", LATER) == "removed"


def test_what_is_loaded_when_the_hook_has_left_does_not_stay() -> None:
    assert run("install", LATER) == "installed"
    load = sys.modules["_aitop_hook"].LOAD  # type: ignore[attr-defined]
    assert run("remove", LATER) == "removed"
    before = set(sys.modules)
    with contextlib.suppress(ImportError):
        load("measures.one")
    assert set(sys.modules) == before


def test_a_hook_that_is_there_answers() -> None:
    assert run("install", GOOD) == run("install", LATER) == "installed"
    assert not hasattr(sys.modules["_aitop_hook"], "LOAD")
    assert run("remove", GOOD) == "removed"


def test_the_measures_of_the_hook_are_not_in_its_core() -> None:
    *_, start = marshal.loads(pack("install", hook_sources()))
    core = {name for name, _, _ in start["core"]}
    assert {f"_aitop.hook.measures.{row.partition('.')[0]}" for row in MEASURES}.isdisjoint(core)
    rest = {name.removeprefix("measures.").partition(".")[0] for name in start["rest"]}
    assert {row.partition(".")[0] for row in MEASURES} <= rest
    # It loads in 1.6 ms (Python 3.11), and the largest of the measures in 0.8 ms.
    assert sum(len(code) for _, _, code in start["core"]) < 148_000


def test_the_bundle_is_made_of_the_hooks_own_files() -> None:
    hook_sources.cache_clear()
    root = Path(bundle.__file__).parents[2]
    files = [
        path for name in ("hook", "protocol") for path in (root / name).rglob("*.py") if path.parent.name != "site"
    ]
    texts = {".".join(path.relative_to(root).with_suffix("").parts): path.read_text() for path in files}
    assert dict(hook_sources()) == texts
    assert {"hook.session", "hook.measures.collectives", "protocol.ring"} <= set(texts)


def test_bytecode_is_kept_for_the_next_attach_and_only_used_for_the_very_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def compiling(files: tuple[tuple[str, str], ...]) -> tuple[bytes, list[bytes]]:
        made.append(files)
        return compiled(files)

    monkeypatch.setattr(bundle, "compiled", compiling)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    folder = Path(importlib.util.cache_from_source(bundle.__file__)).parent
    first = pack("install", hook_sources())
    assert not folder.exists() and len(made) == 1, "without a folder for bytecode nothing is kept"
    folder.mkdir(parents=True)
    assert pack("install", hook_sources()) == first and len(made) == 2
    (cached,) = folder.iterdir()
    assert pack("install", hook_sources()) == first and len(made) == 2
    whole = cached.read_bytes()
    other = marshal.dumps((importlib.util.MAGIC_NUMBER, (("hook.a", "A = 1"),), [b""]))
    for damaged in (b"", whole[:-1], b"\xff" + whole, marshal.dumps(3), other):
        cached.write_bytes(damaged)
        before = len(made)
        assert pack("install", hook_sources()) == first and len(made) == before + 1
    assert cached.read_bytes() == whole
    pack("install", GOOD)
    assert cached.read_bytes() == whole
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    cached.unlink()
    assert pack("install", hook_sources()) == first and not any(folder.iterdir())


def test_bytecode_comes_from_the_targets_own_interpreter_and_only_from_a_plain_one_of_our_user() -> None:
    program = os.path.realpath(sys.executable)
    made = bytecode.compiled_by(program, (("x.py", "def f(a: int) -> int:\n    'Doc.'\n    return a\n"),))
    magic, (code,) = made
    namespace: dict[str, Any] = {}
    assert magic == importlib.util.MAGIC_NUMBER
    exec(marshal.loads(code), namespace)
    assert namespace["f"](3) == 3 and namespace["f"].__doc__ is None
    assert bytecode.compiled_by("/bin/true", (("x.py", ""),)) is None
    ours = read_status(os.getpid())
    assert interpreter_of(ours) == os.readlink("/proc/self/exe")
    assert interpreter_of(msgspec.structs.replace(ours, uids=(ours.uids[0] + 1,) * 4)) is None
    assert interpreter_of(msgspec.structs.replace(ours, started=ours.started - 1)) is None, "who had the pid"
    with subprocess.Popen(["sleep", "20"]) as process:
        assert interpreter_of(msgspec.structs.replace(ours, pid=process.pid)) is None
        process.kill()


def test_an_interpreter_that_failed_once_is_asked_again(tmp_path: Path) -> None:
    program, ready = tmp_path / "python3", tmp_path / "ready"
    program.write_text(f'#!/bin/sh\n[ -e {ready} ] && exec {sys.executable} "$@"\nexit 1\n')
    program.chmod(0o755)
    assert bytecode.compiled_by(str(program), (("x.py", "X = 1\n"),)) is None
    ready.touch()
    assert bytecode.compiled_by(str(program), (("x.py", "X = 1\n"),)) is not None


def test_one_injector_at_a_time() -> None:
    with subprocess.Popen(["sleep", "20"]) as process:
        try:
            with turn(process.pid, time.monotonic()):
                with pytest.raises(AttachRefused) as refused, turn(process.pid, time.monotonic() + 0.02):
                    pass
                assert refused.value.transient and "another aitop" in refused.value.reason
            with turn(process.pid, time.monotonic()):
                pass
        finally:
            process.kill()


def test_nothing_is_imported_before_it_is_known_whether_that_may_be() -> None:
    """Not even `__future__`, which a program may do without: only what is in every interpreter from its beginning."""
    _, (driver,) = compiled((("in_target.py", Path(in_target.__file__).read_text()),))
    numbers = dict.fromkeys(("pid", "flags", "inode", "size", "at", "end"), 1)
    lines = [request._INNER.format(path="", **numbers), request._SECOND.format(claim="o.unlink(p)", **numbers)]
    texts = [marshal.loads(driver), *(compile(line, "", "exec") for line in lines)]
    named = {each.argval for code in texts for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"}
    assert not in_target.TYPE_CHECKING
    assert named - {"types", "typing"} == {"posix", "marshal", "sys", "_thread"}
    bare = "import sys; assert {'posix', 'marshal', 'sys', '_thread'} <= set(sys.modules)"
    subprocess.run([sys.executable, "-I", "-S", "-c", bare], check=True)


@pytest.mark.parametrize(
    "torn", ["def install(way, load=None):\n    return (", "x = (1,", "from . import b\0", "class"]
)
def test_a_hook_whose_files_are_half_written_is_refused(torn: str) -> None:
    with pytest.raises(AttachRefused, match="being changed, or are damaged") as refusal:
        pack("install", (("hook.__init__", "from .a import x"), ("hook.a", torn)))
    assert refusal.value.state == "failed" and refusal.value.remedy
