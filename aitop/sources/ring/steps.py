"""What a step is, and where its time went. All times are nanoseconds of CLOCK_MONOTONIC.

A training step ends with an optimizer step, or where a GradScaler leaves one out. Several optimizers make one step
together: it ends at the last optimizer step before any of its optimizers or loaders comes round again. Without an
optimizer, a root forward without gradient, or a call of `generate`, is a step (inference); where gradients are made but
no optimizer of torch is used, a step ends where the next forward or batch begins.

Waits for data are held back until it is known what the batch was for: a batch that met only forwards without gradient
belongs to `evaluation`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from aitop.model.steps import StepKind
from aitop.protocol import events as at
from aitop.protocol.events import NOT_MEASURED
from aitop.sources.ring.counted import MOST_AT_ONCE, CountedSteps
from aitop.sources.ring.parts import Closed, Made, Parts, join

# A training run that has only done forwards without gradient for so long is taken for inference from then on.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000
FORGET_OPTIMIZER_AFTER = 64
# So many backwards without any optimizer step mean that the script updates its parameters itself.
BACKWARDS_WITHOUT_OPTIMIZER = 64
# So many forwards with gradient and without a backward mean inference that lacks no_grad.
FORWARDS_WITHOUT_BACKWARD = 8
# Optimizer steps that never come round again make no step: at most so many are joined, with work between them or not.
MOST_TOGETHER = 64
MOST_IN_A_ROW = 4096
# Of the events while steps were only counted, only the newest may belong to the step that follows.
MOST_MEANWHILE = 1024
# Collectives or transfers between two phases; further ones are taken to lie in no phase.
MOST_RECENT = 1024
# Calls of a step whose lengths are reported; the last of these includes all further ones.
MOST_CALLS = 16

# kind, start, end, a, b (see protocol/events.py).
Event = tuple[int, int, int, int, int]

_Handler = Callable[[int, int, int, int], None]


class Steps:
    """Reads events in their order and makes steps of them. `made` takes those that are finished, `index` counts them.

    The sums are since `mark`, the end of the last step or part of a step; `known` is all time that is accounted for.
    Waits for data (`held_wait`, `held_start`) and forwards without gradient (`held_forward`) are held back until it is
    known what they were for. `batch` is the largest leading dimension of the forwards since the last backward,
    `batch_tokens` the most token ids. `recent` are the collectives since the last phase and `copies` the transfers;
    those within the next phase are added to `communication_inside` and `transfer_inside`. `guessed` has the parts that
    stand for time in which nothing was seen.
    """

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.index = 0
        # Forwards without gradient belonged to the last step; they do to this one.
        self.regular_held = self.had_held = False
        self.evaluating = False
        # Whether it trains.
        self.infer_end = 0
        self.training = False
        self.training_time = 0
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0
        # Since when a run that has trained only serves.
        self.serves_since = 0
        # Optimizers, by id the number of optimizer steps at their last one.
        self.backwards_alone = 0
        self.steps_alone = False
        self.optimizer_open = False
        self.optimizer_last = 0
        self.optimizer_start = 0
        self.optimizer_known = 0
        self.optimizer_steps = 0
        self.optimizers: dict[int, int] = {}
        self.several = False
        # The loaders of the last round of several optimizers.
        self.last_feeds: set[int] = set()
        self.counted = CountedSteps()
        # Events noted while steps were only counted.
        self.meanwhile: deque[Event] | None = None
        self.handlers = self._handlers()
        self.begin(0)

    # The sums.

    def drop_held(self) -> None:
        """Drop what is held back."""
        self.held_wait = self.held_start = self.held_forward = self.held_forwards = 0
        self.held_ready = NOT_MEASURED

    def clear(self, mark: int) -> None:
        """Set the sums to zero at `mark`; what is held back stays."""
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

    def settle_training(self) -> None:
        """Add what is held back to a training step; forwards without gradient only if the last step had some too."""
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
        """Add what is held back to `evaluation`: the batch only met forwards without gradient."""
        self.evaluation += self.held_wait + self.held_start + self.held_forward
        self.held_wait = self.held_start = self.held_forward = self.held_forwards = 0
        self.held_ready = NOT_MEASURED
        self.evaluating = True

    def parts(self) -> Parts:
        """Return the sums."""
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

    # Reading events.

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
            at.COUNTING_BEGINS: self.counting_begins,
            at.COUNTED: self.counting_ended,
            at.UNSEEN: self.was_unseen,
        }

    def begin(self, start: int) -> None:
        """Start over with a step at `start`; 0 where its beginning was not seen, so that it is not reported."""
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
        """Take these events."""
        self.counted.room = MOST_AT_ONCE
        for event in events:
            if self.meanwhile is not None and event[0] in (at.COUNTING_BEGINS, at.OPTIMIZER_ENDS):
                # The event that tells how many steps were counted was lost.
                self.begin(0)
            if self.meanwhile is None or event[0] == at.COUNTED:
                self.take(event)
            else:
                self.meanwhile.append(event)

    def take(self, event: Event) -> None:
        """Take one event."""
        kind, start, end, a, b = event
        handler = self.handlers.get(kind)
        if handler is not None:
            if kind in at.PHASES and (self.recent or self.copies):
                self.phase_ended(start)
            handler(start, end, a, b)

    # Steps that were only counted.

    def counting_begins(self, _now: int, _end: int, longest: int, _b: int) -> None:
        """Steps that follow are only counted; none of them is longer than `longest`."""
        self.counted.begin(longest)
        self.meanwhile = deque(maxlen=MOST_MEANWHILE)

    def counting_ended(self, start: int, end: int, count: int, _b: int) -> None:
        """Make as many steps as were counted. Of the events noted meanwhile, only those after them are used."""
        noted, count = self.meanwhile or (), min(max(0, count), MOST_AT_ONCE)
        if start == self.start and not self.several:
            made = list(self.counted.stand_ins(self.index, start, end, count))
            self.made += made
            self.optimizer_steps += len(made)
        self.index += count
        self.begin(end)
        self.trains(end)
        for event in noted:
            if event[1] >= end:
                self.take(event)

    def was_unseen(self, start: int, end: int, _a: int, _b: int) -> None:
        """Fill in the time from `start` to `end`, in which nothing was seen of the step under way."""
        whole = start <= self.mark
        self.guessed = guess = self.counted.unseen(end - start, whole)
        if guess is None:
            return
        self.data_wait += guess.data_wait
        self.prepare = guess.prepare if whole else start - self.mark
        self.forward += guess.forward
        self.backward += guess.backward
        self.optimizer += guess.optimizer
        self.forwards, self.backwards = guess.forwards, guess.backwards
        self.known = end - self.mark

    # Phases, in the order of their ends.

    def loader_made(self, start: int, end: int, _a: int, _b: int) -> None:
        """Add the making of a DataLoader's iterator."""
        if self.held_forwards:
            self.settle_evaluation()
        self.held_start += end - start
        self.known += end - start

    def next_came(self, start: int, end: int, iterator: int, ready: int) -> None:
        """Add the wait for a batch; `ready` batches lay in the queue when it was asked for (negative: not measured)."""
        self._next_begins(start, iterator, ready)
        self.known += end - start
        self.held_wait += end - start
        self.evaluating = False
        self.next_end = end

    def no_next_came(self, start: int, end: int, iterator: int, ready: int) -> None:
        """Add a wait that ended without a batch."""
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
        """Add an outermost forward of a root module with gradient."""
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
        """Add a backward; `leaves` where it filled the gradients of parameters."""
        if self.held_wait or self.held_forwards:
            self.settle_training()
        if leaves:
            self.trains(end)
            self.backwards_alone += 1
            if self.backwards_alone > BACKWARDS_WITHOUT_OPTIMIZER and not self.optimizer_steps:
                self.steps_alone = True
        if not self.forwards and not self.backwards and self.next_end > self.mark:
            # The model was called past the hook (a saved `model.forward`): between the batch and here.
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
        """Note the begin of an optimizer step with a closure, whose phases lie in it."""
        self.optimizer_open = True
        self.optimizer_start = now
        self.optimizer_known = self.known

    def optimizer_ended(self, start: int, now: int, optimizer: int, cpu: int, skipped: bool = False) -> None:
        """Add an optimizer step, which may end the step. `cpu` is the thread's CPU clock, negative where not read."""
        length = now - start
        timing = (self.timed,) if self.timed else None
        self.timed = 0
        if self.optimizer_open:
            # The closure's forward and backward lie inside this phase and were added already.
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
        """End the step without an optimizer step, which was left out."""
        self.optimizer_ended(start, now, optimizer, NOT_MEASURED, skipped=True)

    def is_timed(self, _start: int, _end: int, number: int, _b: int) -> None:
        """Note the number under which the device's times of the step that ends now will come."""
        self.timed = number

    def saved(self, start: int, end: int, _a: int, _b: int) -> None:
        """Add a call of torch.save."""
        self.save += end - start
        self.known += end - start

    def collected(self, start: int, end: int, _a: int, _b: int) -> None:
        """Add a garbage collection, which lies within whatever it interrupted."""
        self.gc += end - start

    def transferred(self, start: int, end: int, size: int, _b: int) -> None:
        """Add a copy to the device."""
        self.transfer += end - start
        self.transfer_bytes += max(0, size)
        if len(self.copies) < MOST_RECENT:
            self.copies.append((start, end))

    def blocked(self, start: int, end: int, _a: int, _b: int) -> None:
        """Add a call that waits for the device."""
        self.blocking += end - start
        self.blockings += 1

    def communicated(self, start: int, end: int, size: int, _b: int) -> None:
        """Add a call of a collective, or (negative `size`) a wait for an earlier call."""
        self.communication += end - start
        self.collectives += size >= 0
        if self.calls and (size < 0 or len(self.calls) >= MOST_CALLS):
            self.calls[-1] += end - start
        else:
            self.calls.append(end - start)
        if len(self.recent) < MOST_RECENT:
            self.recent.append((start, end))

    def phase_ended(self, start: int) -> None:
        """Add the collectives and copies within the phase that began at `start` to those inside of phases."""
        self.communication_inside += sum(last - first for first, last in self.recent if first >= start)
        self.transfer_inside += sum(last - first for first, last in self.copies if first >= start)
        self.recent.clear()
        self.copies.clear()

    # Whether it trains, and which thread does.

    def another_thread(self, _start: int, _end: int, _a: int, _b: int) -> None:
        """Start over: another thread steps from now on."""
        self.begin(0)

    def trains(self, now: int) -> None:
        """Count the run as training."""
        if self.serves_since:
            # The step that began before the serving has all of it in it.
            self.evaluation += max(0, self.infer_end - self.serves_since)
            self.serves_since = 0
        self.training = True
        self.training_time = now
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0

    def probably_trains(self, _start: int, end: int, _a: int, _b: int) -> None:
        """Count the run as training for a while: the model has gradients from before the hook came in."""
        self.trains(end)
        self.training_patience = GUESSED_TRAINING_ENDS_AFTER_NS

    def _trains_at(self, now: int) -> bool:
        """Return whether the run still counts as training at `now`, after forwards without gradient only."""
        if self.training and now - self.training_time > self.training_patience:
            self.training = False
            self.serves_since = max(self.mark, self.training_time)
            self.drop_held()
            self.clear(now)
            self.infer_end = 0
        return self.training

    # Inference.

    def forward_alone_ended(self, start: int, end: int, samples: int, tokens: int) -> None:
        """Take an outermost forward of a root module without gradient."""
        if not self._trains_at(end):
            self.infer(start, end, samples, tokens)
            return
        self.held_forward += end - start
        self.held_forwards += 1
        self.known += end - start

    def infer(self, start: int, end: int, samples: int, tokens: int) -> None:
        """Make a step of a forward."""
        self._infer("infer", start, end, self._inferred(start, end)._replace(samples=samples, tokens=tokens))

    def generated(self, start: int, end: int, tokens: int, first: int) -> None:
        """Take a call of `generate` that made so many tokens, the first after so many nanoseconds."""
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
        """Take a forward without gradient in another thread than the owner's: a step if the process does not train."""
        if self._trains_at(end):
            return
        began, self.infer_end = min(self.infer_end, start), max(end, self.infer_end)
        if began:
            self.index += 1
            parts = Parts(prepare=start - began, forward=end - start, forwards=1, samples=samples, tokens=tokens)
            self.made.append(Made(self.index, "infer", end, end - began, parts))

    # Ends of steps.

    def commit(
        self, end: int, cpu: int = NOT_MEASURED, timing: tuple[int, ...] | None = None, skipped: bool = False
    ) -> None:
        """End a step with one optimizer: report it and begin the next."""
        parts, guess = self.parts(), self.guessed
        if guess is not None:
            parts = parts._replace(samples=guess.samples, tokens=guess.tokens)
        self._report(Closed(end, parts, cpu, timing, skipped), estimated=guess is not None)
        self.start = end
        self.cpu_then = cpu
        self.backwards_alone = 0
        self.clear(end)

    def close(self, end: int, cpu: int, timing: tuple[int, ...] | None, skipped: bool) -> None:
        """Close a part of a step with several optimizers: the step may end here, or go on with the next optimizer."""
        parts = self.parts()
        # Optimizers that step right after one another make one update, however many there are.
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
        """Report what was closed, as the next round has begun."""
        if self.closed is None:
            return
        self._report(self.closed)
        self.start = self.closed.end
        self.cpu_then = self.closed.cpu
        self.closed = None
        self.stepped.clear()
        self.last_feeds, self.closed_feeds = self.closed_feeds or self.last_feeds, set()

    def _met(self, optimizer: int) -> None:
        """Count the optimizers in use; those that have not stepped for long are forgotten."""
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
        """Report a training step, unless its beginning was not seen."""
        if not self.start:
            return
        end, parts, cpu, timing, skipped = closed
        spent = cpu - self.cpu_then if cpu >= 0 and self.cpu_then >= 0 else NOT_MEASURED
        self.regular_held, self.had_held = self.had_held, False
        self.index += 1
        made = Made(self.index, "train", end, end - self.start, parts, spent, timing, skipped, estimated=estimated)
        self.made.append(made)
        self.counted.met(made)
