"""Who holds the interpreter's lock, and who is on a core: when to ask, and what the answer says."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.stacks import GilHold
from aitop.sources.stacks.speedscope import ThreadSamples

# Once in so many windows both are asked even of a process in which only the main thread was seen to hold the lock.
RARELY = 6
CONTENDED = 0.04
# It is asked on for so many windows after the last sight: a thread may work in bursts.
GOES_ON = 3


class GilWatch:
    """Asks in the first windows, then in every one while other threads than the main one hold the lock, else rarely.

    `cores`: the next window should also ask who is on a core, which it does in the first windows and then rarely.
    """

    def __init__(self) -> None:
        self.cores = False
        self._waited = RARELY
        self._found = 0

    def due(self, *, first: bool = False) -> bool:
        """Whether the next window, which is one of the `first`, should ask. Each call counts as one window."""
        self._waited += 1
        self.cores = first or self._waited >= RARELY
        if self.cores:
            self._waited = 0
        elif not self._found:
            return False
        self._found = max(0, self._found - 1)
        return True

    def taken(self, pid: int, threads: Sequence[ThreadSamples], asked: int) -> tuple[GilHold, ...]:
        """What was seen in a window that looked `asked` times at process `pid`. Threads of one name are one."""
        samples: dict[tuple[str, bool], int] = {}
        for thread in threads:
            key = thread.name, thread.main
            samples[key] = samples.get(key, 0) + thread.stacks.total()
        held = sum(count for (_, main), count in samples.items() if not main)
        # A single sample of a short window says little.
        if held > max(1.0, CONTENDED * asked):
            self._found = GOES_ON
        return tuple(
            GilHold(pid, name, main, count, max(asked, count)) for (name, main), count in samples.items() if count
        )
