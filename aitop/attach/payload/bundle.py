"""Packs the hook's files into the block of bytes that the target loads.

The core of the hook (its session and what that imports) is loaded at once. The hook itself loads the rest later, one
measure at a time. Loading everything in one go took the main thread of a torch process 5.2 to 5.7 ms of CPU time
(Python 3.11), which is more than an attach may take. The core takes 1.6 ms, plus 0.9 ms to install itself; a measure
takes 0.2 to 0.8 ms.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import importlib.util
import marshal
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from aitop.attach.payload.bytecode import compiled, compiled_by
from aitop.attach.payload.in_target import HOOK, ROOT, file_name
from aitop.attach.refusal import AttachRefused
from aitop.output_file import replace_output

Action = Literal["install", "remove"]
Sources = Sequence[tuple[str, str]]
# A marshal format that every supported Python reads.
MARSHAL_VERSION = 2
DRIVER = "<aitop>/in_target.py"
# The packages of aitop that are carried into the target. They import each other by relative names only.
PACKAGES = ("hook", "protocol")
INIT = "__init__"
# A relative import at the top of a module. A regular expression, because parsing all modules for their imports took
# 80 ms of the 130 ms of an attach.
_IMPORT = re.compile(r"^from (\.+)([\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
_COMMENT = re.compile(r"#.*")
# The modules of the core, in the order in which they are loaded. What they import belongs to the core as well.
CORE = (f"{HOOK}.session", f"{HOOK}.{INIT}")


@functools.cache
def hook_sources() -> tuple[tuple[str, str], ...]:
    """Return (module name below aitop, source) for every file of the hook and its protocol.

    A package itself is named like its file: `hook.__init__`. Raises AttachRefused if the files cannot be read.
    """
    root = importlib.resources.files("aitop")
    try:
        return tuple(sorted(source for package in PACKAGES for source in _sources(root.joinpath(package), package)))
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(error) from error


def _sources(folder: Any, package: str) -> Iterator[tuple[str, str]]:
    entries = {entry.name: entry for entry in folder.iterdir()}
    if f"{INIT}.py" not in entries:  # not a package: the folder of sitecustomize, or __pycache__
        return
    for name, entry in entries.items():
        if name.endswith(".py"):
            yield f"{package}.{name[:-3]}", entry.read_text(encoding="utf-8")
        elif entry.is_dir():
            yield from _sources(entry, f"{package}.{name}")


def pack(action: Action, sources: tuple[tuple[str, str], ...], interpreter: str | None = None) -> bytes:
    """Return what the injected line executes: `marshal` of (magic number, driver's code, driver's source, `start`).

    `interpreter` is the path of the target's Python, None if ours is of the same version or the target's must not be
    started. Modules are carried as bytecode of that interpreter, or of ours if it is None or does not answer, because
    compiling in the target would make up most of the pause. They are carried as source too, for a target that cannot
    read the bytecode. Raises AttachRefused if our files are damaged.
    """
    # Removing the hook needs only what is in the target already.
    texts = sources if action == "install" else ()
    files = ((DRIVER, _driver()), *((file_name(name), text) for name, text in texts))
    theirs = compiled_by(interpreter, files) if interpreter is not None else None
    try:
        ours = _kept_or_compiled if texts and texts == hook_sources() else compiled
        magic, (driver, *codes) = theirs or ours(files)
        core, rest = _layout(texts)
    except (SyntaxError, ValueError) as error:
        raise _damaged(error) from error
    modules = {name: (f"{ROOT}.{name}", text.encode(), code) for (name, text), code in zip(texts, codes, strict=True)}
    start = {
        "__name__": "_aitop_in_target",
        "action": action,
        "magic": magic,
        "core": [modules[name] for name in core],
        "rest": {name.removeprefix(f"{HOOK}."): [modules[each] for each in names] for name, names in rest.items()},
    }
    return marshal.dumps((magic, driver, _driver().encode(), start), MARSHAL_VERSION)


def _kept_or_compiled(files: tuple[tuple[str, str], ...]) -> tuple[bytes, list[bytes]]:
    """Return what `compiled` returns, from a cache file beside our own bytecode if that was made from the same files.

    Compiling takes 45 ms of CPU time, which on a machine with no idle core would be taken from the run.
    """
    path = Path(importlib.util.cache_from_source(__file__)).with_name(f"hook.{sys.implementation.cache_tag}.marshal")
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        # Reading this is safe: whoever may write here may change our own bytecode as well.
        magic, sources, codes = marshal.loads(path.read_bytes())  # noqa: S302
        if (magic, sources) == (importlib.util.MAGIC_NUMBER, files):
            return magic, codes
    magic, codes = compiled(files)
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            replace_output(path, marshal.dumps((magic, files, codes)), 0o644)
    return magic, codes


@functools.cache
def _layout(texts: tuple[tuple[str, str], ...]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the modules of the core, in order, and for each other module those that are loaded with it."""
    sources = dict(texts)
    core = _with_imports(CORE, sources)
    return core, {name: _with_imports((name,), sources, core) for name in sources if name not in core}


def _damaged(error: Exception) -> AttachRefused:
    """Return the refusal for files of aitop that are damaged or being written right now."""
    reason = f"aitop's own files are being changed, or are damaged: {error}"
    return AttachRefused("failed", reason, "install aitop again, and restart it")


def _with_imports(roots: Sequence[str], texts: dict[str, str], loaded: Sequence[str] = ()) -> list[str]:
    """Return the modules `roots` and all that they import, except those in `loaded`, each after those it imports."""
    ordered: list[str] = []

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in ordered or name in loaded or name not in texts:
            return
        if name in importers:
            raise ValueError(f"modules of the hook import each other: {' → '.join((*importers, name))}")
        for other in _imports(name, texts[name]):
            for module in (other, f"{other}.{INIT}"):
                if module != CORE[-1]:
                    add(module, (*importers, name))
        ordered.append(name)

    for name in roots:
        add(name, ())
    return ordered


def _imports(name: str, source: str) -> list[str]:
    """Return what the module `name` imports by relative imports at its top: modules, packages, and names in them."""
    names: list[str] = []
    for dots, end, listed in _IMPORT.findall(source):
        module = ".".join(part for part in [*name.split(".")[: -len(dots)], *end.split(".")] if part)
        imported = _COMMENT.sub("", listed).strip("()\n ").split(",")
        names += [module, *(f"{module}.{each.split()[0]}" for each in imported if each.strip())]
    return names


@functools.cache
def _driver() -> str:
    return importlib.resources.files("aitop.attach.payload").joinpath("in_target.py").read_text(encoding="utf-8")
