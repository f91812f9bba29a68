"""Where the time of a step, or of a part of one, went. All times are nanoseconds of CLOCK_MONOTONIC."""

from __future__ import annotations

from typing import Any, NamedTuple

from aitop.model.steps import StepKind
from aitop.sources.step_maker.events import NOT_MEASURED

# Collectives between two phases; of more than these it is taken that they lie in none.
MOST_RECENT = 1024
# Calls of a step whose lengths are kept one by one; the last of these has what follows, too.
MOST_CALLS = 16


class Parts(NamedTuple):
    """Nanoseconds, bytes and counts of a step or of a part of one. `calls` has how long its collectives took, in order;
    what waits for one counts to the one before it.
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
    """What a step of several optimizers has come to, up to the last of their steps."""

    end: int
    parts: Parts
    cpu: int
    timing: tuple[int, ...] | None
    skipped: bool


class Made(NamedTuple):
    """A finished step. `timing` are the numbers under which the device's times come, None where it was not timed.
    The parts of one that is `estimated` were not measured.
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


class Sums:
    """The sums since `mark`. `known` is all that is accounted for, what is held back included.

    Waits for data (`held_wait`, `held_start`) and forwards without gradient (`held_forward`) are held back until it is
    known what they were for. `batch` is the largest leading dimension of the forwards since the last backward,
    `batch_tokens` the most ids. `recent` are the collectives since the last phase and `copies` the transfers; those
    within the next one are `communication_inside` and `transfer_inside`. `guessed` stands for what was not seen of it.
    """

    def __init__(self) -> None:
        self.regular_held = self.had_held = False
        self.evaluating = False
        # The loaders of the last round of several optimizers.
        self.last_feeds: set[int] = set()
        self.drop_held()
        self.clear(0)

    def drop_held(self) -> None:
        self.held_wait = self.held_start = self.held_forward = self.held_forwards = 0
        self.held_ready = NOT_MEASURED

    def clear(self, mark: int) -> None:
        """Begin anew at `mark`; what is held back stays."""
        self.mark = mark
        self.known = self.held_wait + self.held_start + self.held_forward
        self.data_wait = self.loader_start = self.prepare = self.forward = self.backward = 0
        self.optimizer = self.save = self.evaluation = self.gc = 0
        self.forwards = self.backwards = 0
        self.transfer = self.transfer_inside = self.transfer_bytes = self.blocking = self.blockings = 0
        self.communication = self.communication_inside = self.collectives = 0
        self.calls: list[int] = []
        self.recent: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.next_end = 0
        self.guessed: Parts | None = None
        self.samples = self.batch = self.tokens = self.batch_tokens = NOT_MEASURED
        self.queue_ready = NOT_MEASURED

    def saved(self, start: int, end: int, _a: int, _b: int) -> None:
        self.save += end - start
        self.known += end - start

    def collected(self, start: int, end: int, _a: int, _b: int) -> None:
        self.gc += end - start

    def transferred(self, start: int, end: int, size: int, _b: int) -> None:
        self.transfer += end - start
        self.transfer_bytes += max(0, size)
        if len(self.copies) < MOST_RECENT:
            self.copies.append((start, end))

    def blocked(self, start: int, end: int, _a: int, _b: int) -> None:
        self.blocking += end - start
        self.blockings += 1

    def communicated(self, start: int, end: int, size: int, _b: int) -> None:
        """A collective was called, or (negative `size`) one that was called before was waited for."""
        self.communication += end - start
        self.collectives += size >= 0
        if self.calls and (size < 0 or len(self.calls) >= MOST_CALLS):
            self.calls[-1] += end - start
        else:
            self.calls.append(end - start)
        if len(self.recent) < MOST_RECENT:
            self.recent.append((start, end))

    def phase_ended(self, start: int) -> None:
        """Tell the collectives and copies within the phase that began at `start` from those before it."""
        self.communication_inside += sum(last - first for first, last in self.recent if first >= start)
        self.transfer_inside += sum(last - first for first, last in self.copies if first >= start)
        self.recent.clear()
        self.copies.clear()

    def settle_training(self) -> None:
        """The batch is trained on. Forwards without gradient belong to the step if the last one had them too."""
        if self.held_wait or self.held_start:
            self.data_wait += self.held_wait
            self.loader_start += self.held_start
            self.held_wait = self.held_start = 0
        if self.held_ready >= 0:
            if self.queue_ready < 0:
                self.queue_ready = self.held_ready
            self.held_ready = NOT_MEASURED
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
        self.held_ready = NOT_MEASURED
        self.evaluating = True

    def parts(self) -> Parts:
        return Parts(
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
            self.transfer,
            self.transfer - self.transfer_inside,
            self.transfer_bytes,
            self.blocking,
            self.blockings,
            self.communication,
            self.communication - self.communication_inside,
            self.collectives,
            self.samples,
            self.tokens,
            self.queue_ready,
            tuple(self.calls),
        )


def join(one: Parts, other: Parts) -> Parts:
    """Two parts of one step. The step prepared once, and its queue was looked at when it began."""
    firsts: tuple[Any, ...] = one
    added = Parts(*(first + second for first, second in zip(firsts, other, strict=True)))
    return added._replace(
        prepare=one.prepare,
        samples=_added(one.samples, other.samples),
        tokens=_added(one.tokens, other.tokens),
        queue_ready=one.queue_ready if one.queue_ready >= 0 else other.queue_ready,
    )


def _added(one: int, other: int) -> int:
    """The sum of those that were measured."""
    return max(one, 0) + max(other, 0) if max(one, other) >= 0 else NOT_MEASURED
