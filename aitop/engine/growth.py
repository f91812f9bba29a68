"""Reads the code that the target was seen to run, to name lines that make something longer at every step."""

from __future__ import annotations

import time
from collections.abc import Callable

from aitop.model.event import Event
from aitop.model.snapshot import GrowthSites
from aitop.model.stacks import StackWindow
from aitop.sources.code import growth_sites

MOST_FILES = 30


class GrowthFinder:
    """Looks at the user's files named by a stack window, each once, and emits what was found."""

    def __init__(self, pid: int, emit: Callable[[Event], None]) -> None:
        self._pid = pid
        self._emit = emit
        self._files: tuple[str, ...] = ()

    def consider(self, window: StackWindow) -> None:
        """Read the files that are new in this window; emits the sites of all files seen so far."""
        running = {index for stack in window.stacks if stack.main for index in stack.frames}
        files = {window.frames[index].file for index in running if window.frames[index].user}
        new = sorted(files - set(self._files))
        if not new or len(self._files) >= MOST_FILES:
            return
        self._files = (*self._files, *new)[:MOST_FILES]
        self._emit(GrowthSites(time=time.monotonic(), sites=growth_sites(self._pid, self._files)))
