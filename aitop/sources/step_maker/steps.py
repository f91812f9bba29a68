"""What a step is, and where its time went. All times are nanoseconds of CLOCK_MONOTONIC.

A training step ends with an optimizer step, or where a GradScaler leaves one out. Several optimizers make one step
together: it ends at the last optimizer step before any of its optimizers or loaders comes round again. Without an
optimizer, a root forward without gradient, or a call of `generate`, is a step (inference); where gradients are made but
no optimizer of torch is used, a step ends where the next forward or batch begins.

Waits for data are held back until it is known what the batch was for: one that met only forwards without gradient
belongs to `evaluation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from aitop.model.steps import StepKind
from aitop.sources.step_maker import events as at
from aitop.sources.step_maker.events import NOT_MEASURED, Event
from aitop.sources.step_maker.sums import Closed, Parts, Sums, join

FORGET_OPTIMIZER_AFTER = 64
# So many backwards without any optimizer step mean that the script updates its parameters by itself.
BACKWARDS_WITHOUT_OPTIMIZER = 64
# So many forwards with gradient and without a backward mean inference that forgot no_grad.
FORWARDS_WITHOUT_BACKWARD = 8
# A training run that for so long has only done forwards without gradient is taken for inference from then on.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000
# What came one after the other without ever coming round again is no step.
MOST_TOGETHER = 64

_Handler = Callable[[int, int, int, int], None]


class Made(NamedTuple):
    """A finished step. `timing` are the numbers under which the device's times come, None where it was not timed."""

    number: int
    kind: StepKind
    end: int
    length: int
    parts: Parts
    cpu: int = NOT_MEASURED
    timing: tuple[int, ...] | None = None
    skipped: bool = False
    first_token: int = NOT_MEASURED


