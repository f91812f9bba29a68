"""The user's source as the target sees it: read through its root, whatever container it is in."""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from typing import NamedTuple

from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.foreign_file import open_as

LARGEST_FILE = 2 << 20
# Of a line that is longer, only so much is looked at: searches take the square of its length.
LONGEST_LINE = 500
FILES_KEPT = 64
_LOOP = re.compile(r"\s*(?:async\s+)?(?:for|while)\b")
_FUNCTION = re.compile(r"\s*(?:(?:async\s+)?def|class)\b")
_LINE_END = re.compile(r"\r\n|\r|\n")


class _File(NamedTuple):
    identity: tuple[int, int, int]
    text: str
    lines: tuple[str, ...]


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _loop(lines: tuple[str, ...], line: int) -> str | None:
    depth = _indentation(lines[line - 1])
    for above in reversed(lines[: line - 1]):
        indentation = _indentation(above)
        if not above.strip() or indentation >= depth:
            continue
        depth = indentation
        if _LOOP.match(above):
            return above.strip()
        if _FUNCTION.match(above):
            return None
    return None


class SourceCode:
    """Source files of one process. Nothing here raises; what cannot be read is None."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._files: OrderedDict[str, _File] = OrderedDict()
        self._folder = procfs.link(f"{procfs.PROC}/{pid}/cwd") or "/"

    def line(self, file: str, line: int) -> str | None:
        """One line of a file (counted from 1) without its line end, None if there is no such line."""
        found = self._lines(file)
        return found[line - 1] if found is not None and 1 <= line <= len(found) else None

    def around(self, file: str, line: int, before: int = 6, after: int = 6) -> list[tuple[int, str]] | None:
        """Numbered lines around one, None if there is no such line."""
        found = self._lines(file)
        if found is None or not 1 <= line <= len(found):
            return None
        first, last = max(1, line - before), min(len(found), line + after)
        return [(number, found[number - 1]) for number in range(first, last + 1)]

    def loop(self, file: str, line: int) -> str | None:
        """The head of the innermost loop, stripped, that a line stands in within its function; None without one."""
        found = self._lines(file)
        return _loop(found, line) if found is not None and 1 <= line <= len(found) else None

    def place(self, file: str, line: int, before: int) -> tuple[str, str | None, list[str]] | None:
        """A line, the head of its loop as `loop` has it, and up to `before` lines above with it; read once."""
        found = self._lines(file)
        if found is None or not 1 <= line <= len(found):
            return None
        return found[line - 1], _loop(found, line), list(found[max(0, line - 1 - before) : line])

    def text(self, file: str) -> str | None:
        """The whole file as it is, with its control characters."""
        found = self._read(file)
        return found.text if found is not None else None

    def _lines(self, file: str) -> tuple[str, ...] | None:
        found = self._read(file)
        return found.lines if found is not None else None

    def _read(self, file: str) -> _File | None:
        """The file from memory while it has not changed, and after the process is gone."""
        if not file or file.startswith("<") or "\0" in file:
            return None
        path = os.path.normpath(os.path.join(self._folder, file))
        known = self._files.get(path)
        try:
            handle = open_as(self.pid, path)
        except (OSError, ValueError):
            return known if not os.path.exists(f"{procfs.PROC}/{self.pid}/stat") else None
        try:
            found = self._load(handle, known)
        except OSError:
            return None
        finally:
            os.close(handle)
        if found is not None:
            self._files[path] = found
            self._files.move_to_end(path)
            while len(self._files) > FILES_KEPT:
                self._files.popitem(last=False)
        return found

    def _load(self, handle: int, known: _File | None) -> _File | None:
        """The content of an open regular file of reasonable size."""
        status = os.fstat(handle)
        if status.st_size > LARGEST_FILE:
            return None
        identity = (status.st_ino, status.st_mtime_ns, status.st_size)
        if known is not None and known.identity == identity:
            return known
        data = b""
        while len(data) <= LARGEST_FILE and (more := os.read(handle, LARGEST_FILE + 1 - len(data))):
            data += more
        if len(data) > LARGEST_FILE:
            return None
        text = data.decode("utf-8", "replace")
        lines = tuple(printable(line[:LONGEST_LINE].expandtabs(4))[:LONGEST_LINE] for line in _LINE_END.split(text))
        return _File(identity, text, lines)
