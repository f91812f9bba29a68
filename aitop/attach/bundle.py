"""The hook, packed for the journey: real files of ours in, one block of bytes out."""

from __future__ import annotations

import ast
import functools
import importlib.resources
import marshal
from collections.abc import Sequence
from typing import Literal

from aitop.attach.compiling import compiled
from aitop.attach.in_target import PACKAGE
from aitop.attach.other_python import bytecode_by
from aitop.attach.refusal import AttachRefused

Action = Literal["install", "remove"]
Sources = Sequence[tuple[str, str]]
# The oldest format that every supported Python reads.
MARSHAL_VERSION = 2
DRIVER = "<aitop>/in_target.py"


@functools.cache
def hook_sources() -> tuple[tuple[str, str], ...]:
    """(module name, source) of every file of `aitop/hook`, the package itself as `__init__`."""
    files = importlib.resources.files("aitop").joinpath("hook").iterdir()
    try:
        found = [(file.name[:-3], file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".py")]
    except (OSError, UnicodeDecodeError) as error:
        raise _torn(error) from error
    return tuple(sorted(found))


@functools.cache
def pack(action: Action, sources: tuple[tuple[str, str], ...], interpreter: str | None = None) -> bytes:
    """The block that the injected line executes: `marshal` of (bytecode's number, driver, its text, namespace).

    The modules travel as text and as bytecode, of ours or of the Python `interpreter`; a target of the same Python
    spares itself the compiling, which is most of the pause an attach would cause. Raises AttachRefused.
    """
    try:
        # Taking the hook out needs nothing that is not there already.
        modules = _in_order(dict(sources)) if action == "install" else []
        texts = [(DRIVER, _driver()), *((f"<aitop hook>/{name}.py", source) for name, source in modules)]
        ours = compiled(texts)
    except (SyntaxError, ValueError) as error:
        raise _torn(error) from error
    theirs = bytecode_by(interpreter, tuple(texts)) if interpreter is not None else None
    magic, codes = theirs or ours
    names = [_full_name(name) for name, _ in modules]
    start = {
        "__name__": "_aitop_in_target",
        "action": action,
        "modules": [
            (name, text.encode(), code) for name, (_, text), code in zip(names, texts[1:], codes[1:], strict=True)
        ],
        "magic": magic,
    }
    return marshal.dumps((magic, codes[0], _driver().encode(), start), MARSHAL_VERSION)


def _torn(error: Exception) -> AttachRefused:
    """For files that are being written this moment: nothing of them is brought in."""
    reason = f"aitop's own files are being changed, or are damaged: {error}"
    return AttachRefused("failed", reason, "install aitop again, and restart it")


def _in_order(sources: dict[str, str]) -> list[tuple[str, str]]:
    """Each module after those it imports when it is executed, the package itself last."""
    ordered: list[str] = []

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in ordered or name not in sources:
            return
        if name in importers:
            raise ValueError(f"modules of the hook import each other: {' → '.join((*importers, name))}")
        for other in _imports(sources[name]):
            add(other, (*importers, name))
        ordered.append(name)

    for name in sorted(sources.keys() - {"__init__"}):
        add(name, ())
    return [(name, sources[name]) for name in (*ordered, "__init__") if name in sources]


def _imports(source: str) -> list[str]:
    """Modules of the package that are imported at the top of a file of it."""
    found: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found += [node.module.partition(".")[0]] if node.module else [alias.name for alias in node.names]
    return found


def _full_name(name: str) -> str:
    return PACKAGE if name == "__init__" else f"{PACKAGE}.{name}"


@functools.cache
def _driver() -> str:
    return importlib.resources.files("aitop.attach").joinpath("in_target.py").read_text(encoding="utf-8")
