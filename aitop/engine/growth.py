"""Reads the code that the target was seen to run, to name lines that make something longer at every step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from aitop.model.event import Event
from aitop.model.snapshot import GrowthSites
from aitop.model.stacks import StackWindow
from aitop.sources.code import growth_sites, may_train

MOST_FILES = 30


class GrowthFinder:
    """Looks at the user's files named by stack windows, each once, and emits the sites of all seen so far.

    Reading happens in a thread of its own: the files may lie on a file system that hangs.
    """

    def __init__(self, pid: int, emit: Callable[[Event], None]) -> None:
        self._pid = pid
        self._emit = emit
        self._files: tuple[str, ...] = ()
        self._reader: threading.Thread | None = None

    def consider(self, window: StackWindow) -> None:
        """Begin to read the files that are new in this window, unless a reading is still under way."""
        if self._reader is not None and self._reader.is_alive():
            return
        running = {index for stack in window.stacks if stack.main for index in stack.frames}
        files = {window.frames[index].file for index in running if window.frames[index].user}
        new = sorted(files - set(self._files))
        if not new or len(self._files) >= MOST_FILES:
            return
        self._files = (*self._files, *new)[:MOST_FILES]
        self._reader = threading.Thread(target=self._read, args=(self._files,), name="aitop-growth", daemon=True)
        self._reader.start()

    def _read(self, files: tuple[str, ...]) -> None:
        trains = may_train(self._pid, files)
        self._emit(GrowthSites(time=time.monotonic(), sites=growth_sites(self._pid, files), may_train=trains))
