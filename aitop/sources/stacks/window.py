"""Makes one StackWindow of the samples of several processes: a table of frames, each with its owner and source line."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from aitop.model.host import ProcessId
from aitop.model.stacks import Flow, Frame, StackCount
from aitop.sources import procfs
from aitop.sources.code.calls import Calls
from aitop.sources.code.dataflow import Span, functions, may_collect
from aitop.sources.code.lines import SourceCode
from aitop.sources.foreign_file import user_of
from aitop.sources.process_status import User
from aitop.sources.stacks.speedscope import RawFrame, ThreadSamples
from aitop.sources.stacks.torn import Seams
from aitop.stacks.dataflow import innermost
from aitop.stacks.libraries import meaning
from aitop.stacks.origin import application, is_user, library_path
from aitop.stacks.reading import Seen, own_start, read_stack

MOST_FLOWS = 40
MOST_CALLING = 1000
MOST_FRAMES = 10_000
MOST_PROCESSES = 1000

_View = tuple[str, "str | None", "User | None"]


class _Read(NamedTuple):
    """What was read of a file: where its functions stand, and the dataflow of some; None where there is none."""

    text: str
    spans: tuple[Span, ...]
    flows: Mapping[Span | None, Flow | None]


class CodeOfProcesses:
    """Source lines of the user's files, read once for all processes that see the same files and may read the same."""

    def __init__(self) -> None:
        self._readers: dict[_View, SourceCode] = {}
        # The package that stands for the user's code, by process; None for one whose user's code was seen.
        self.applications: dict[int, str | None] = {}
        # Functions, by file and name, that call the model.
        self.calling: set[tuple[str, str]] = set()
        self._read: dict[str, _Read] = {}
        self._calls: dict[tuple[_View, str], tuple[str | None, Calls]] = {}
        self.seams = Seams()
        # Windows share equal frames: so each takes a third of the memory.
        self._frames: dict[Frame, Frame] = {}

    def frame(self, frame: Frame) -> Frame:
        """The equal frame of an earlier window if there is one, else this one."""
        if len(self._frames) > MOST_FRAMES:
            self._frames.clear()
        return self._frames.setdefault(frame, frame)

    def saw(self, seen: Seen) -> None:
        """Note the functions that call the model: of them it matters which line makes its input."""
        if seen.phase == "forward" and not seen.worker:
            if len(self.calling) > MOST_CALLING:
                self.calling.clear()
            self.calling |= {(frame.file, frame.function) for index, frame in seen.stages if index < seen.library}

    def flows(self, code: SourceCode, file: str, lines: Collection[int]) -> list[Flow]:
        """The dataflow of the functions in which these lines stand, each read once, unless the text changes."""
        text = code.text(file)
        if text is None:
            return []
        known = self._read.get(file)
        if known is None or known.text != text:
            known = _Read(text, (), {})
        new = [line for line in lines if innermost(known.spans, line) not in known.flows]
        if new:
            if len(self._read) > 100:
                self._read.clear()
            spans, flows = functions(file, text, new)
            read = {innermost(spans, line): innermost(flows, line) for line in new}
            known = self._read[file] = _Read(text, spans, {**known.flows, **read})
        wanted = dict.fromkeys(innermost(known.spans, line) for line in lines)
        return [flow for span in wanted if (flow := known.flows.get(span)) is not None]

    def calls(self, code: SourceCode, file: str) -> Calls:
        """The calls in a file, read once, unless its text changes."""
        text, key = code.text(file), (_view_of(code.process), file)
        known = self._calls.get(key)
        if known is None or known[0] != text:
            if len(self._calls) > 100:
                self._calls.clear()
            known = self._calls[key] = text, Calls(text)
        return known[1]

    def of(self, pid: int) -> SourceCode:
        """The code as process `pid` sees it, read with its user's rights only: it may claim to run any file."""
        process = procfs.process_id(pid) or ProcessId(pid, 0.0)
        view = _view_of(process)
        reader = self._readers.get(view)
        # The process of the cached reader may have ended.
        if reader is None or _view_of(reader.process) != view:
            if len(self._readers) > 100:
                self._readers.clear()
            reader = self._readers[view] = SourceCode(process)
        return reader


def _view_of(process: ProcessId) -> _View:
    """What a process sees of files: its mounts, its root, and the user that it opens files as (None if it is gone)."""
    folder = f"{procfs.PROC}/{process.pid}"
    return procfs.link(f"{folder}/ns/mnt") or str(process.pid), procfs.link(f"{folder}/root"), user_of(process)


