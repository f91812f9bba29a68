"""Measures what the hook costs: its wrappers around empty functions, now and then, and each of its ticks."""

from __future__ import annotations

import _thread
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from .journal import PHASES_SKIPPED, Journal
from .optimizer import optimizer_hooks
from .phases import wrap_backward, wrap_forward, wrap_next

SAMPLES = 15
WARM_PASSES = 1
FIRST_ROUNDS = 5
# Not at once: coming in has held up the run already.
FIRST_AFTER_NS = 100_000_000
FIRST_EVERY_NS, EVERY_NS = 1_000_000_000, 30_000_000_000
# More than fits into the caches of a core.
COLD_BYTES = 5 << 18

_now = time.monotonic_ns


def cpu_clock(most_ns: int) -> Callable[[], int]:
    """Return the CPU clock of the calling thread; a clock that is always -1 if reading takes over `most_ns`."""
    clock = time.thread_time_ns
    best = min(_timed(clock) for _ in range(5))
    return clock if best <= most_ns else lambda: -1


def _timed(call: Callable[[], Any], rounds: int = 20) -> float:
    start = _now()
    for _ in range(rounds):
        call()
    return (_now() - start) / rounds


class SelfTimer:
    """Gives the mean cost of a step: the wrappers' time in steps that are timed and in steps that are counted, and the
    ticks' time.

    Between entering a wrapper and leaving it, a step fills the processor's caches with something else. So does a round
    of measurements, which takes a millisecond.
    """

    def __init__(self) -> None:
        self._scratch = _Scratch()
        self._timed: deque[int] = deque(maxlen=SAMPLES)
        self._counted: deque[int] = deque(maxlen=SAMPLES)
        self._ticks: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES)
        self._due = _now() + FIRST_AFTER_NS

    def look(self, now: int) -> None:
        """Measure a round if it is time. Called a few times a second."""
        if now > self._due:
            self._due = now + (FIRST_EVERY_NS if len(self._timed) < FIRST_ROUNDS else EVERY_NS)
            self._round()

    def _round(self) -> None:
        with self._scratch as scratch:
            # The first pass only warms up: what a run does in each step is never as cold as a first call.
            for _ in range(WARM_PASSES + 1):
                plain, timed, counted = scratch.plain_step(), scratch.timed_step(), scratch.counted_step()
        self._timed.append(max(0, timed - plain))
        self._counted.append(max(0, counted - plain))

    def ticked(self, timed: int, counted: int, length: int) -> None:
        """Add a tick that took `length` nanoseconds, and the steps since the last tick, timed and counted."""
        if timed + counted:
            self._ticks.append((timed, counted, length))

    def us_per_step(self) -> float | None:
        """Return microseconds, None before the first round. Of medians: a measurement may have been preempted."""
        if not self._timed:
            return None
        timed, counted = (sum(tick[at] for tick in self._ticks) for at in (0, 1))
        steps = max(1, timed + counted)
        ticks = _median([tick[2] for tick in self._ticks]) * len(self._ticks) / steps if self._ticks else 0.0
        share = counted / steps
        cost = (1 - share) * _median(self._timed) + share * _median(self._counted)
        return round((cost + ticks) / 1000, 2)


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class _Scratch:
    """A keeper of its own, with wrappers around a function that fills the caches, and a journal that nobody reads."""

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
        self._next = wrap_next(self._inside, self)
        self._forward = wrap_forward(self._inside, self)
        self._backward = wrap_backward(self._inside, self)
        self._before, self._after = optimizer_hooks(self)

    def __enter__(self) -> _Scratch:
        # Not zeros, for which the kernel may map one page again and again.
        self._cold = b"\1" * COLD_BYTES
        return self

    def __exit__(self, *error: object) -> None:
        self._cold = b""

    def plain_step(self) -> int:
        """Return the nanoseconds of the calls that a step makes anyway."""
        return sum(self._around(self._inside) for _ in range(3)) + 2 * self._around(_nothing, self, (self,), {})

    def timed_step(self) -> int:
        """Return the nanoseconds of the same calls through the wrappers, as in a fast run."""
        journal = self.journal
        journal.fast, journal.skip, journal.cpu_reads = True, PHASES_SKIPPED, 0
        length = self._through_wrappers()
        journal.take()
        return length

    def counted_step(self) -> int:
        """Return the same for a step that is only counted."""
        journal = self.journal
        journal.optimizer, journal.skip = id(self), 1
        journal.longest = journal.count_until = _now() + 10**15
        journal.counting = True
        length = self._through_wrappers()
        journal.counting = False
        journal.optimizer = 0
        return length

    def _through_wrappers(self) -> int:
        around = self._around
        length = around(self._next, self) + around(self._forward, self) + around(self._backward, self)
        return length + around(self._before, self, (self,), {}) + around(self._after, self, (self,), {})

    def _around(self, call: Callable[..., Any], *args: Any) -> int:
        """Return how long it took to get in and out again, each after the caches were filled."""
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
        """Nothing: then the measurement is of no use, but does no harm."""

    def not_owner(self, training: bool = False) -> bool:
        self.journal.owner = _thread.get_ident()
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
