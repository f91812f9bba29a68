"""What the hook costs: measured on its own wrappers around nothing, now and then, and while events are written."""

from __future__ import annotations

import _thread
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from . import wrappers
from .journal import PHASES_SKIPPED, Journal
from .stepping import optimizer_hooks

SAMPLES = 15
WARM_PASSES = 1
FIRST_ROUNDS = 5
# Coming in has made the run wait already.
FIRST_AFTER_NS = 100_000_000
FIRST_EVERY_NS, EVERY_NS = 1_000_000_000, 30_000_000_000
# More than the caches next to a core hold.
COLD_BYTES = 5 << 18

_now = time.monotonic_ns


def cpu_clock(dearest: int) -> Callable[[], int]:
    """The CPU clock of the calling thread; one that always says -1 where reading takes over `dearest` nanoseconds."""
    clock = time.thread_time_ns
    best = min(_timed(clock) for _ in range(5))
    return clock if best <= dearest else lambda: -1


def _timed(call: Callable[[], Any], rounds: int = 20) -> float:
    start = _now()
    for _ in range(rounds):
        call()
    return (_now() - start) / rounds


class SelfTimer:
    """The wrappers' time from calls around nothing, and the ticks' time from the ticks themselves. In a rest (rest.py)
    steps cost less: the figure is the mean of those in rests and those that were timed.

    Between entering a wrapper and leaving it a step fills the processor's caches with something else. So does a round,
    which times both ways, and takes a millisecond.
    """

    def __init__(self) -> None:
        self._scratch = _Scratch()
        self._timed: deque[int] = deque(maxlen=SAMPLES)
        self._rested: deque[int] = deque(maxlen=SAMPLES)
        self._ticks: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES)
        self._due = _now() + FIRST_AFTER_NS

    def look(self, now: int, deep: bool = False) -> None:
        """Called a few times a second: a round now and then, the first ones sooner. `deep`: rests are deep."""
        if now > self._due:
            self._due = now + (FIRST_EVERY_NS if len(self._timed) < FIRST_ROUNDS else EVERY_NS)
            self._round(deep)

    def _round(self, deep: bool) -> None:
        with self._scratch as scratch:
            # What a run does in each step is never so cold as what was not done for a second.
            for _ in range(WARM_PASSES + 1):
                plain, timed, rested = scratch.plain_step(), scratch.wrapped_step(), scratch.rested_step(deep)
        self._timed.append(max(0, timed - plain))
        self._rested.append(max(0, rested - plain))

    def ticked(self, timed: int, rested: int, length: int) -> None:
        """A tick after so many more steps, timed ones and those in rests, took so many nanoseconds."""
        if timed + rested:
            self._ticks.append((timed, rested, length))

    def us_per_step(self) -> float | None:
        """None before the first round. Medians: what was put off the processor has not cost so much."""
        if not self._timed:
            return None
        timed, rested = (sum(tick[at] for tick in self._ticks) for at in (0, 1))
        steps = max(1, timed + rested)
        ticks = _median([tick[2] for tick in self._ticks]) * len(self._ticks) / steps if self._ticks else 0.0
        share = rested / steps
        cost = (1 - share) * _median(self._timed) + share * _median(self._rested)
        return round((cost + ticks) / 1000, 2)


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class _Scratch:
    """A keeper whose wrappers stand around a function that fills the caches, and whose journal nobody reads."""

    def __init__(self) -> None:
        self.journal = Journal(time.thread_time_ns, lambda now: None)
        self.journal.due = _now() + 10**15
        self.compiling: Callable[[], bool] = lambda: False
        self.traced: Callable[[], Any] = lambda: None
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.tensor: Any = int
        self.iterators: Any = {}
        self.optimizers: Any = {id(self): None}
        self.local: Any = None
        self._cold = b""
        self._began = self._ended = 0
        self._next = wrappers.wrap_next(self._inside, self)
        self._forward = wrappers.wrap_forward(self._inside, self)
        self._backward = wrappers.wrap_backward(self._inside, self)
        self._before, self._after = optimizer_hooks(self)

    def __enter__(self) -> _Scratch:
        # Not zeros, which are the same few bytes of memory again and again.
        self._cold = b"\1" * COLD_BYTES
        return self

    def __exit__(self, *error: object) -> None:
        self._cold = b""

    def plain_step(self) -> int:
        """Nanoseconds of the calls that a step makes anyway."""
        return sum(self._around(self._inside) for _ in range(3)) + 2 * self._around(_nothing, self, (self,), {})

    def wrapped_step(self) -> int:
        """Nanoseconds of the same calls through the wrappers, as in a fast run."""
        journal = self.journal
        journal.fast, journal.skip, journal.cpu_reads = True, PHASES_SKIPPED, 0
        length = self._through_wrappers()
        journal.take()
        return length

    def rested_step(self, deep: bool) -> int:
        """The same in a rest."""
        journal = self.journal
        journal.deep = 8 if deep else 0
        journal.optimizer = id(self)
        journal.longest = journal.rests_until = _now() + 10**15
        journal.resting = True
        length = self._through_wrappers()
        journal.resting = False
        journal.optimizer = journal.deep = 0
        return length

    def _through_wrappers(self) -> int:
        around = self._around
        length = around(self._next, self) + around(self._forward, self) + around(self._backward, self)
        return length + around(self._before, self, (self,), {}) + around(self._after, self, (self,), {})

    def _around(self, call: Callable[..., Any], *args: Any) -> int:
        """How long it took to get in and out again, each after the caches were filled."""
        self._began = self._ended = 0
        self._cold.find(0)
        start = _now()
        call(*args)
        end = _now()
        return end - start if not self._began else self._began - start + end - self._ended

    def _inside(self, *args: Any, **kwargs: Any) -> None:
        self._began = _now()
        self._cold.find(0)
        self._ended = _now()

    def failed(self) -> None:
        """The timing is of no use then, and harms nothing."""

    def not_owner(self, training: bool = False) -> bool:
        self.journal.own(_thread.get_ident())
        return False

    def aside(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return call(*args, **kwargs)

    def met_iterator(self, iterator: Any) -> None:
        """All are known."""

    def met_optimizer(self, optimizer: Any) -> None:
        """All are known."""

    def met_module(self, module: Any) -> bool:
        return True

    def count_ops(self, arguments: tuple[Any, ...]) -> None:
        """Nothing to count."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass
