"""What a step is, and where its time went. All times are nanoseconds of CLOCK_MONOTONIC.

A training step ends with an optimizer step, or where a GradScaler leaves one out. Several optimizers make one step
together: it ends at the last optimizer step before any of its optimizers or loaders comes round again. Without an
optimizer, a root forward without gradient, or a call of `generate`, is a step (inference); where gradients are made but
no optimizer of torch is used, a step ends where the next forward or batch begins.

Waits for data are held back until it is known what the batch was for: one that met only forwards without gradient
belongs to `evaluation`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from aitop.sources.step_maker import events as at
from aitop.sources.step_maker.events import NOT_MEASURED, Event
from aitop.sources.step_maker.rests import MOST_AT_ONCE, Rests
from aitop.sources.step_maker.serving import Serving
from aitop.sources.step_maker.sums import Closed, Made, join

FORGET_OPTIMIZER_AFTER = 64
# So many backwards without any optimizer step mean that the script updates its parameters by itself.
BACKWARDS_WITHOUT_OPTIMIZER = 64
# So many forwards with gradient and without a backward mean inference that forgot no_grad.
FORWARDS_WITHOUT_BACKWARD = 8
# What came one after the other without ever coming round again is no step.
MOST_TOGETHER = 64
MOST_IN_A_ROW = 4096
# Of what is noted in a rest only the newest may tell of the step after it.
MOST_MEANWHILE = 1024

_Handler = Callable[[int, int, int, int], None]


class Steps(Serving):
    """Reads events in their order and makes steps of them. `made` takes those that are finished."""

    def __init__(self) -> None:
        super().__init__()
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
        self.rests = Rests()
        # In a rest, what was noted meanwhile.
        self.meanwhile: deque[Event] | None = None
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
            at.PAUSE: self.rest_begins,
            at.RESTED: self.rested,
            at.UNSEEN: self.was_unseen,
        }

    def begin(self, start: int) -> None:
        """Start over at `start`; 0 where the beginning was not seen, and then the step is not reported."""
        self.start = start
        self.meanwhile = None
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
        self.rests.room = MOST_AT_ONCE
        for event in events:
            if self.meanwhile is not None and event[0] in (at.PAUSE, at.OPTIMIZER_ENDS):
                # The end of the rest was lost, and how many steps it had.
                self.begin(0)
            if self.meanwhile is None or event[0] == at.RESTED:
                self.take(event)
            else:
                self.meanwhile.append(event)

    def take(self, event: Event) -> None:
        kind, start, end, a, b = event
        handler = self.handlers.get(kind)
        if handler is not None:
            if kind in at.PHASES and (self.recent or self.copies):
                self.phase_ended(start)
            handler(start, end, a, b)

    # Rests.

    def rest_begins(self, now: int, _end: int, longest: int, _b: int) -> None:
        """A step has ended, and those that follow are only counted; none will be longer than `longest`."""
        self.rests.begin(longest)
        self.meanwhile = deque(maxlen=MOST_MEANWHILE)

    def rested(self, start: int, end: int, count: int, _b: int) -> None:
        """So many steps went by. Of what was noted meanwhile only the part after them is of use."""
        noted, count = self.meanwhile or (), min(max(0, count), MOST_AT_ONCE)
        if start == self.start and not self.several:
            made = list(self.rests.stand_ins(self.index, start, end, count))
            self.made += made
            self.optimizer_steps += len(made)
        self.index += count
        self.begin(end)
        self.trains(end)
        for event in noted:
            if event[1] >= end:
                self.take(event)

    def was_unseen(self, start: int, end: int, _a: int, _b: int) -> None:
        """Of the step that follows a rest, nothing was seen from `start` to `end`."""
        whole = start <= self.mark
        guess = self.guessed = self.rests.unseen(end - start, whole)
        if guess is None:
            return
        self.data_wait += guess.data_wait
        self.prepare = guess.prepare if whole else start - self.mark
        self.forward += guess.forward
        self.backward += guess.backward
        self.optimizer += guess.optimizer
        self.forwards, self.backwards = guess.forwards, guess.backwards
        self.known = end - self.mark

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

    def another_thread(self, _start: int, _end: int, _a: int, _b: int) -> None:
        """The thread that steps is another one from now on."""
        self.begin(0)

    # Ends of steps.

    def commit(
        self, end: int, cpu: int = NOT_MEASURED, timing: tuple[int, ...] | None = None, skipped: bool = False
    ) -> None:
        """End the step that has one optimizer: report it and begin the next."""
        parts, guess = self.parts(), self.guessed
        if guess is not None:
            parts = parts._replace(samples=guess.samples, tokens=guess.tokens)
        self._report(Closed(end, parts, cpu, timing, skipped), estimated=guess is not None)
        self.start = end
        self.cpu_then = cpu
        self.backwards_alone = 0
        self.clear(end)

    def close(self, end: int, cpu: int, timing: tuple[int, ...] | None, skipped: bool) -> None:
        """One of several optimizers is done: the step may end here, or go on with the next optimizer."""
        parts = self.parts()
        # One optimizer right after the other is one update, however many there are.
        most = MOST_TOGETHER if parts.forwards or parts.backwards or self.feeds else MOST_IN_A_ROW
        if len(self.stepped) >= most:
            self.commit_closed()
        before = self.closed
        if before is not None:
            parts = join(before.parts, parts)
            timing = None if before.timing is None or timing is None else before.timing + timing
            skipped = skipped or before.skipped
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

    def _report(self, closed: Closed, estimated: bool = False) -> None:
        """A training step has ended; it is not reported where its beginning was not seen."""
        if not self.start:
            return
        end, parts, cpu, timing, skipped = closed
        spent = cpu - self.cpu_then if cpu >= 0 and self.cpu_then >= 0 else NOT_MEASURED
        self.regular_held, self.had_held = self.had_held, False
        self.index += 1
        made = Made(self.index, "train", end, end - self.start, parts, spent, timing, skipped, estimated=estimated)
        self.made.append(made)
        self.rests.met(made)
