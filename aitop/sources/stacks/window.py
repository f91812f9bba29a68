"""Samples of several processes to one StackWindow: one table of frames, each with its owner and its source line."""

from __future__ import annotations

import os
from collections.abc import Sequence

from aitop.model.stacks import Flow, Frame, StackCount
from aitop.sources import procfs
from aitop.sources.code.dataflow import flows
from aitop.sources.code.foreign_file import User, user_of
from aitop.sources.code.lines import SourceCode
from aitop.sources.stacks.speedscope import RawFrame, ThreadSamples
from aitop.stacks.dataflow import innermost
from aitop.stacks.origin import is_user

MOST_FLOWS = 40

_View = tuple[str, "str | None", "User | None"]


class CodeOfProcesses:
    """Source lines of the user's files, read once for all processes that see the same files and may read the same."""

    def __init__(self) -> None:
        self._readers: dict[_View, SourceCode] = {}
        self._flows: dict[str, tuple[str, tuple[Flow, ...]]] = {}

    def flows(self, code: SourceCode, file: str) -> tuple[Flow, ...]:
        """The dataflow of all functions in a file, worked out anew only when its text has changed."""
        text = code.text(file)
        if text is None:
            return ()
        known = self._flows.get(file)
        if known is None or known[0] != text:
            if len(self._flows) > 100:
                self._flows.clear()
            known = self._flows[file] = text, flows(file, text)
        return known[1]

    def of(self, pid: int) -> SourceCode:
        """The code as process `pid` sees it, with its rights: what it says that it runs may be any file's name."""
        view = _view_of(pid)
        reader = self._readers.get(view)
        # Its pid may be another process's by now.
        if reader is None or _view_of(reader.pid) != view:
            if len(self._readers) > 100:
                self._readers.clear()
            reader = self._readers[view] = SourceCode(pid)
        return reader


def _view_of(pid: int) -> _View:
    """What a process sees of files: its mounts, its root, and as whom; of a process that is gone its pid alone."""
    folder = f"{procfs.PROC}/{pid}"
    return procfs.link(f"{folder}/ns/mnt") or str(pid), procfs.link(f"{folder}/root"), user_of(pid)


class WindowBuilder:
    """Collects what one window saw. `script` is the path of the target's main script, see stacks.origin.is_user."""

    def __init__(self, script: str | None, code: CodeOfProcesses) -> None:
        self._script = script
        self._code = code
        self._frames: dict[tuple[str, str, int], int] = {}
        self._table: list[Frame] = []
        self._stacks: list[StackCount] = []
        self._flows: dict[tuple[str, int], Flow] = {}

    def add(self, pid: int, raw: Sequence[RawFrame], threads: Sequence[ThreadSamples]) -> None:
        """Add the threads of one process."""
        self._stacks += self.counts(pid, raw, threads)

    def counts(self, pid: int, raw: Sequence[RawFrame], threads: Sequence[ThreadSamples]) -> list[StackCount]:
        """The stacks of threads of one process, their frames in the table, but not among the result's stacks."""
        indices = self.indices(pid, raw)
        return [
            StackCount(
                pid=pid,
                thread=thread.name,
                main=thread.main,
                frames=tuple(indices[index] for index in stack),
                count=count,
            )
            for thread in threads
            for stack, count in thread.stacks.items()
        ]

    def indices(self, pid: int, raw: Sequence[RawFrame]) -> list[int]:
        """Where these frames of a process are in the table; new ones are added to it."""
        code = self._code.of(pid)
        folder = procfs.link(f"{procfs.PROC}/{pid}/cwd") or "/"
        return [self._index(frame, folder, code) for frame in raw]

    def result(self) -> tuple[tuple[Frame, ...], tuple[StackCount, ...]]:
        """The table of frames and the stacks that index it."""
        return tuple(self._table), tuple(self._stacks)

    def flows(self) -> tuple[Flow, ...]:
        """The dataflow of the user's functions in the table."""
        return tuple(self._flows.values())

    def _index(self, raw: RawFrame, folder: str, code: SourceCode) -> int:
        file, line = raw.file or "", raw.line or 0
        if file and not file.startswith(("/", "<")):
            file = os.path.normpath(os.path.join(folder, file))
        key = raw.name, file, line
        index = self._frames.get(key)
        if index is None:
            user = is_user(file, self._script)
            index = self._frames[key] = len(self._table)
            place = code.place(file, line) if user and line > 0 else None
            text, loop, guard = place if place is not None and place.text else (None, None, None)
            self._table.append(Frame(raw.name, file, line, user, text, loop, guard))
            if user and place and len(self._flows) < MOST_FLOWS:
                flow = innermost(self._code.flows(code, file), line)
                if flow is not None:
                    self._flows[file, flow.first] = flow
        return index
