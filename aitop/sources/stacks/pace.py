"""How often to sample so that watching stays cheap, and when to look at which threads are on a core or hold the GIL."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from aitop.sources import procfs
from aitop.sources.stacks.speedscope import ThreadSamples

CORES = 0.015
CREDIT_SECONDS = 0.6
# A job that is one of many gets a window every NEW_EVERY_SECONDS in its first minute. That begins once it does more
# than import, which may take a minute where many start together, or SETUP_SECONDS after its start.
NEW_SECONDS, NEW_EVERY_SECONDS, SETUP_SECONDS = 50.0, 10.0, 300.0
# With fewer idle cores than this, sampling mostly takes its CPU time from the run.
SELDOM = 0.5
LEAST_PART = 0.25
LONGEST_INTERVAL = 8.0
# Children of py-spy in one window, each of which samples a process; and what one takes before any has been measured.
LEAST_CHILDREN, MOST_CHILDREN = 2, 8
CHILD_SECONDS = 0.05
# A job that is one of many has a small budget, however much is left of it.
CHILDREN_OF_PART = 3
# While there is credit, sampling is quicker, as few samples say little; at most QUICK_IN_ALL samples a second over all
# processes. Where stacks alone tell where time goes, it stays so until QUICK_SECONDS have been sampled.
QUICK_RATE, RATE = 50, 20
QUICK_IN_ALL = 150
QUICK_SECONDS, QUICK_CHILDREN = 15.0, 4

# One of this many windows looks at both GIL and cores, even where only the main thread was seen to hold the GIL.
FULL_LOOK_EVERY = 6
CONTENDED = 0.04
# How many more windows look at the GIL after another thread was last seen to hold it: a thread may work in bursts.
GOES_ON = 3


class IdleCores:
    """How many of the cores that this process may use are idle."""

    def __init__(self) -> None:
        self._before = self._read()

    def last(self) -> float:
        """The mean since the last call, or since the start."""
        (before, idle_before), self._before = self._before, self._read()
        now, idle = self._before
        return max(0.0, idle - idle_before) / (now - before) if now > before else 0.0

    @staticmethod
    def _read() -> tuple[float, float]:
        return time.monotonic(), procfs.idle_seconds(os.sched_getaffinity(0))


class Budget:
    """CPU time that sampling may take: CORES of a core, and CREDIT_SECONDS more at the start or after a rest.

    Times are monotonic seconds. `quick`: a picture is wanted soon, so the first windows are short and look often.
    If no core is idle, sampling takes CPU time away from the run, so it gets only LEAST_PART of the budget: then
    `seldom` is True. Until idle cores were measured it is None, and a window takes as little as if there were none.
    `alone`: nothing but stacks tells where time goes.
    """

    quick = True
    alone = True
    seldom: bool | None = None

    def __init__(self, now: float) -> None:
        self._left = CREDIT_SECONDS
        self._part = 1.0
        self._then = now
        self._child = CHILD_SECONDS
        self._sampled = 0.0

    @property
    def tight(self) -> bool:
        """Whether the credit is used up."""
        return self._left < 0

    @property
    def eager(self) -> bool:
        """Whether the next window should show as much as it can."""
        return self.quick and (not self.tight or (self.alone and self._sampled < QUICK_SECONDS))

    @property
    def children(self) -> int:
        """How many children of py-spy the budget pays for in the next window, by what those before took."""
        part = self._part if self.seldom is False else LEAST_PART
        affordable = max(0.0, min(self._left, part * CREDIT_SECONDS)) + part * CORES * LONGEST_INTERVAL
        least = QUICK_CHILDREN if self.alone and self.eager else LEAST_CHILDREN
        return max(least, min(MOST_CHILDREN, int(affordable / self._child)))

    def rate(self, processes: int) -> int:
        """Samples per second of each of these `processes` in the next window."""
        if not self.eager or self.seldom is not False:
            return RATE
        return max(RATE, min(QUICK_RATE, QUICK_IN_ALL // max(1, processes)))

    def found_idle(self, cores: float) -> None:
        """Take note of how many cores are idle."""
        self.seldom = cores < SELDOM
        self._part = LEAST_PART if self.seldom else 1.0
        self._left = min(self._left, CREDIT_SECONDS * self._part)

    def spend(self, cpu: float, started: float, now: float, *, children: int = 1, works: bool = True) -> float:
        """Account for a window that began at `started`, and took `cpu` seconds of CPU time with so many children.

        Returns the seconds from its start to the start of the next one; 0 for at once.
        `works`: earlier windows have shown more of the job than imports.
        """
        self._sampled += now - started
        if children:
            self._child = (self._child + cpu / children) / 2
        cores, credit = CORES * self._part, CREDIT_SECONDS * self._part
        self._left = min(credit, self._left + cores * (now - self._then)) - cpu
        self._then = now
        if self._left >= 0:
            return 0.0
        return min(LONGEST_INTERVAL, now - started - self._left / cores)


class SharedBudget:
    """CPU time that the stack sources of one process may take together: `cores` of a core.

    Each window is followed by a pause that is long enough to pay for it at `cores`. No source begins a window in that
    pause. So sources take turns, and the more there are, the less often each has one.
    """

    def __init__(self, cores: float) -> None:
        self._cores = cores
        self._free = 0.0
        self._lock = threading.Lock()

    def reserve(self, cpu: float, now: float) -> float:
        """When the next window that will cost about `cpu` seconds may begin."""
        with self._lock:
            begin = max(now, self._free)
            self._free = begin + cpu / self._cores
            return begin


class PartOfBudget(Budget):
    """The part of one source, and so of one job, in a SharedBudget.

    In the job's first minute it takes a window every NEW_EVERY_SECONDS, without putting off those of other jobs. After
    that it waits for its turn.
    """

    quick = False

    def __init__(self, shared: SharedBudget) -> None:
        super().__init__(0.0)
        self._shared = shared
        self._began: float | None = None
        self._old_from: float | None = None

    @property
    def tight(self) -> bool:
        return True

    @property
    def children(self) -> int:
        return CHILDREN_OF_PART

    def found_idle(self, cores: float) -> None:
        """Do nothing: the part is small whether cores are idle or not."""

    def spend(self, cpu: float, started: float, now: float, *, children: int = 1, works: bool = True) -> float:
        self._began = started if self._began is None else self._began
        if self._old_from is None or (not works and started < self._began + SETUP_SECONDS):
            self._old_from = started + NEW_SECONDS
        if started + NEW_EVERY_SECONDS < self._old_from:
            return NEW_EVERY_SECONDS
        return self._shared.reserve(cpu, now) - started


class GilWatch:
    """Decides which windows look at which thread holds the GIL, and at which threads are on a core.

    The first windows, and then every FULL_LOOK_EVERY-th, look at both. Other windows look at the GIL only, and only
    while threads other than the main one hold it. `cores`: the next window should look at both.
    """

    def __init__(self) -> None:
        self.cores = False
        self._waited = FULL_LOOK_EVERY
        self._found = 0

    def due(self, *, first: bool = False) -> bool:
        """Whether the next window, one of the `first` or not, should look at the GIL. Call it once for each window."""
        self._waited += 1
        self.cores = first or self._waited >= FULL_LOOK_EVERY
        if self.cores:
            self._waited = 0
        elif not self._found:
            return False
        self._found = max(0, self._found - 1)
        return True

    def saw(self, threads: Sequence[ThreadSamples], asked: int) -> None:
        """Take note of the threads that held the GIL in a window with `asked` looks at it."""
        held = sum(thread.stacks.total() for thread in threads if not thread.main)
        # A single sample of a short window says little.
        if held > max(1.0, CONTENDED * asked):
            self._found = GOES_ON
