"""What the hook costs: measured when it goes in, on its own wrappers around nothing, and while records are written."""

from __future__ import annotations

import _thread
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import wrappers
from .journal import Journal

ROUNDS = 15
SAMPLES = 15
# More than the caches next to a core hold.
COLD_BYTES = 1 << 20

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


def _timed_cold(call: Callable[[], None], cold: bytes) -> int:
    """Nanoseconds of a call after the caches were filled with something else, as a step of a model does."""
    cold.count(1)
    start = _now()
    call()
    return _now() - start


class SelfTimer:
    """The wrappers' time from a calibration around nothing, and the ticks' time from the ticks themselves."""

    def __init__(self) -> None:
        self._wrappers: float | None = None
        self._ticks: deque[float] = deque(maxlen=SAMPLES)

    def calibrate(self) -> None:
        """Time a step of nothing with the wrappers and without (about a millisecond), each with cold caches."""
        scratch = _Scratch()
        cold = bytes(COLD_BYTES)
        plain = sorted(_timed_cold(scratch.plain_step, cold) for _ in range(ROUNDS))[ROUNDS // 2]
        wrapped = sorted(_timed_cold(scratch.wrapped_step, cold) for _ in range(ROUNDS))[ROUNDS // 2]
        self._wrappers = max(0.0, wrapped - plain)

    def ticked(self, steps: int, length: int) -> None:
        """A tick after so many more steps took so many nanoseconds."""
        if steps:
            self._ticks.append(length / steps)

    def us_per_step(self) -> float | None:
        """None before the calibration. The median: a tick that was put off the processor has not cost so much."""
        if self._wrappers is None:
            return None
        ticks = sorted(self._ticks)
        return round((self._wrappers + (ticks[len(ticks) // 2] if ticks else 0.0)) / 1000, 2)


class _Scratch:
    """A keeper whose wrappers stand around functions that do nothing, and whose journal nobody reads."""

    def __init__(self) -> None:
        self.journal = Journal(time.thread_time_ns, lambda now: None)
        self.journal.due = _now() + 10**12
        self.compiling: Callable[[], bool] = lambda: False
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.tensor: Any = int
        self.iterators: dict[int, Callable[[Any], int] | None] = {id(self): None}
        self.optimizers: dict[int, Any] = {id(self): None}
        self.traced: Callable[[], Any] = lambda: None
        self.local: Any = None
        self._next = wrappers.wrap_next(_nothing, self)
        self._forward = wrappers.wrap_forward(_nothing, self)
        self._backward = wrappers.wrap_backward(_nothing, self)
        self._before, self._after = wrappers.optimizer_hooks(self)

    def plain_step(self) -> None:
        _nothing(self)
        _nothing(self)
        _nothing(self)

    def wrapped_step(self) -> None:
        self._next(self)
        self._forward(self)
        self._backward(self)
        self._before(self, (), {})
        self._after(self, (), {})

    def failed(self) -> None:
        """The timing is of no use then, and harms nothing."""

    def not_owner(self, training: bool = False) -> bool:
        self.journal.own(_thread.get_ident())
        return False

    def aside(self, call: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        return call(module, *args, **kwargs)

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
