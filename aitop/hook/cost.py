"""What the hook costs: measured when it goes in, on its own wrappers around nothing, and while records are written."""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import layout as at
from . import wrappers
from .device import UNKNOWN
from .steps import Steps

ROUNDS = 60
SAMPLES, FEWEST_SAMPLES = 15, 5

_now = time.monotonic_ns


def cpu_clock(dearest: int) -> Callable[[], int] | None:
    """The CPU clock of the calling thread, None where reading it takes more than `dearest` nanoseconds."""
    clock = time.thread_time_ns
    best = min(_timed(clock) for _ in range(5))
    return clock if best <= dearest else None


def _timed(call: Callable[[], Any], rounds: int = 20) -> float:
    start = _now()
    for _ in range(rounds):
        call()
    return (_now() - start) / rounds


class SelfTimer:
    """Times a whole step of the hook around nothing, and in the live loop the part of it that ends a step.

    In the loop the caches are cold, so that the live part takes longer than the same part of the calibration did; the
    whole is taken to be longer by the same factor.
    """

    def __init__(self) -> None:
        self._whole: float | None = None
        self._end = 1.0
        self._live_ends: deque[int] = deque(maxlen=SAMPLES)

    def calibrate(self) -> None:
        """Time a step of nothing with the wrappers and without (about a millisecond)."""
        scratch = _Scratch()
        plain = min(_timed(scratch.plain_step) for _ in range(3))
        both = sorted(scratch.wrapped_step() for _ in range(ROUNDS))[ROUNDS // 2]
        self._whole = max(0.0, both[0] - plain)
        self._end = max(1.0, both[1])

    def note(self, length: int) -> None:
        """The end of a step took so many nanoseconds in the live loop."""
        self._live_ends.append(length)

    def us_per_step(self) -> float | None:
        """None before the calibration. The median: what was put off the processor meanwhile has not cost anything."""
        if self._whole is None:
            return None
        if len(self._live_ends) < FEWEST_SAMPLES:
            return round(self._whole / 1000, 2)
        live = sorted(self._live_ends)[len(self._live_ends) // 2]
        return round(self._whole * live / self._end / 1000, 2)


class _Scratch:
    """A keeper whose wrappers stand around functions that do nothing, and whose records go nowhere."""

    def __init__(self) -> None:
        self.steps = Steps(time.thread_time_ns)
        self.steps.look_due = _now() + 10**12
        self._room = bytearray(at.STRIDE)
        self._pack = struct.Struct(at.RECORD_FORMAT).pack_into
        self.compiling: Callable[[], bool] = lambda: False
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.tensor: type = int
        self.iterators: dict[int, Callable[[Any], int] | None] = {id(self): None}
        self.optimizers: dict[int, Any] = {id(self): None}
        self.backwards_to_count = 0
        self._next = wrappers.wrap_next(_nothing, self)
        self._forward = wrappers.wrap_forward(_nothing, self, watching=False)
        self._backward = wrappers.wrap_backward(_nothing, self)
        self._before, self._after = wrappers.optimizer_hooks(self)

    def plain_step(self) -> None:
        _nothing(self)
        _nothing(self)
        _nothing(self)

    def wrapped_step(self) -> tuple[int, int]:
        """Nanoseconds of a whole step, and of its end."""
        start = _now()
        self._next(self)
        self._forward(self)
        self._backward(self)
        self._before(self, (), {})
        end = _now()
        self._after(self, (), {})
        *fields, _ = self.steps.records.pop() if self.steps.records else (*range(19), None)
        self._pack(self._room, 0, 1, *fields, *UNKNOWN, 1)
        after = _now()
        return after - start, after - end

    def failed(self) -> None:
        """The timing is of no use then, and harms nothing."""

    def not_owner(self, training: bool = False) -> bool:
        self.steps.owner = wrappers.current_thread()
        return False

    def aside(self, call: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        return call(module, *args, **kwargs)

    def met_iterator(self, iterator: Any) -> None:
        """All are known."""

    def met_optimizer(self, optimizer: Any) -> None:
        """All are known."""

    def met_module(self, module: Any) -> bool:
        return True

    def before_backward(self, arguments: tuple[Any, ...]) -> None:
        """Nothing to count."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass
