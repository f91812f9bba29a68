"""What a step is, and where its time went. All times are nanoseconds of CLOCK_MONOTONIC.

A training step ends with an optimizer step. Several optimizers make one step together: it ends at the last
optimizer step before any of its optimizers or loaders comes round again. Without an optimizer, a root forward
without gradient is a step (inference); where gradients are made but no optimizer of torch is used, a step ends
where the next forward or batch begins.

Waits for data are held back until it is known what the batch was for: one that met only forwards without gradient
belongs to `evaluation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import layout as at
from .device import joined
from .journal import ASIDE, BACKWARD, COLLECT, FORWARD, LOADER, NEXT, OPTIMIZER_BEGINS, OPTIMIZER_ENDS, SAVE, Entry
from .sums import Closed, Parts, Sums, join

FORGET_OPTIMIZER_AFTER = 64
# So many backwards without any optimizer step mean that the script updates its parameters by itself.
BACKWARDS_WITHOUT_OPTIMIZER = 64
# So many forwards with gradient and without a backward mean inference that forgot no_grad.
FORWARDS_WITHOUT_BACKWARD = 8
# A training run that for so long has only done forwards without gradient is taken for inference from then on.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000


class Steps(Sums):
    """Reads a journal's entries in their order and makes steps of them.

    `records` takes the finished records: what the device clock noted for each, and the fields of `layout.FIELDS` from
    `index` to `queue_ready`.
    """

    __slots__ = (
        "backwards_alone",
        "closed",
        "closed_feeds",
        "cpu_then",
        "feeds",
        "forwards_alone",
        "index",
        "infer_end",
        "last_forwards",
        "optimizer_known",
        "optimizer_last",
        "optimizer_open",
        "optimizer_start",
        "optimizer_steps",
        "optimizers",
        "records",
        "several",
        "start",
        "stepped",
        "steps_alone",
        "training",
        "training_patience",
        "training_time",
    )

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[Any, tuple[int, ...]]] = []
        self.training = False
        self.training_time = 0
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.index = 0
        self.last_forwards = 0
        self.infer_end = 0
        self.forwards_alone = 0
        self.backwards_alone = 0
        self.steps_alone = False
        self.optimizer_open = False
        self.optimizer_last = 0
        self.optimizer_start = 0
        self.optimizer_known = 0
        self.optimizer_steps = 0
        self.optimizers: dict[int, int] = {}
        self.several = False
        self.begin(0)

    def begin(self, start: int) -> None:
        """Start over at `start`; 0 where the beginning was not seen, and then the step is not reported."""
        self.start = start
        self.closed: Closed | None = None
        self.stepped: set[int] = set()
        self.closed_feeds: set[int] = set()
        self.feeds: set[int] = set()
        self.drop_held()
        self.cpu_then = at.NOT_MEASURED
        self.clear(start)

    def read(self, entries: Sequence[Entry]) -> None:
        """Go on with the steps by these entries."""
        for entry in entries:
            kind = entry[0]
            if kind == OPTIMIZER_ENDS:
                self.optimizer_ended(entry[1], entry[2], entry[3], entry[4], entry[5])
            elif kind == NEXT:
                self.next_begins(entry[1], entry[3], entry[4])
                self.next_ended(entry[1], entry[2], entry[5])
            elif kind == FORWARD:
                self.forward_ended(entry[1], entry[2], entry[3], entry[4])
            elif kind == BACKWARD:
                self.backward_ended(entry[1], entry[2], entry[3])
            elif kind == OPTIMIZER_BEGINS:
                self.optimizer_begins(entry[1])
            elif kind == COLLECT:
                self.gc += entry[2] - entry[1]
            elif kind == SAVE:
                self.save += entry[2] - entry[1]
                self.known += entry[2] - entry[1]
            elif kind == LOADER:
                self.loader_made(entry[1], entry[2])
            elif kind == ASIDE:
                self.infer_aside(entry[1], entry[2], entry[3])

    # Phases, each called at its end.

    def loader_made(self, start: int, end: int) -> None:
        """A DataLoader has made an iterator."""
        if self.held_forwards:
            self.settle_evaluation()
        self.held_start += end - start
        self.known += end - start

    def next_begins(self, start: int, iterator: int, ready: int) -> None:
        """A batch is asked for; `ready` lie in the queue (negative: not measured)."""
        if self.held_forwards:
            self.settle_evaluation()
        self.held_ready = ready
        if self.several:
            if self.closed is not None and iterator in self.closed_feeds:
                self.commit_closed()
            self.feeds.add(iterator)
        elif self.steps_alone and self.backwards:
            self.commit(start)

    def next_ended(self, start: int, end: int, got: bool) -> None:
        """A batch has come, or (`got` False) there are no more."""
        self.known += end - start
        if got:
            self.evaluating = False
            self.next_end = end
        elif self.evaluating:
            # Shutting down the workers of a validation loader.
            self.evaluation += end - start
            self.evaluating = False
            return
        self.held_wait += end - start

    def forward_ended(self, start: int, end: int, grad: bool, samples: int) -> None:
        """An outermost forward of a root module has ended."""
        length = end - start
        if not grad:
            if not self.training:
                self.infer(start, end, samples)
                return
            self.held_forward += length
            self.held_forwards += 1
            self.known += length
            if end - self.training_time > self.training_patience:
                self.infer(start, end, samples, alone=False)
            return
        if not self.training:
            self.forwards_alone += 1
            if self.forwards_alone > FORWARDS_WITHOUT_BACKWARD:
                self.infer(start, end, samples)
                return
        if self.steps_alone and self.backwards:
            self.commit(start)
        if self.held_wait or self.held_forwards:
            self.settle_training()
        if not self.forwards:
            if self.optimizer_open:
                self.prepare = max(0, self.optimizer_start - self.mark - self.optimizer_known)
            else:
                self.prepare = max(0, start - self.mark - self.known)
        self.forwards += 1
        self.forward += length
        self.known += length
        self.batch = max(self.batch, samples)

    def backward_ended(self, start: int, end: int, leaves: bool) -> None:
        """A backward has ended; `leaves` where it filled the parameters' gradients."""
        if self.held_wait or self.held_forwards:
            self.settle_training()
        if leaves:
            self.trains(end)
            self.backwards_alone += 1
            if self.backwards_alone > BACKWARDS_WITHOUT_OPTIMIZER and not self.optimizer_steps:
                self.steps_alone = True
        if not self.forwards and not self.backwards and self.next_end > self.mark:
            # The model was called past us (a saved `model.forward`): it ran between the batch and here.
            unseen = start - self.next_end
            self.prepare = max(0, self.next_end - self.mark - self.known)
            self.forward += unseen
            self.known += unseen
        self.backwards += 1
        if self.batch >= 0:
            self.samples = self.batch if self.samples < 0 else self.samples + self.batch
            self.batch = at.NOT_MEASURED
        self.backward += end - start
        self.known += end - start

    def optimizer_begins(self, now: int) -> None:
        """An optimizer's step begins in which other phases may lie, those of a closure."""
        self.optimizer_open = True
        self.optimizer_start = now
        self.optimizer_known = self.known

    def optimizer_ended(self, start: int, now: int, optimizer: int, cpu: int, timing: Any) -> None:
        """An optimizer's step has ended. `cpu` is the thread's CPU clock, negative where it was not read."""
        length = now - start
        if self.optimizer_open:
            # A closure's forward and backward lie inside this phase and were counted already.
            length -= self.known - self.optimizer_known
            self.optimizer_open = False
        if self.several and self.closed is not None and optimizer in self.stepped:
            self.commit_closed()
        self.optimizer += length
        self.known += length
        if self.held_wait or self.held_start or self.held_forwards:
            self.settle_training()
        self.trains(now)
        self.optimizer_steps += 1
        if optimizer != self.optimizer_last or self.several:
            self._met(optimizer)
        if self.several:
            self.close(now, cpu, timing)
        else:
            self.commit(now, cpu, timing)

    def trains(self, now: int) -> None:
        self.training = True
        self.training_time = now
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0

    # Ends of steps.

    def commit(self, end: int, cpu: int = at.NOT_MEASURED, timing: Any = None) -> None:
        """End the step that has one optimizer: report it and begin the next."""
        if self.start:
            self._report(at.KIND_TRAIN, self.start, end, self.parts(), cpu=cpu, timing=timing)
        self.start = end
        self.cpu_then = cpu
        self.backwards_alone = 0
        self.clear(end)

    def close(self, end: int, cpu: int, timing: Any) -> None:
        """One of several optimizers is done: the step may end here, or go on with the next optimizer."""
        parts, before = self.parts(), self.closed
        if before is not None:
            parts = join(before.parts, parts)
            timing = joined(before.timing, timing)
        self.closed = Closed(end, parts, cpu, timing)
        self.stepped.add(self.optimizer_last)
        self.closed_feeds |= self.feeds
        self.feeds = set()
        self.clear(end)

    def commit_closed(self) -> None:
        """The next round has begun: report what was closed."""
        if self.closed is None:
            return
        end, parts, cpu, timing = self.closed
        if self.start:
            self._report(at.KIND_TRAIN, self.start, end, parts, cpu=cpu, timing=timing)
        self.start = end
        self.cpu_then = cpu
        self.closed = None
        self.stepped.clear()
        self.closed_feeds.clear()

    def infer(self, start: int, end: int, samples: int, alone: bool = True) -> None:
        """A forward that is a step of its own; not `alone` where a training step's account goes on beside it."""
        began, self.infer_end = min(self.infer_end, start), end
        if began:
            save, gc = (self.save, self.gc) if alone else (0, 0)
            wait, loader = self.held_wait, self.held_start
            prepare = max(0, start - began - wait - loader - save)
            parts = (wait, loader, prepare, end - start, 0, 0, save, 0, gc, 1, 0, samples, self.held_ready)
            self._report(at.KIND_INFER, began, end, parts)
        if alone:
            self.cpu_then = at.NOT_MEASURED
            self.drop_held()
            self.clear(end)

    def infer_aside(self, start: int, end: int, samples: int) -> None:
        """A forward without gradient in another thread than the owner's, of a process that does not train."""
        began, self.infer_end = min(self.infer_end, start), max(end, self.infer_end)
        if began:
            parts = (0, 0, start - began, end - start, 0, 0, 0, 0, 0, 1, 0, samples, at.NOT_MEASURED)
            self._report(at.KIND_INFER, began, end, parts)

    def _met(self, optimizer: int) -> None:
        """Keep count of the optimizers in use, and forget those that have not stepped for long."""
        steps = self.optimizer_steps
        self.steps_alone = False
        self.optimizers[optimizer] = steps
        self.optimizer_last = optimizer
        if len(self.optimizers) > 1:
            self.optimizers = {
                key: last for key, last in self.optimizers.items() if steps - last < FORGET_OPTIMIZER_AFTER
            }
        several = len(self.optimizers) > 1
        if self.several and not several:
            self.commit_closed()
        self.several = several

    def _report(
        self, kind: int, start: int, end: int, parts: Parts, *, cpu: int = at.NOT_MEASURED, timing: Any = None
    ) -> None:
        spent = cpu - self.cpu_then if cpu >= 0 and self.cpu_then >= 0 else at.NOT_MEASURED
        if kind == at.KIND_TRAIN:
            self.last_forwards = parts[9]
            self.regular_held, self.had_held = self.had_held, False
        self.index += 1
        rest = (at.NOT_MEASURED, spent, *parts[9:])
        self.records.append((timing, (self.index, kind, end, end - start, *parts[:9], *rest)))
