"""Packs the hook's files into the blocks of bytes that the target loads."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.resources
import marshal
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from aitop.attach.payload.bytecode import compiled, compiled_by
from aitop.attach.payload.in_target import HOOK, ROOT, file_name
from aitop.attach.refusal import AttachRefused

Action = Literal["install", "remove", "drop"]
Sources = Sequence[tuple[str, str]]
# An interpreter's magic number, and the code of each file.
Bytecode = tuple[bytes, tuple[bytes, ...]]
# A module's full name, its text and its bytecode.
Loaded = tuple[str, bytes, bytes]
# Of bytecode in one part; loading that much takes a target 1 to 2 ms.
PART_BYTES = 60_000
# The oldest format that every supported Python reads.
MARSHAL_VERSION = 2
DRIVER = "<aitop>/in_target.py"
# What travels: packages of aitop, which import each other by relative names only.
PACKAGES = ("hook", "protocol")
INIT = "__init__"


@functools.cache
def hook_sources() -> tuple[tuple[str, str], ...]:
    """Return (module name below aitop, source) of every file of the hook and its protocol.

    A package itself is named like its file: `hook.__init__`. Raises AttachRefused where the files cannot be read.
    """
    root = importlib.resources.files("aitop")
    try:
        return tuple(sorted(source for package in PACKAGES for source in _sources(root.joinpath(package), package)))
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(error) from error


def _sources(folder: Any, package: str) -> Iterator[tuple[str, str]]:
    entries = {entry.name: entry for entry in folder.iterdir()}
    if f"{INIT}.py" not in entries:  # no package: the folder of sitecustomize, or a cache
        return
    for name, entry in entries.items():
        if name.endswith(".py"):
            yield f"{package}.{name[:-3]}", entry.read_text(encoding="utf-8")
        elif entry.is_dir():
            yield from _sources(entry, f"{package}.{name}")


def pack(action: Action, sources: tuple[tuple[str, str], ...], interpreter: str | None = None) -> bytes:
    """Everything in one block: for costly ways in, and for targets that are slow to answer. Raises AttachRefused."""
    return _blocks(action, sources, _bytecode(action, sources, interpreter), in_parts=False)[0]


def parts(action: Action, sources: tuple[tuple[str, str], ...], interpreter: str | None = None) -> tuple[bytes, ...]:
    """The same in blocks to be brought in one after the other; the target runs on in between. Raises AttachRefused."""
    return _blocks(action, sources, _bytecode(action, sources, interpreter), in_parts=True)


@functools.cache
def _blocks(
    action: Action, sources: tuple[tuple[str, str], ...], bytecode: Bytecode, *, in_parts: bool
) -> tuple[bytes, ...]:
    """What the injected line executes: `marshal` of (magic number, driver, its text, start).

    The modules travel as bytecode, because compiling would be most of the pause. A single block has them as text too,
    for a target that does not read this bytecode; a target that gets parts it does not read asks for a single block.
    """
    magic, (driver, *codes) = bytecode
    modules = [
        (f"{ROOT}.{name}", source.encode(), code)
        for (name, source), code in zip(_modules(action, sources), codes, strict=True)
    ]
    shares = _shared_out(modules) if in_parts else [modules]
    if len(shares) > 1:
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
    """The driver and the modules in our own bytecode, or that of the target's `interpreter` where it answers."""
    ours, texts = _compiled(action, sources)
    theirs = compiled_by(interpreter, texts) if interpreter is not None else None
    return ours if theirs is None else (theirs[0], tuple(theirs[1]))


@functools.cache
def _compiled(action: Action, sources: tuple[tuple[str, str], ...]) -> tuple[Bytecode, tuple[tuple[str, str], ...]]:
    """Our own bytecode, and the (file name, source) pairs that it was made of."""
    try:
        modules = _modules(action, sources)
        texts = [(DRIVER, _driver()), *((file_name(name), source) for name, source in modules)]
        magic, codes = compiled(texts)
    except (SyntaxError, ValueError) as error:
        raise _damaged(error) from error
    return (magic, tuple(codes)), tuple(texts)


def _modules(action: Action, sources: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    # Removing the hook needs only what is in the target already.
    return _in_order(dict(sources)) if action == "install" else []


def _shared_out(modules: list[Loaded]) -> list[list[Loaded]]:
    """Shares of at most PART_BYTES of bytecode. The last has one module: installing comes on top of loading it."""
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


def _damaged(error: Exception) -> AttachRefused:
    """The refusal for files that are damaged or being written at this moment."""
    reason = f"aitop's own files are being changed, or are damaged: {error}"
    return AttachRefused("damaged-files", reason, "install aitop again, and restart it")


def _in_order(sources: dict[str, str]) -> list[tuple[str, str]]:
    """Return each module after those it imports when it is executed, the hook's package itself last."""
    ordered: list[str] = []

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in ordered or name not in sources:
            return
        if name in importers:
            raise ValueError(f"modules of the hook import each other: {' → '.join((*importers, name))}")
        for other in _imports(name, sources[name]):
            for module in (other, f"{other}.{INIT}"):
                if module != last:
                    add(module, (*importers, name))
        ordered.append(name)

    last = f"{HOOK}.{INIT}"
    for name in sorted(sources.keys() - {last}):
        add(name, ())
    return [(name, sources[name]) for name in (*ordered, last) if name in sources]


def _imports(name: str, source: str) -> list[str]:
    """Return what the module `name` imports of the packages at its top: modules, packages, and names in them."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            path = [*name.split(".")[: -node.level], *((node.module or "").split("."))]
            module = ".".join(part for part in path if part)
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return names


@functools.cache
def _driver() -> str:
    return importlib.resources.files("aitop.attach.payload").joinpath("in_target.py").read_text(encoding="utf-8")
