"""Reads the code that the target was seen to run, to find lines that make something longer at every step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from aitop.diagnosis.conditions.memory import rises
from aitop.model.event import Event
from aitop.model.snapshot import GrowthSites, Snapshot
from aitop.sources.code.growth import Line, growth_sites
from aitop.sources.stacks.window import CodeOfProcesses
from aitop.stacks.origin import is_user
from aitop.stacks.position import UPDATES

MOST_FILES = 30


class GrowthFinder:
    """Reads the user's files that stacks show, and emits the growth sites of all files so far.

    Most runs have no leak, and reading took 0.3 s of CPU beside a vLLM server. So it reads only while memory rises, and
    again only when another file, call of the model or update is seen. It reads in a thread of its own, as the files may
    lie on a file system that hangs. Each file is loaded once, as a process that runs it sees it. Processes that see the
    same files as process `pid` share that one's view.
    """

    def __init__(self, pid: int, emit: Callable[[Event], None]) -> None:
        self._pid = pid
        self._emit = emit
        # By file: a process that runs it, and the text that was loaded.
        self._files: dict[str, int] = {}
        self._texts: dict[str, str | None] = {}
        self._models: set[Line] = set()
        self._steps: set[Line] = set()
        self._reader: threading.Thread | None = None

    def consider(self, snapshot: Snapshot) -> None:
        """Begin to read if memory rises, the stacks show what is new, and no reading is under way."""
        reading = self._reader is not None and self._reader.is_alive()
        if reading or not rises(snapshot) or not self._learn(snapshot):
            return
        arguments = dict(self._files), frozenset(self._models), frozenset(self._steps)
        self._reader = threading.Thread(target=self._read, args=arguments, name="aitop-growth", daemon=True)
        self._reader.start()

    def _learn(self, snapshot: Snapshot) -> bool:
        """Note the user's files that run, and the lines that call or update the model. Returns whether any is new."""
        known = len(self._files), len(self._models), len(self._steps)
        for line in snapshot.stacks.lines if snapshot.stacks is not None else ():
            frames = [*((frame.file, frame.line) for frame in line.via), (line.file, line.line)]
            for file, _ in frames:
                # In a server, the lines of libraries count where none of the user's is on the stack.
                if len(self._files) < MOST_FILES and is_user(file, script=None):
                    self._files.setdefault(file, line.pid)
            if line.phase in UPDATES:
                self._steps.update(frames[: line.callers])
            elif line.phase in ("forward", "evaluation"):
                self._models.update(frames[: line.callers])
        return known != (len(self._files), len(self._models), len(self._steps))

    def _read(self, files: Mapping[str, int], models: frozenset[Line], steps: frozenset[Line]) -> None:
        code = CodeOfProcesses()
        code.of(self._pid)
        for file in files.keys() - self._texts.keys():
            self._texts[file] = code.of(files[file]).text(file)
        self._emit(GrowthSites(time=time.monotonic(), sites=growth_sites(self._texts, models, steps)))
