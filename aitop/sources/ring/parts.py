"""Where the time of a step, or of a part of one, went. All times are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aitop.model.steps import StepKind
from aitop.protocol.events import NOT_MEASURED

NS = 1e-9
MOST_COUNTED = 10**15
# Fields of Parts that every step has, and those that it has only with a certain watch (see HookFacts), by that watch.
PHASES = ("data_wait", "loader_start", "forward", "backward", "optimizer", "save", "evaluation", "gc")
WATCHED = {
    "transfer": ("transfer", "transfer_apart", "transfer_bytes"),
    "blocking": ("blocking", "blockings"),
    "collective": ("communication", "communication_apart", "collectives"),
}
# Of these, the ones that are not times.
COUNTS = ("transfer_bytes", "blockings", "collectives")
_CALLS = (
    "forwards", "backwards", "no_grad_forwards", "no_grad_samples", "evaluation_forwards", "evaluation_samples",
)  # fmt: skip
_SUMS = (*PHASES, *(name for names in WATCHED.values() for name in names), "no_grad", *_CALLS)
_TIMES = ("prepare", *(name for name in _SUMS if name not in (*COUNTS, *_CALLS)))


@dataclass(slots=True)
class Parts:
    """Nanoseconds, bytes and counts of a step or of a part of one.

    `transfer_apart` and `communication_apart` are the parts of `transfer` and `communication` outside of the phases.
    `no_grad` is the part of `forward` without gradient: `no_grad_forwards` calls, which took `no_grad_samples` samples
    together; those of `evaluation` are counted alike. `prepare` is the time from the start of a training step to its
    first forward that is in no phase. `calls` has the lengths of its collectives, in order; a wait counts as a part of
    the call before it. `others` are phases with an event of their own, by their key (see model.phases).
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
    transfer: int = 0
    transfer_apart: int = 0
    blocking: int = 0
    communication: int = 0
    communication_apart: int = 0
    no_grad: int = 0
    forwards: int = 0
    backwards: int = 0
    no_grad_forwards: int = 0
    no_grad_samples: int = 0
    evaluation_forwards: int = 0
    evaluation_samples: int = 0
    transfer_bytes: int = 0
    blockings: int = 0
    collectives: int = 0
    samples: int = NOT_MEASURED
    tokens: int = NOT_MEASURED
    tokens_again: int = NOT_MEASURED
    queue_ready: int = NOT_MEASURED
    calls: list[int] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)

    def scaled(self, scale: float) -> Parts:
        """Return the parts with scaled times and the same counts, without single calls."""
        times = {name: int(getattr(self, name) * scale) for name in _TIMES}
        others = {key: int(length * scale) for key, length in self.others.items()}
        return replace(self, calls=[], others=others, **times)

    def joined(self, later: Parts) -> Parts:
        """Return the sum with a later part of the same step. `prepare` and `queue_ready` are those of the first."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMS}
        return replace(
            self,
            samples=added(self.samples, later.samples),
            tokens=added(self.tokens, later.tokens),
            queue_ready=self.queue_ready if self.queue_ready >= 0 else later.queue_ready,
            calls=self.calls + later.calls,
            others={key: self.others.get(key, 0) + later.others.get(key, 0) for key in {**self.others, **later.others}},
            **sums,
        )


NOTHING = Parts()
"""What no event has added to. It must not be changed."""


class Closed(NamedTuple):
    """A training step up to the end of its last optimizer step so far; with several optimizers, more may follow."""

    end: int
    parts: Parts
    cpu: int = NOT_MEASURED
    timing: tuple[int, ...] | None = None
    skipped: bool = False


class Made(NamedTuple):
    """A finished step.

    `timing` are the numbers under which the device's times come, None where it was not timed. The parts of a step that
    is `estimated` were not measured. `plain`: it is a forward without gradient, and nothing else was noted in it.
    """

    number: int
    kind: StepKind
    end: int
    length: int
    parts: Parts
    cpu: int = NOT_MEASURED
    timing: tuple[int, ...] | None = None
    skipped: bool = False
    estimated: bool = False
    plain: bool = False


def added(one: int, other: int) -> int:
    """Return the sum of those that were measured."""
    return max(one, 0) + max(other, 0) if max(one, other) >= 0 else NOT_MEASURED


def seconds_of(value: int, longest: int) -> float | None:
    """Nanoseconds as seconds, `longest` ns at most; None where they were not measured."""
    return None if value < 0 else min(value, longest) * NS


def count_of(value: int) -> int | None:
    """A count; None where it was not measured or cannot be one."""
    return value if 0 <= value <= MOST_COUNTED else None
