"""Reads the code that the target was seen to run, to name lines that make something longer at every step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from aitop.diagnosis.conditions.memory import rises
from aitop.model.event import Event
from aitop.model.snapshot import GrowthSites, Snapshot
from aitop.model.stacks import StackWindow
from aitop.sources.code.growth import growth_sites
from aitop.sources.stacks.window import CodeOfProcesses

MOST_FILES = 30


class GrowthFinder:
    """Looks at the user's files named by stack windows, each once, and emits the sites of all seen so far.

    Most runs have no leak, and reading took 0.3 s of CPU beside a vLLM server: so it is done only while memory rises.
    Reading happens in a thread of its own: the files may lie on a file system that hangs. Each is read as the process
    that runs it sees it; those that see the same as process `pid`, as that one.
    """

    def __init__(self, pid: int, emit: Callable[[Event], None]) -> None:
        self._pid = pid
        self._emit = emit
        # With the process as which each is read: those that run, and those that were read.
        self._seen: dict[str, int] = {}
        self._files: dict[str, int] = {}
        self._reader: threading.Thread | None = None

    def saw(self, window: StackWindow) -> None:
        """Note the files of the user's that run."""
        # The eldest lives longest: a worker may be gone before it is read.
        stacks = sorted((stack for stack in window.stacks if stack.main), key=lambda stack: -stack.pid)
        running = {index: stack.pid for stack in stacks for index in stack.frames}
        files = {window.frames[index].file: pid for index, pid in running.items() if window.frames[index].user}
        for file, pid in sorted(files.items()):
            if file in self._seen or len(self._seen) < MOST_FILES:
                self._seen[file] = pid

    def consider(self, snapshot: Snapshot) -> None:
        """Begin to read the files that are new, if memory rises and no reading is under way."""
        reading = self._reader is not None and self._reader.is_alive()
        if reading or self._seen.keys() == self._files.keys() or not rises(snapshot):
            return
        self._files |= {file: pid for file, pid in self._seen.items() if file not in self._files}
        self._reader = threading.Thread(target=self._read, args=(dict(self._files),), name="aitop-growth", daemon=True)
        self._reader.start()

    def _read(self, files: Mapping[str, int]) -> None:
        code = CodeOfProcesses()
        code.of(self._pid)
        readers = {file: code.of(pid) for file, pid in files.items()}
        self._files |= {file: reader.process.pid for file, reader in readers.items()}
        texts = {file: reader.text(file) for file, reader in readers.items()}
        self._emit(GrowthSites(time=time.monotonic(), sites=growth_sites(texts)))
