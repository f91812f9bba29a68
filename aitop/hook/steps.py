"""What a step is, and where its time went. All times are nanoseconds of CLOCK_MONOTONIC.

A training step ends with an optimizer step. Several optimizers make one step together: it ends at the last
optimizer step before any of its optimizers or loaders comes round again. Without an optimizer, a root forward
without gradient is a step (inference); where gradients are made but no optimizer of torch is used, a step ends
where the next forward or batch begins.

Waits for data are held back until it is known what the batch was for: one that met only forwards without gradient
belongs to `evaluation`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import layout as at
from .frames import within_step
from .sums import Closed, Parts, Sums, join

NOBODY = 0
GONE = -1

FORGET_OPTIMIZER_AFTER = 64
# So many backwards without any optimizer step mean that the script updates its parameters by itself.
BACKWARDS_WITHOUT_OPTIMIZER = 64
# So many forwards with gradient and without a backward mean inference that forgot no_grad.
FORWARDS_WITHOUT_BACKWARD = 8
# A training run that for so long has only done forwards without gradient is taken for inference from then on.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
CPU_ALWAYS_ABOVE_NS = 10_000_000
CPU_EVERY = 8
# Of so many steps, one has its own end timed.
TIME_EVERY = 16
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000


class Steps(Sums):
    """The accumulators of the thread that steps (`owner`).

    `records` takes the finished records: the fields of `layout.FIELDS` from `index` to `queue_ready`, and then what
    the device clock noted for them. `look` is called when `look_due` is past, at the end of a step or between.
    """

    __slots__ = (
        "backwards_alone",
        "busy",
        "closed",
        "closed_feeds",
        "cpu_clock",
        "cpu_then",
        "device",
        "feeds",
        "forwards_alone",
        "gc_start",
        "index",
        "infer_end",
        "last_forwards",
        "look",
        "look_due",
        "now",
        "optimizer_known",
        "optimizer_last",
        "optimizer_nested",
        "optimizer_open",
        "optimizer_start",
        "optimizer_steps",
        "optimizers",
        "owner",
        "records",
        "several",
        "spent",
        "start",
        "stepped",
        "steps_alone",
        "training",
        "training_patience",
        "training_time",
    )

    def __init__(self, cpu_clock: Callable[[], int] | None) -> None:
        super().__init__()
        self.records: list[tuple[Any, ...]] = []
        self.cpu_clock = cpu_clock
        self.now = time.monotonic_ns
        self.look: Callable[[int], None] = _no_look
        self.look_due = 0
        self.spent: Callable[[int], None] = _no_look
        self.device: Any = None
        self.owner = NOBODY
        self.busy = False
        self.training = False
        self.training_time = 0
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.index = 0
        self.last_forwards = 0
        self.infer_end = 0
        self.gc_start = 0
        self.next_end = 0
        self.forwards_alone = 0
        self.backwards_alone = 0
        self.steps_alone = False
        self.optimizer_open = False
        self.optimizer_last = 0
        self.optimizer_nested = 0
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

    # Phases, each called at its end.

    def loader_made(self, start: int, end: int) -> None:
        """A DataLoader has made an iterator."""
        if self.held_forwards:
            self.settle_evaluation()
        self.held_start += end - start
        self.known += end - start

    def next_begins(self, iterator: int, ready: int) -> None:
        """A batch is asked for; `ready` lie in the queue (negative: not measured)."""
        if self.held_forwards:
            self.settle_evaluation()
        self.held_ready = ready
        if self.several:
            if self.closed is not None and iterator in self.closed_feeds:
                self.commit_closed()
            self.feeds.add(iterator)
        elif self.steps_alone and self.backwards:
            self.commit(self.now())

    def next_ended(self, start: int, end: int, got: bool) -> None:
        """A batch has come, or (`got` False) there are no more."""
        self.known += end - start
        if end > self.look_due:
            self.look(end)
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
            if end > self.look_due:
                self.look(end)
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
            self.training_time = end
            if self.forwards_alone or not self.training:
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

    def saved(self, start: int, end: int) -> None:
        """`torch.save` has ended."""
        if not self.busy:
            self.save += end - start
            self.known += end - start

    def optimizer_begins(self, optimizer: int, now: int) -> None:
        """An optimizer's step begins, perhaps inside another one's or its own subclass's."""
        if self.optimizer_open and within_step(2):
            self.optimizer_nested += 1
            return
        if self.several and self.closed is not None and optimizer in self.stepped:
            self.commit_closed()
        # One that is still open here was left by an exception.
        self.optimizer_open = True
        self.optimizer_nested = 0
        self.optimizer_start = now
        self.optimizer_known = self.known
        if self.device is not None:
            self.device.begin_optimizer()

    def optimizer_ended(self, optimizer: int, now: int) -> bool:
        """An optimizer's step has ended; False where it was inside another one's."""
        if not self.optimizer_open:
            return False
        if self.optimizer_nested:
            self.optimizer_nested -= 1
            return False
        self.optimizer_open = False
        if self.device is not None:
            self.device.end_optimizer()
        # A closure's forward and backward lie inside this phase and were counted already.
        length = now - self.optimizer_start - (self.known - self.optimizer_known)
        self.optimizer += length
        self.known += length
        if self.held_wait or self.held_start or self.held_forwards:
            self.settle_training()
        self.training_time = now
        if self.forwards_alone or not self.training:
            self.trains(now)
        self.optimizer_steps += 1
        if optimizer != self.optimizer_last or self.several:
            self._met(optimizer)
        if self.several:
            self.close(now)
        else:
            self.commit(now)
        if not self.index % TIME_EVERY:
            self.spent(self.now() - now)
        if now > self.look_due:
            self.look(now)
        return True

    def trains(self, now: int) -> None:
        self.training = True
        self.training_time = now
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0

    # Ends of steps.

    def commit(self, end: int) -> None:
        """End the step that has one optimizer: report it and begin the next."""
        length = end - self.start
        timing = None if self.device is None else self.device.step_ends(end)
        then = self.cpu_then
        cpu = self.cpu_then = self._cpu(length)
        if self.start:
            self.index += 1
            self.last_forwards = self.forwards
            self.regular_held = self.had_held
            self.had_held = False
            self.records.append(
                (
                    self.index,
                    at.KIND_TRAIN,
                    end,
                    length,
                    self.data_wait,
                    self.loader_start,
                    self.prepare,
                    self.forward,
                    self.backward,
                    self.optimizer,
                    self.save,
                    self.evaluation,
                    self.gc,
                    at.NOT_MEASURED,
                    cpu - then if cpu >= 0 and then >= 0 else at.NOT_MEASURED,
                    self.forwards,
                    self.backwards,
                    self.samples,
                    self.queue_ready,
                    timing,
                )
            )
        self.start = end
        self.backwards_alone = 0
        self.clear(end)

    def close(self, end: int) -> None:
        """One of several optimizers is done: the step may end here, or go on with the next optimizer."""
        timing = self.device.step_ends(end) if self.device is not None else None
        parts, cpu, before = self.parts(), self._cpu(end - self.start), self.closed
        if before is not None:
            parts = join(before.parts, parts)
            both = timing is not None and before.timing is not None
            timing = self.device.joined(before.timing, timing) if both else None
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
            self.last_forwards = parts[9]
            self.regular_held, self.had_held = self.had_held, False
        self.start = end
        self.cpu_then = cpu
        self.closed = None
        self.stepped.clear()
        self.closed_feeds.clear()

    def infer(self, start: int, end: int, samples: int, alone: bool = True) -> None:
        """A forward that is a step of its own; not `alone` where a training step's account goes on beside it."""
        began, self.infer_end = min(self.infer_end, start), end
        cpu = self._cpu(end - began) if alone else at.NOT_MEASURED
        if began:
            save, gc = (self.save, self.gc) if alone else (0, 0)
            wait, loader = self.held_wait, self.held_start
            prepare = max(0, start - began - wait - loader - save)
            parts = (wait, loader, prepare, end - start, 0, 0, save, 0, gc, 1, 0, samples, self.held_ready)
            self._report(at.KIND_INFER, began, end, parts, cpu=cpu)
        if alone:
            self.cpu_then = cpu
            self.drop_held()
            self.clear(end)

    def infer_aside(self, start: int, end: int, samples: int) -> None:
        """A forward without gradient in another thread than the owner's, of a process that does not train."""
        began, self.infer_end = min(self.infer_end, start), max(end, self.infer_end)
        if began:
            parts = (0, 0, start - began, end - start, 0, 0, 0, 0, 0, 1, 0, samples, at.NOT_MEASURED)
            self._report(at.KIND_INFER, began, end, parts, cpu=at.NOT_MEASURED)

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

    def _cpu(self, length: int) -> int:
        """The thread's CPU clock. Reading it is a system call: of short steps only some are measured."""
        if self.cpu_clock is None or (length < CPU_ALWAYS_ABOVE_NS and 0 < self.index % CPU_EVERY < CPU_EVERY - 1):
            return at.NOT_MEASURED
        return self.cpu_clock()

    def _report(self, kind: int, start: int, end: int, parts: Parts, *, cpu: int, timing: Any = None) -> None:
        spent = cpu - self.cpu_then if cpu >= 0 and self.cpu_then >= 0 else at.NOT_MEASURED
        self.index += 1
        rest = (at.NOT_MEASURED, spent, *parts[9:], timing)
        self.records.append((self.index, kind, end, end - start, *parts[:9], *rest))


def _no_look(now: int) -> None:
    """For steps that nobody looks after."""