class Steps(Sums):
    """Reads events in their order and makes steps of them. `made` takes those that are finished."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []
        self.training = False
        self.training_time = 0
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.index = 0
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
        # Since when a run that has trained only serves.
        self.serves_since = 0
        self.handlers = self._handlers()
        self.begin(0)

    def _handlers(self) -> dict[int, _Handler]:
        return {
            at.LOADER: self.loader_made,
            at.NEXT: self.next_came,
            at.NO_NEXT: self.no_next_came,
            at.FORWARD: self.forward_ended,
            at.FORWARD_ALONE: self.forward_alone_ended,
            at.BACKWARD: self.backward_ended,
            at.OPTIMIZER_BEGINS: self.optimizer_begins,
            at.OPTIMIZER_ENDS: self.optimizer_ended,
            at.SAVE: self.saved,
            at.COLLECT: self.collected,
            at.ASIDE: self.infer_aside,
            at.TRANSFER: self.transferred,
            at.BLOCKING: self.blocked,
            at.COLLECTIVE: self.communicated,
            at.GENERATE: self.generated,
            at.SKIPPED: self.skip,
            at.OWNER: self.another_thread,
            at.TRAINED: self.probably_trains,
            at.TIMED: self.is_timed,
        }

    def begin(self, start: int) -> None:
        """Start over at `start`; 0 where the beginning was not seen, and then the step is not reported."""
        self.start = start
        self.closed: Closed | None = None
        self.stepped: set[int] = set()
        self.closed_feeds: set[int] = set()
        self.feeds: set[int] = set()
        self.timed = 0
        self.serves_since = 0
        self.drop_held()
        self.cpu_then = NOT_MEASURED
        self.clear(start)

    def read(self, events: Iterable[Event]) -> None:
        """Go on with the steps by these events."""
        handlers = self.handlers
        for kind, start, end, a, b in events:
            handler = handlers.get(kind)
            if handler is not None:
                if kind in at.PHASES and (self.recent or self.copies):
                    self.phase_ended(start)
                handler(start, end, a, b)

    # Phases, each called at its end.

    def loader_made(self, start: int, end: int, _a: int, _b: int) -> None:
        """A DataLoader has made an iterator."""
        if self.held_forwards:
            self.settle_evaluation()
        self.held_start += end - start
        self.known += end - start

    def next_came(self, start: int, end: int, iterator: int, ready: int) -> None:
        """A batch has come; `ready` lay in the queue when it was asked for (negative: not measured)."""
        self._next_begins(start, iterator, ready)
        self.known += end - start
        self.held_wait += end - start
        self.evaluating = False
        self.next_end = end

    def no_next_came(self, start: int, end: int, iterator: int, ready: int) -> None:
        """There are no more batches."""
        self._next_begins(start, iterator, ready)
        self.known += end - start
        if self.evaluating:
            # Shutting down the workers of a validation loader.
            self.evaluation += end - start
            self.evaluating = False
        else:
            self.held_wait += end - start

    def _next_begins(self, start: int, iterator: int, ready: int) -> None:
        if self.held_forwards:
            self.settle_evaluation()
        self.held_ready = ready
        if self.several:
            # A round that began without a batch began in the middle: the hook came in then.
            if self.closed is not None and iterator in (self.closed_feeds or self.last_feeds):
                self.commit_closed()
            if len(self.feeds) < MOST_TOGETHER:
                self.feeds.add(iterator)
        elif self.steps_alone and self.backwards:
            self.commit(start)

    def forward_alone_ended(self, start: int, end: int, samples: int, tokens: int) -> None:
        """An outermost forward of a root module, without gradient, has ended."""
        if not self._trains_at(end):
            self.infer(start, end, samples, tokens)
            return
        self.held_forward += end - start
        self.held_forwards += 1
        self.known += end - start

    def forward_ended(self, start: int, end: int, samples: int, tokens: int) -> None:
        """An outermost forward of a root module, with gradient, has ended."""
        length = end - start
        if not self.training:
            self.forwards_alone += 1
            if self.forwards_alone > FORWARDS_WITHOUT_BACKWARD:
                self.infer(start, end, samples, tokens)
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
        self.batch_tokens = max(self.batch_tokens, tokens)

    def backward_ended(self, start: int, end: int, leaves: int, _b: int) -> None:
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
            self.batch = NOT_MEASURED
        if self.batch_tokens >= 0:
            self.tokens = max(0, self.tokens) + self.batch_tokens
            self.batch_tokens = NOT_MEASURED
        self.backward += end - start
        self.known += end - start

    def optimizer_begins(self, now: int, _end: int, _a: int, _b: int) -> None:
        """An optimizer's step begins in which other phases may lie, those of a closure."""
        self.optimizer_open = True
        self.optimizer_start = now
        self.optimizer_known = self.known

    def optimizer_ended(self, start: int, now: int, optimizer: int, cpu: int, skipped: bool = False) -> None:
        """An optimizer's step has ended. `cpu` is the thread's CPU clock, negative where it was not read."""
        length = now - start
        timing = (self.timed,) if self.timed else None
        self.timed = 0
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
            self.close(now, cpu, timing, skipped)
        else:
            self.commit(now, cpu, timing, skipped)

    def skip(self, start: int, now: int, optimizer: int, _b: int) -> None:
        """The optimizer's step was left out."""
        self.optimizer_ended(start, now, optimizer, NOT_MEASURED, skipped=True)

    def is_timed(self, _start: int, _end: int, number: int, _b: int) -> None:
        """The device's times of what ends now will come under this number."""
        self.timed = number

    # Whether it trains, and which thread does.

    def trains(self, now: int) -> None:
        if self.serves_since:
            # The step that begins where training left off had all the serving in it.
            self.evaluation += max(0, self.infer_end - self.serves_since)
            self.serves_since = 0
        self.training = True
        self.training_time = now
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0

    def probably_trains(self, _start: int, end: int, _a: int, _b: int) -> None:
        """The model has gradients from before anybody looked: this may be the evaluation of a training run."""
        self.trains(end)
        self.training_patience = GUESSED_TRAINING_ENDS_AFTER_NS

    def another_thread(self, _start: int, _end: int, _a: int, _b: int) -> None:
        """The thread that steps is another one from now on."""
        self.begin(0)

    def _trains_at(self, now: int) -> bool:
        """Whether it still counts as training at `now`, when nothing but forwards has come for a while."""
        if self.training and now - self.training_time > self.training_patience:
            self.training = False
            self.serves_since = max(self.mark, self.training_time)
            self.drop_held()
            self.clear(now)
            self.infer_end = 0
        return self.training

    # Ends of steps.

    def commit(
        self, end: int, cpu: int = NOT_MEASURED, timing: tuple[int, ...] | None = None, skipped: bool = False
    ) -> None:
        """End the step that has one optimizer: report it and begin the next."""
        self._report(Closed(end, self.parts(), cpu, timing, skipped))
        self.start = end
        self.cpu_then = cpu
        self.backwards_alone = 0
        self.clear(end)

    def close(self, end: int, cpu: int, timing: tuple[int, ...] | None, skipped: bool) -> None:
        """One of several optimizers is done: the step may end here, or go on with the next optimizer."""
        parts, before = self.parts(), self.closed
        if before is not None:
            parts = join(before.parts, parts)
            timing = None if before.timing is None or timing is None else before.timing + timing
            skipped = skipped or before.skipped
        if len(self.stepped) >= MOST_TOGETHER:
            self.commit_closed()
        self.closed = Closed(end, parts, cpu, timing, skipped)
        self.stepped.add(self.optimizer_last)
        self.closed_feeds |= self.feeds
        self.feeds = set()
        self.clear(end)

    def commit_closed(self) -> None:
        """The next round has begun: report what was closed."""
        if self.closed is None:
            return
        self._report(self.closed)
        self.start = self.closed.end
        self.cpu_then = self.closed.cpu
        self.closed = None
        self.stepped.clear()
        self.last_feeds, self.closed_feeds = self.closed_feeds or self.last_feeds, set()

    def infer(self, start: int, end: int, samples: int, tokens: int) -> None:
        """A forward that is a step of its own."""
        self._infer("infer", start, end, self._inferred(start, end)._replace(samples=samples, tokens=tokens))

    def generated(self, start: int, end: int, tokens: int, first: int) -> None:
        """A call of `generate` has ended, that made so many tokens, the first after so many nanoseconds."""
        if self._trains_at(end):
            self.held_forward += end - start
            self.held_forwards += 1
            self.known += end - start
            return
        parts = self._inferred(start, end)._replace(tokens=tokens)
        self._infer("generate", start, end, parts, first)

    def _inferred(self, start: int, end: int) -> Parts:
        wait, loader = self.held_wait, self.held_start
        prepare = max(0, start - min(self.infer_end, start) - wait - loader - self.save)
        return self.parts()._replace(
            data_wait=wait,
            loader_start=loader,
            prepare=prepare,
            forward=end - start,
            backward=0,
            optimizer=0,
            evaluation=0,
            forwards=1,
            backwards=0,
            queue_ready=self.held_ready,
        )

    def _infer(self, kind: StepKind, start: int, end: int, parts: Parts, first_token: int = NOT_MEASURED) -> None:
        began, self.infer_end = min(self.infer_end, start), end
        if began:
            self.index += 1
            self.made.append(Made(self.index, kind, end, end - began, parts, first_token=first_token))
        self.cpu_then = NOT_MEASURED
        self.drop_held()
        self.clear(end)

    def infer_aside(self, start: int, end: int, samples: int, tokens: int) -> None:
        """A forward without gradient in another thread than the owner's, of a process that does not train."""
        if self._trains_at(end):
            return
        began, self.infer_end = min(self.infer_end, start), max(end, self.infer_end)
        if began:
            self.index += 1
            parts = Parts(prepare=start - began, forward=end - start, forwards=1, samples=samples, tokens=tokens)
            self.made.append(Made(self.index, "infer", end, end - began, parts))

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

    def _report(self, closed: Closed) -> None:
        """A training step has ended; it is not reported where its beginning was not seen."""
        if not self.start:
            return
        end, parts, cpu, timing, skipped = closed
        spent = cpu - self.cpu_then if cpu >= 0 and self.cpu_then >= 0 else NOT_MEASURED
        self.regular_held, self.had_held = self.had_held, False
        self.index += 1
        self.made.append(Made(self.index, "train", end, end - self.start, parts, spent, timing, skipped))