class WindowBuilder:
    """Collects what one window saw. `script` is the path of the target's main script, see stacks.origin.is_user."""

    def __init__(self, script: str | None, code: CodeOfProcesses) -> None:
        self._script = script
        self._code = code
        self._frames: dict[tuple[str, str, int, bool], int] = {}
        self._table: list[Frame] = []
        self._stacks: list[StackCount] = []
        # By file, its reader and the user's lines in it that were sampled, each with its function.
        self._lines: dict[str, tuple[SourceCode, dict[int, str]]] = {}
        # Those of the lines that were the innermost frame of a stack, with their text.
        self._leaves: dict[tuple[str, int], str] = {}
        # The calls in a file, by process, and the stacks that were whole, by thread.
        self._calls: dict[tuple[int, str], Calls] = {}
        self._whole: dict[tuple[int, str], Counter[tuple[int, ...]]] = {}

    def add(self, pid: int, raw: Sequence[RawFrame], threads: Sequence[ThreadSamples]) -> None:
        """Add the threads of one process."""
        self._stacks += self.counts(pid, raw, threads)

    def counts(self, pid: int, raw: Sequence[RawFrame], threads: Sequence[ThreadSamples]) -> list[StackCount]:
        """The stacks of threads of one process. Their frames join the table; they do not join the result's stacks."""
        self._learn_application(pid, raw, threads)
        indices = self.indices(pid, raw)
        made = [
            StackCount(pid=pid, thread=thread.name, main=thread.main, frames=frames, count=count)
            for thread in threads
            for frames, count in self._mended(pid, thread, indices).items()
        ]
        for stack in {each.frames for each in made}:
            seen = read_stack([self._table[index] for index in stack])
            self._code.saw(seen)
            if seen.leaf and seen.line is not None:
                self._leaves[seen.line.file, seen.line.line] = seen.line.text or ""
        return made

    def _mended(self, pid: int, thread: ThreadSamples, indices: Sequence[int]) -> Counter[tuple[int, ...]]:
        """The samples of a thread. Stacks that changed while they were read are mended, or else dropped."""
        seen: Counter[tuple[int, ...]] = Counter()
        for stack, count in thread.stacks.items():
            # py-spy may number the same line twice, as it tells frames apart by more than it says of them.
            seen[tuple(indices[index] for index in stack)] += count
        # An installed package has no loop quick enough for that, and its files are large.
        if self._code.applications.get(pid) is not None:
            return seen
        code = self._code.of(pid)

        def read(file: str) -> Calls:
            if (pid, file) not in self._calls:
                self._calls[pid, file] = self._code.calls(code, file)
            return self._calls[pid, file]

        known = self._whole.setdefault((pid, thread.name), Counter())
        mended: Counter[tuple[int, ...]] = Counter()
        for stack, whole in self._code.seams.mended(seen, self._table, read, known).items():
            if whole is not None:
                mended[whole] += seen[stack]
        return mended

    def indices(self, pid: int, raw: Sequence[RawFrame]) -> list[int]:
        """Where these frames of a process are in the table; new ones are added to it."""
        code = self._code.of(pid)
        package = self._code.applications.get(pid)
        return [self._index(frame, file, code, package) for frame, file in zip(raw, _files(pid, raw), strict=True)]

    def _learn_application(self, pid: int, raw: Sequence[RawFrame], threads: Sequence[ThreadSamples]) -> None:
        """Note which package stands for the user's code in a process that runs none, until user code is seen."""
        known = self._code.applications
        if known.get(pid, "") is None:
            return
        if len(known) >= MOST_PROCESSES:
            # A server may fork a process for each request.
            known.clear()
        frames = [Frame(frame.name, file, 0) for frame, file in zip(raw, _files(pid, raw), strict=True)]
        stacks = ([frames[index] for index in stack] for thread in threads for stack in thread.stacks)
        own = ([frame.file for frame in stack[own_start(stack) :]] for stack in stacks)
        known[pid] = application(own, self._script)

    def result(self) -> tuple[tuple[Frame, ...], tuple[StackCount, ...]]:
        """The table of frames and the stacks that index it."""
        return tuple(self._table), tuple(self._stacks)

    def flows(self) -> tuple[Flow, ...]:
        """The dataflow of the user's functions in the table that call the model or may collect garbage."""
        flows: list[Flow] = []
        for file, (code, lines) in self._lines.items():
            text = code.text(file) or ""
            wanted = [
                line
                for line, function in lines.items()
                if (file, function) in self._code.calling
                or ((leaf := self._leaves.get((file, line))) is not None and may_collect(text, leaf))
            ]
            if wanted:
                flows += self._code.flows(code, file, wanted)
        return tuple(flows[:MOST_FLOWS])

    def _index(self, raw: RawFrame, file: str, code: SourceCode, package: str | None) -> int:
        line = raw.line or 0
        user = is_user(file, self._script, code.packages)
        if package is not None and file.startswith(package):
            user = not any(meaning(Frame(raw.name, file, line)))
        key = raw.name, file, line, user
        index = self._frames.get(key)
        if index is None:
            index = self._frames[key] = len(self._table)
            place = code.place(file, line) if user and line > 0 else None
            text, guard = place if place is not None and place.text else (None, None)
            packages = code.packages(file) if not user and library_path(file) == file else None
            self._table.append(self._code.frame(Frame(raw.name, file, line, user, text, guard, packages)))
            if user and place:
                self._lines.setdefault(file, (code, {}))[1][line] = raw.name
        return index


def _files(pid: int, raw: Sequence[RawFrame]) -> list[str]:
    """The files of frames, relative ones completed with the working directory of the process."""
    folder = procfs.link(f"{procfs.PROC}/{pid}/cwd") or "/"
    return [
        os.path.normpath(os.path.join(folder, file)) if file and not file.startswith(("/", "<")) else file
        for file in (frame.file or "" for frame in raw)
    ]
