"""What the hook costs: measured when it goes in, on its own wrappers around nothing, and while records are written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import wrappers
from .steps import Steps

ROUNDS = 60
SAMPLE_EVERY = 16
WEIGHT = 0.1

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
    """The wrappers' cost from a calibration, and that of writing a record from every sixteenth step."""

    def __init__(self) -> None:
        self._wrappers: float | None = None
        self._write: float | None = None
        self._count = 0

    def calibrate(self) -> None:
        """Time a step of nothing with the wrappers and without (about a millisecond)."""
        scratch = _Scratch()
        plain = min(_timed(scratch.plain_step) for _ in range(3))
        wrapped = sorted(_timed(scratch.wrapped_step, 1) for _ in range(ROUNDS))[ROUNDS // 2]
        self._wrappers = max(0.0, wrapped - plain)

    def begin(self) -> int:
        """The time, on a step whose record is to be timed; else 0."""
        self._count += 1
        return 0 if self._count % SAMPLE_EVERY else _now()

    def end(self, begun: int) -> None:
        spent = _now() - begun
        self._write = spent if self._write is None else self._write + WEIGHT * (spent - self._write)

    def us_per_step(self) -> float | None:
        if self._wrappers is None:
            return None
        return round((self._wrappers + (self._write or 0.0)) / 1000, 2)


class _Scratch:
    """A keeper whose wrappers stand around functions that do nothing, and whose records go nowhere."""

    def __init__(self) -> None:
        self.steps = Steps(lambda timing, fields: None, time.thread_time_ns)
        self.steps.look_due = _now() + 10**12
        self.compiling: Callable[[], bool] = lambda: False
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.tensor: type = int
        self.iterators: dict[int, Callable[[Any], int | None] | None] = {id(self): None}
        self.optimizers: dict[int, Any] = {id(self): None}
        self._next = wrappers.wrap_next(_nothing, self)
        self._forward = wrappers.wrap_forward(_nothing, self, watching=False)
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
