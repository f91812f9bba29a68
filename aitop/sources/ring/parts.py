"""Where the time of a step, or of a part of one, went. All times are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from typing import Any, NamedTuple

from aitop.model.steps import StepKind
from aitop.protocol.events import NOT_MEASURED


class Parts(NamedTuple):
    """Nanoseconds, bytes and counts of a step or of a part of one.

    `calls` has the lengths of its collectives, in order; a wait counts as a part of the call before it.
    """

    data_wait: int = 0
    loader_start: int = 0
    prepare: int = 0
    forward: int = 0
    backward: int = 0
    optimizer: int = 0
    save: int = 0
    evaluation: int = 0
    gc: int = 0
    forwards: int = 0
    backwards: int = 0
    transfer: int = 0
    transfer_apart: int = 0
    transfer_bytes: int = 0
    blocking: int = 0
    blockings: int = 0
    communication: int = 0
    communication_apart: int = 0
    collectives: int = 0
    samples: int = NOT_MEASURED
    tokens: int = NOT_MEASURED
    queue_ready: int = NOT_MEASURED
    calls: tuple[int, ...] = ()


class Closed(NamedTuple):
    """A step of several optimizers, up to the end of the last of their steps so far."""

    end: int
    parts: Parts
    cpu: int
    timing: tuple[int, ...] | None
    skipped: bool


class Made(NamedTuple):
    """A finished step.

    `timing` are the numbers under which the device's times come, None where it was not timed. The parts of a step that
    is `estimated` were not measured.
    """

    number: int
    kind: StepKind
    end: int
    length: int
    parts: Parts
    cpu: int = NOT_MEASURED
    timing: tuple[int, ...] | None = None
    skipped: bool = False
    first_token: int = NOT_MEASURED
    estimated: bool = False


def join(one: Parts, other: Parts) -> Parts:
    """Return the sum of two parts of one step. `prepare` and `queue_ready` are those of the first one."""
    firsts: tuple[Any, ...] = one
    added = Parts(*(first + second for first, second in zip(firsts, other, strict=True)))
    return added._replace(
        prepare=one.prepare,
        samples=_added(one.samples, other.samples),
        tokens=_added(one.tokens, other.tokens),
        queue_ready=one.queue_ready if one.queue_ready >= 0 else other.queue_ready,
    )


def _added(one: int, other: int) -> int:
    """Return the sum of those that were measured."""
    return max(one, 0) + max(other, 0) if max(one, other) >= 0 else NOT_MEASURED
