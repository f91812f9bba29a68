"""The hook, packed for the journey: real files of ours in, one block of bytes out."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.resources
import marshal
from collections.abc import Sequence
from typing import Literal

from aitop.attach.compiling import compiled
from aitop.attach.in_target import PACKAGE
from aitop.attach.other_python import bytecode_by
from aitop.attach.refusal import AttachRefused

Action = Literal["install", "remove", "drop"]
Sources = Sequence[tuple[str, str]]
# The number that an interpreter's bytecode goes by, and the code of each file.
Bytecode = tuple[bytes, tuple[bytes, ...]]
# A module's full name, its text and its bytecode.
Loaded = tuple[str, bytes, bytes]
# Takes a target about a millisecond to load.
PART_BYTES = 60_000
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


def pack(action: Action, sources: tuple[tuple[str, str], ...], interpreter: str | None = None) -> bytes:
    """All of it in one block, for where each way in is dear or the target is slow to answer. Raises AttachRefused."""
    return _blocks(action, sources, _bytecode(action, sources, interpreter), in_parts=False)[0]


def parts(action: Action, sources: tuple[tuple[str, str], ...], interpreter: str | None = None) -> tuple[bytes, ...]:
    """The same in blocks to be brought in one after the other, so that the target goes on in between.

    Raises AttachRefused.
    """
    return _blocks(action, sources, _bytecode(action, sources, interpreter), in_parts=True)


@functools.cache
def _blocks(
    action: Action, sources: tuple[tuple[str, str], ...], bytecode: Bytecode, *, in_parts: bool
) -> tuple[bytes, ...]:
    """What the injected line executes: `marshal` of (bytecode's number, driver, its text, start).

    The modules travel as bytecode, in one block also as text; a target of the same Python spares itself the compiling,
    which is most of the pause an attach would cause.
    """
    magic, (driver, *codes) = bytecode
    modules = [
        (_full_name(name), source.encode(), code)
        for (name, source), code in zip(_modules(action, sources), codes, strict=True)
    ]
    shares = _shared_out(modules) if in_parts else [modules]
    if len(shares) > 1:
        # A target that does not read the parts' bytecode asks for all in one block.
        shares = [[(name, b"", code) for name, _, code in share] for share in shares]
    start = {
        "__name__": "_aitop_in_target",
        "action": action,
        "bundle": hashlib.sha256(repr(sources).encode()).hexdigest(),
        "magic": magic,
    }
    starts = [
        start | {"part": number, "more": number + 1 < len(shares), "modules": share}
        for number, share in enumerate(shares)
    ]
    return tuple(marshal.dumps((magic, driver, _driver().encode(), one), MARSHAL_VERSION) for one in starts)


def _bytecode(action: Action, sources: tuple[tuple[str, str], ...], interpreter: str | None) -> Bytecode:
    """The driver and the modules in the bytecode of ours, or of the Python `interpreter` where that can be had."""
    ours, texts = _compiled(action, sources)
    theirs = bytecode_by(interpreter, texts) if interpreter is not None else None
    return ours if theirs is None else (theirs[0], tuple(theirs[1]))


@functools.cache
def _compiled(action: Action, sources: tuple[tuple[str, str], ...]) -> tuple[Bytecode, tuple[tuple[str, str], ...]]:
    """Our bytecode, and the texts it was made of with their names."""
    try:
        modules = _modules(action, sources)
        texts = [(DRIVER, _driver()), *((f"<aitop hook>/{name}.py", source) for name, source in modules)]
        magic, codes = compiled(texts)
    except (SyntaxError, ValueError) as error:
        raise _torn(error) from error
    return (magic, tuple(codes)), tuple(texts)


def _modules(action: Action, sources: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    # Taking the hook out needs nothing that is not there already.
    return _in_order(dict(sources)) if action == "install" else []


def _shared_out(modules: list[Loaded]) -> list[list[Loaded]]:
    """Parts of at most PART_BYTES of bytecode; installing takes the target about as long as one of them."""
    shares: list[list[Loaded]] = [[]]
    room = PART_BYTES
    for module in modules:
        if len(module[2]) > room and shares[-1]:
            shares.append([])
            room = PART_BYTES
        shares[-1].append(module)
        room -= len(module[2])
    if len(shares) > 1 and len(shares[-1]) > 1:
        shares.append([shares[-1].pop()])
    return shares


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
