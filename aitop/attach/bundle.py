"""The hook, packed for the journey: real files of ours in, one block of bytes out."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.resources
import marshal
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from aitop.attach.compiling import compiled
from aitop.attach.in_target import HOOK, ROOT, file_name
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
        raise _torn(error) from error


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
        (f"{ROOT}.{name}", source.encode(), code)
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
        texts = [(DRIVER, _driver()), *((file_name(name), source) for name, source in modules)]
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
    return importlib.resources.files("aitop.attach").joinpath("in_target.py").read_text(encoding="utf-8")
