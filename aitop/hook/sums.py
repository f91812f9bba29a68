"""Where the time of a step, or of a part of one, went. All times are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import layout as at

# data_wait, loader_start, prepare, forward, backward, optimizer, save, evaluation, gc, forwards, backwards, samples,
# queue_ready
Parts = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]


class Closed(NamedTuple):
    """What a step of several optimizers has come to, up to the last of their steps."""

    end: int
    parts: Parts
    cpu: int
    timing: Any


class Sums:
    """The sums since `mark`. `known` is all that is accounted for, what is held back included.

    Waits for data (`held_wait`, `held_start`) and forwards without gradient (`held_forward`) are held back until it is
    known what they were for. `batch` is the largest leading dimension of the forwards since the last backward.
    """

    __slots__ = (
        "backward",
        "backwards",
        "batch",
        "data_wait",
        "evaluating",
        "evaluation",
        "forward",
        "forwards",
        "gc",
        "had_held",
        "held_forward",
        "held_forwards",
        "held_ready",
        "held_start",
        "held_wait",
        "known",
        "loader_start",
        "mark",
        "next_end",
        "optimizer",
        "prepare",
        "queue_ready",
        "regular_held",
        "samples",
        "save",
    )

    def __init__(self) -> None:
        self.regular_held = self.had_held = False
        self.evaluating = False
        self.drop_held()
        self.clear(0)

    def drop_held(self) -> None:
        self.held_wait = self.held_start = self.held_forward = self.held_forwards = 0
        self.held_ready = at.NOT_MEASURED

    def clear(self, mark: int) -> None:
        """Begin anew at `mark`; what is held back stays."""
        self.mark = mark
        self.known = self.held_wait + self.held_start + self.held_forward
        self.data_wait = self.loader_start = self.prepare = self.forward = self.backward = 0
        self.optimizer = self.save = self.evaluation = self.gc = 0
        self.forwards = self.backwards = 0
        self.next_end = 0
        self.samples = self.batch = at.NOT_MEASURED
        self.queue_ready = at.NOT_MEASURED

    def settle_training(self) -> None:
        """The batch is trained on. Forwards without gradient belong to the step if the last one had them too."""
        if self.held_wait or self.held_start:
            self.data_wait += self.held_wait
            self.loader_start += self.held_start
            self.held_wait = self.held_start = 0
        if self.held_ready >= 0:
            if self.queue_ready < 0:
                self.queue_ready = self.held_ready
            self.held_ready = at.NOT_MEASURED
        if self.held_forwards:
            if self.regular_held:
                self.forward += self.held_forward
            else:
                self.evaluation += self.held_forward
            self.held_forward = self.held_forwards = 0
            self.had_held = True

    def settle_evaluation(self) -> None:
        """The batch only met forwards without gradient."""
        self.evaluation += self.held_wait + self.held_start + self.held_forward
        self.held_wait = self.held_start = self.held_forward = self.held_forwards = 0
        self.held_ready = at.NOT_MEASURED
        self.evaluating = True

    def parts(self) -> Parts:
        return (
            self.data_wait,
            self.loader_start,
            self.prepare,
            self.forward,
            self.backward,
            self.optimizer,
            self.save,
            self.evaluation,
            self.gc,
            self.forwards,
            self.backwards,
            self.samples,
            self.queue_ready,
        )


def join(one: Parts, other: Parts) -> Parts:
    """Two parts of one step. The step prepared once, and its queue was looked at when it began."""
    added = [first + second for first, second in zip(one, other, strict=True)]
    added[2] = one[2]
    added[11] = max(one[11], 0) + max(other[11], 0) if max(one[11], other[11]) >= 0 else at.NOT_MEASURED
    added[12] = one[12] if one[12] >= 0 else other[12]
    return tuple(added)  # type: ignore[return-value]
