"""Packs the hook's files into the block of bytes that the target loads.

The core of the hook (what its session imports) is loaded at once, the rest by the hook itself, a measure at a time.
Loading all of it in one go took the main thread of a torch process 5.2 to 5.7 ms of CPU time (Python 3.11), which is
more than an attach may take; the core takes 1.6 ms and 0.9 ms to install itself, a measure 0.2 to 0.8 ms.
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
# The oldest format that every supported Python reads.
MARSHAL_VERSION = 2
DRIVER = "<aitop>/in_target.py"
# What travels: packages of aitop, which import each other by relative names only.
PACKAGES = ("hook", "protocol")
INIT = "__init__"
# An import of the hook's own at the top of a module. To parse all modules for them took 80 ms of an attach's 130.
_IMPORT = re.compile(r"^from (\.+)([\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
_COMMENT = re.compile(r"#.*")
# What the core is made of, with all that they import; loaded in this order.
CORE = (f"{HOOK}.session", f"{HOOK}.{INIT}")


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
    """What the injected line executes: `marshal` of (magic number, driver, its text, start). Raises AttachRefused.

    The modules travel as bytecode of the target's `interpreter` where that answers, else of ours, because compiling
    would be most of the pause; and as text for a target that does not read it.
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
    """What `compiled` returns, kept beside our own bytecode for the next time and only for the very same files.

    Compiling takes 45 ms of CPU, which a run that fills all cores would go without.
    """
    path = Path(importlib.util.cache_from_source(__file__)).with_name(f"hook.{sys.implementation.cache_tag}.marshal")
    with contextlib.suppress(OSError, EOFError, ValueError, TypeError):
        # Who may write here may write our bytecode as well.
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
    """The modules of the core, in order; and of each other module those that are loaded for it."""
    sources = dict(texts)
    core = _with_imports(CORE, sources)
    return core, {name: _with_imports((name,), sources, core) for name in sources if name not in core}


def _damaged(error: Exception) -> AttachRefused:
    """The refusal for files that are damaged or being written at this moment."""
    reason = f"aitop's own files are being changed, or are damaged: {error}"
    return AttachRefused("failed", reason, "install aitop again, and restart it")


def _with_imports(roots: Sequence[str], texts: dict[str, str], loaded: Sequence[str] = ()) -> list[str]:
    """Return the modules `roots` and all that they import, but for those `loaded`, each after those it imports."""
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
    """Return what the module `name` imports of the packages at its top: modules, packages, and names in them."""
    names: list[str] = []
    for dots, end, listed in _IMPORT.findall(source):
        module = ".".join(part for part in [*name.split(".")[: -len(dots)], *end.split(".")] if part)
        imported = _COMMENT.sub("", listed).strip("()\n ").split(",")
        names += [module, *(f"{module}.{each.split()[0]}" for each in imported if each.strip())]
    return names


@functools.cache
def _driver() -> str:
    return importlib.resources.files("aitop.attach.payload").joinpath("in_target.py").read_text(encoding="utf-8")
