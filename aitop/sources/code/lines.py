"""The user's source as the target sees it: read through its root, whatever container it is in."""

from __future__ import annotations

import itertools
import os
import re
from typing import NamedTuple

from aitop.model.host import ProcessId
from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.code.syntax import lines_of
from aitop.sources.foreign_file import open_as, user_of

LARGEST_FILE = 2 << 20
# Longer lines are cut: rules search lines in ways that take the square of their length.
LONGEST_LINE = 500
LINES_ABOVE = 1000
FILES_KEPT = 64
# A program may claim to run a file of any name: a path with more folders lies in no folder of packages.
DEEPEST, FOLDERS_KEPT = 64, 4096
# So many entries of a folder are searched for metadata of packages: one with more holds data.
MOST_ENTRIES = 20_000
_FUNCTION = re.compile(r"(?:(?:async\s+)?def|class)\b")
_IF, _ELSE = re.compile(r"(?:el)?if\b"), re.compile(r"else\s*:")


class Place(NamedTuple):
    """A line, stripped, and the head of the innermost `if` that it stands in, in its function.

    Of an `else:` it is the head of its `if`, with "else of" before it.
    """

    text: str
    guard: str | None


class _File(NamedTuple):
    identity: tuple[int, int, int]
    text: str
    lines: tuple[str, ...]


class SourceCode:
    """Source files of one process. Nothing here raises; what cannot be read is None."""

    def __init__(self, process: ProcessId) -> None:
        self.process = process
        self._files: dict[str, _File] = {}
        self._packages: dict[str, str | None] = {}
        self._folder = procfs.link(f"{procfs.PROC}/{process.pid}/cwd") or "/"

    def place(self, file: str, line: int) -> Place | None:
        """A line (counted from 1) with the condition around it; None if there is no such line."""
        lines = self._lines(file, line)
        return Place(_shown(lines[line - 1]).strip(), _guard(lines, line)) if lines else None

    def around(self, file: str, line: int, before: int = 6, after: int = 6) -> list[tuple[int, str]] | None:
        """The lines around `line`, each with its number; None if there is no such line."""
        lines = self._lines(file, line)
        if not lines:
            return None
        first, last = max(1, line - before), min(len(lines), line + after)
        return [(number, _shown(lines[number - 1])) for number in range(first, last + 1)]

    def text(self, file: str) -> str | None:
        """The whole file as it is, with its control characters."""
        source = self._read(file)
        return source.text if source is not None else None

    def packages(self, file: str) -> str | None:
        """The folder of installed packages that a file lies in, whatever it is called; None outside of any.

        An installer leaves a folder `NAME-VERSION.dist-info` beside each package.
        """
        folder, passed = os.path.dirname(file), []
        if folder.count("/") > DEEPEST:
            return None
        if len(self._packages) > FOLDERS_KEPT:
            self._packages.clear()
        while folder not in self._packages:
            passed.append(folder)
            if self._has_metadata(folder):
                self._packages[folder] = folder
            elif os.path.dirname(folder) == folder:
                self._packages[folder] = None
            else:
                folder = os.path.dirname(folder)
        found = self._packages[folder]
        self._packages.update(dict.fromkeys(passed, found))
        return found

    def _has_metadata(self, folder: str) -> bool:
        try:
            handle = open_as(self.process, folder, folder=True)
        except (OSError, ValueError):
            return False
        try:
            with os.scandir(handle) as entries:
                return any(entry.name.endswith(".dist-info") for entry in itertools.islice(entries, MOST_ENTRIES))
        except OSError:
            return False
        finally:
            os.close(handle)

    def _lines(self, file: str, line: int) -> tuple[str, ...]:
        """The file's lines as they are, without their ends; empty if there is no such line."""
        source = self._read(file)
        return source.lines if source is not None and 1 <= line <= len(source.lines) else ()

    def _read(self, file: str) -> _File | None:
        """The file; from the cache while it has not changed, and after the process has ended."""
        if not file or file.startswith("<") or "\0" in file:
            return None
        path = os.path.normpath(os.path.join(self._folder, file))
        known = self._files.pop(path, None)
        try:
            handle = open_as(self.process, path)
        except (OSError, ValueError):
            source = known if user_of(self.process) is None else None
        else:
            with os.fdopen(handle, "rb") as opened:
                source = _load(opened.fileno(), known)
        if source is not None:
            self._files[path] = source
            if len(self._files) > FILES_KEPT:
                del self._files[next(iter(self._files))]
        return source


def _load(handle: int, known: _File | None) -> _File | None:
    """The content of an open regular file of reasonable size."""
    try:
        status = os.fstat(handle)
        identity = (status.st_ino, status.st_mtime_ns, status.st_size)
        if known is not None and known.identity == identity:
            return known
        data = b""
        while len(data) <= LARGEST_FILE >= status.st_size and (more := os.read(handle, LARGEST_FILE + 1 - len(data))):
            data += more
    except OSError:
        return None
    if max(len(data), status.st_size) > LARGEST_FILE:
        return None
    text = data.decode("utf-8", "replace")
    return _File(identity, text, tuple(lines_of(text)))


def _shown(line: str) -> str:
    """Make a line safe to show. Not done for whole files: a server runs dozens, of which few lines are ever shown."""
    return printable(line[:LONGEST_LINE].expandtabs(4))[:LONGEST_LINE]


def _guard(lines: tuple[str, ...], line: int) -> str | None:
    """The head of the `if` that a line stands in within its function, told from indentation."""
    depth, otherwise = _indentation(_shown(lines[line - 1])), False
    for raw in reversed(lines[max(0, line - 1 - LINES_ABOVE) : line - 1]):
        # Most lines are deeper. To take none of them apart halves the time of the whole search.
        if raw.startswith(" " * (depth + 1)):
            continue
        above = _shown(raw)
        indentation, head = _indentation(above), above.strip()
        if not head or indentation > depth:
            continue
        if indentation == depth:
            if otherwise and _IF.match(head):
                return f"else of {head}"
            continue
        if _FUNCTION.match(head):
            return None
        depth, otherwise = indentation, _ELSE.match(head) is not None
        if _IF.match(head):
            return head
    return None


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
