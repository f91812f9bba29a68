"""Turns the hook's events into steps and sums up where their time went. All times are ns of CLOCK_MONOTONIC.

Where a step ends:
- training: at an optimizer step, or where a GradScaler skips one
- several optimizers: at the last optimizer step before one of them, or a loader, is used again
- gradients without an optimizer of torch: where the next forward or batch begins
- inference: each root forward without gradient, or call of `generate`, is a step

Waits for data are held back until it is known what the batch was used for. If only forwards without gradient follow,
the wait belongs to `evaluation`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from aitop.model.phases import TIMED_ALONE
from aitop.model.steps import StepKind
from aitop.protocol import events as at
from aitop.protocol.events import NOT_MEASURED
from aitop.protocol.training import FORWARDS_WITHOUT_BACKWARD, GUESSED_TRAINING_ENDS_AFTER_NS, TRAINING_ENDS_AFTER_NS
from aitop.sources.ring.counted import MOST_AT_ONCE, CountedSteps
from aitop.sources.ring.parts import NOTHING, Closed, Made, Parts, added

BY_EVENT = {getattr(at, phase.event): phase for phase in TIMED_ALONE if phase.event is not None}
"""The phases that have an event of their own, by the kind of that event."""
FORGET_OPTIMIZER_AFTER = 64
# Above this many backwards without an optimizer step, the script updates its parameters itself.
BACKWARDS_WITHOUT_OPTIMIZER = 64
# The most optimizer steps that are joined to one step: with forwards, backwards or batches between them, and without.
MOST_TOGETHER = 64
MOST_IN_A_ROW = 4096
# Only the newest of the events noted while steps were only counted can belong to the step that follows.
MOST_MEANWHILE = 1024
# Collectives, and transfers, that are remembered between two phases; further ones count as outside of phases.
MOST_RECENT = 1024
# The most collectives of a step that have a length of their own; the last one includes all further ones.
MOST_CALLS = 16

# kind, start, end, a, b (see protocol/events.py).
Event = tuple[int, int, int, int, int]


class EventReader:
    """Reads events in order and makes steps of them.

    made, index         the finished steps, and their number so far
    mark                the end of the last step, or part of a step
    sums, known         times by part since `mark`, and how much of the time since then they account for (ns)
    held_wait, held_start, held_forward, held_forwards, held_samples
                        waits for data, starts of loaders and forwards without gradient, held back until it is known
                        what they were for (ns); the number of these forwards, and their samples
    batch, batch_tokens the largest leading dimension, and the most token ids, of the forwards since the last backward
    recent, copies      collectives and transfers since the last phase, by start and end
    guessed             parts that stand in for time that the hook did not see
    """

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.index = 0
        # Whether the last step, and this one, had forwards without gradient within them (a teacher model, say).
        self.regular_held = self.had_held = False
        self.evaluating = False
        # Training or inference.
        self.infer_end = 0
        self.training = False
        self.training_time = 0
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0
        # `optimizers`: by id, the value of `optimizer_steps` at its last step.
        self.optimizers: dict[int, int] = {}
        self.backwards_alone = 0
        self.steps_alone = False
        # Whether a backward has updated parameters, and the value of `optimizer_steps` at the first that did.
        self.updating = False
        self.steps_at_update = 0
        self.optimizer_open = False
        self.optimizer_last = 0
        self.optimizer_start = 0
        self.optimizer_known = 0
        self.optimizer_steps = 0
        self.several = False
        # The loaders of the last round of several optimizers.
        self.last_feeds: set[int] = set()
        self.counted = CountedSteps()
        # Events noted while steps were only counted.
        self.meanwhile: deque[Event] | None = None
        self.begin(0)

    def begin(self, start: int) -> None:
        """Start over with a step at `start`; 0 if its beginning was not seen: then it is not reported."""
        self.start = start
        self.meanwhile = None
        self.closed: Closed | None = None
        self.stepped: set[int] = set()
        self.closed_feeds: set[int] = set()
        self.feeds: set[int] = set()
        self.timed = 0
        # When a run that trained began to serve only; 0 while it trains.
        self.serves_since = 0
        self.drop_held()
        self.cpu_then = NOT_MEASURED
        self.clear(start)

    def clear(self, mark: int) -> None:
        """Set the sums to zero at `mark`; what is held back stays."""
        self.mark = mark
        self.known = self.held_wait + self.held_start + self.held_forward
        self.sums = Parts()
        self.recent: list[tuple[int, int]] = []
        self.copies: list[tuple[int, int]] = []
        self.next_end = 0
        # Whether a backward has updated parameters since then.
        self.updated = False
        self.guessed: Parts | None = None
        self.batch = self.batch_tokens = NOT_MEASURED

    def drop_held(self) -> None:
        """Drop what is held back."""
        self.held_wait = self.held_start = self.held_forward = self.held_forwards = self.held_samples = 0
        self.held_ready = NOT_MEASURED

    def settle_training(self) -> None:
        """Add what is held back to a training step; forwards without gradient only if the last step had some too."""
        sums = self.sums
        sums.data_wait += self.held_wait
        sums.loader_start += self.held_start
        if sums.queue_ready < 0:
            sums.queue_ready = self.held_ready
        if self.held_forwards:
            if self.regular_held:
                sums.forward += self.held_forward
                sums.no_grad += self.held_forward
                sums.no_grad_forwards += self.held_forwards
                sums.no_grad_samples += self.held_samples
            else:
                self.add_evaluation(self.held_forward)
            self.had_held = True
        self.drop_held()

    def settle_evaluation(self) -> None:
        """Add what is held back to `evaluation`: the batch only met forwards without gradient."""
        self.add_evaluation(self.held_wait + self.held_start + self.held_forward)
        self.drop_held()
        self.evaluating = True

    def add_evaluation(self, length: int) -> None:
        """Add the forwards that are held back, and `length` nanoseconds, to `evaluation`."""
        self.sums.evaluation += length
        self.sums.evaluation_forwards += self.held_forwards
        self.sums.evaluation_samples += self.held_samples

    # Reading events.

    def read(self, events: Iterable[Event]) -> None:
        """Take events in order."""
        self.counted.room = MOST_AT_ONCE
        for event in events:
            if self.meanwhile is not None and event[0] in (at.COUNTING_BEGINS, at.OPTIMIZER_ENDS):
                # The event with the number of counted steps (COUNTED) was lost.
                self.begin(0)
            if self.meanwhile is None or event[0] == at.COUNTED:
                self.take(event)
            else:
                self.meanwhile.append(event)

    def take(self, event: Event) -> None:
        """Take one event; protocol/events.py says what a and b mean."""
        kind, start, end, a, b = event
        if (kind in at.PHASES or kind in BY_EVENT) and (self.recent or self.copies):
            self.phase_ended(start)
        match kind:
            case at.NEXT | at.NO_NEXT:
                self.next_ended(start, end, a, b, came=kind == at.NEXT)
            case at.FORWARD:
                self.forward_ended(start, end, a, b)
            case at.FORWARD_ALONE | at.GENERATE:
                self.forward_alone_ended(kind, start, end, a, b)
            case at.BACKWARD:
                self.backward_ended(start, end, fills_gradients=bool(a), updates=a == 2)
            case at.OPTIMIZER_ENDS | at.SKIPPED:
                self.optimizer_ended(
                    start, end, a, b if kind == at.OPTIMIZER_ENDS else NOT_MEASURED, kind == at.SKIPPED
                )
            case at.ASIDE:
                self.infer_aside(start, end, a, b)
            case at.COUNTED:
                self.counting_ended(start, end, a)
            case at.UNSEEN:
                self.was_unseen(start, end)
            case at.TRANSFER | at.BLOCKING | at.COLLECTIVE | at.COLLECT | at.SAVE | at.LOADER:
                self.add(kind, start, end, a)
            case _ if kind in BY_EVENT:
                self.add(kind, start, end, a)
            case _:
                self.note(kind, start, end, a)

    def note(self, kind: int, start: int, end: int, a: int) -> None:
        """Take an event that marks a moment and has no length."""
        if kind == at.OPTIMIZER_BEGINS:
            # The optimizer was given a closure: forward and backward run within the optimizer step.
            self.optimizer_open, self.optimizer_start, self.optimizer_known = True, start, self.known
        elif kind == at.OWNER:
            self.begin(0)
        elif kind == at.TRAINED:
            self.trains(end)
            self.training_patience = GUESSED_TRAINING_ENDS_AFTER_NS
        elif kind == at.TIMED:
            self.timed = a
        elif kind == at.COUNTING_BEGINS:
            self.counted.begin(a)
            self.meanwhile = deque(maxlen=MOST_MEANWHILE)

    def add(self, kind: int, start: int, end: int, size: int) -> None:
        """Add an event that only changes sums. A garbage collection also stays in the phase that it interrupted."""
        sums, length = self.sums, end - start
        if kind == at.LOADER:
            if self.held_forwards:
                self.settle_evaluation()
            self.held_start += length
            self.known += length
        elif kind == at.SAVE:
            sums.save += length
            self.known += length
        elif kind == at.COLLECT:
            sums.gc += length
        elif kind == at.TRANSFER:
            sums.transfer += length
            sums.transfer_apart += length
            sums.transfer_bytes += max(0, size)
            if len(self.copies) < MOST_RECENT:
                self.copies.append((start, end))
        elif kind == at.BLOCKING:
            sums.blocking += length
            sums.blockings += 1
        elif kind == at.COLLECTIVE:
            # A negative size marks a wait for an earlier call.
            sums.communication += length
            sums.communication_apart += length
            sums.collectives += size >= 0
            if sums.calls and (size < 0 or len(sums.calls) >= MOST_CALLS):
                sums.calls[-1] += length
            else:
                sums.calls.append(length)
            if len(self.recent) < MOST_RECENT:
                self.recent.append((start, end))
        else:
            key = BY_EVENT[kind].key
            sums.others[key] = sums.others.get(key, 0) + length
            self.known += length

    def phase_ended(self, start: int) -> None:
        """Subtract collectives and transfers within the phase that began at `start` from those outside of phases."""
        self.sums.communication_apart -= sum(last - first for first, last in self.recent if first >= start)
        self.sums.transfer_apart -= sum(last - first for first, last in self.copies if first >= start)
        self.recent.clear()
        self.copies.clear()

    # Steps that were only counted.

    def counting_ended(self, start: int, end: int, count: int) -> None:
        """Make `count` steps from `start` to `end`. Of the events noted meanwhile, only those after `end` are used."""
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

    def was_unseen(self, start: int, end: int) -> None:
        """Fill in the time from `start` to `end`, in which the hook saw nothing of the current step."""
        whole = start <= self.mark
        self.guessed = guess = self.counted.unseen(end - start, whole)
        if guess is None:
            return
        sums = self.sums
        sums.data_wait += guess.data_wait
        sums.prepare = guess.prepare if whole else start - self.mark
        sums.forward += guess.forward
        sums.backward += guess.backward
        sums.optimizer += guess.optimizer
        sums.forwards, sums.backwards = guess.forwards, guess.backwards
        sums.no_grad += guess.no_grad
        sums.no_grad_forwards += guess.no_grad_forwards
        sums.no_grad_samples += guess.no_grad_samples
        self.known = end - self.mark

    # Phases.

    def next_ended(self, start: int, end: int, iterator: int, ready: int, *, came: bool) -> None:
        """Add the wait for a batch, which `came` or not; `ready` batches lay in the queue when it was asked for."""
        if self.held_forwards:
            self.settle_evaluation()
        self.held_ready = ready
        if self.several:
            # A round in which the hook came in has no batch of its own: compare with the batches of the round before.
            if self.closed is not None and iterator in (self.closed_feeds or self.last_feeds):
                self.commit_closed()
            if len(self.feeds) < MOST_TOGETHER:
                self.feeds.add(iterator)
        elif self.ended_with_backward():
            self.commit(Closed(start, self.sums))
        self.known += end - start
        if self.evaluating and not came:
            # Shutting down the workers of a validation loader.
            self.sums.evaluation += end - start
        else:
            self.held_wait += end - start
        self.evaluating = False
        if came:
            self.next_end = end

    def forward_ended(self, start: int, end: int, samples: int, tokens: int) -> None:
        """Add an outermost forward of a root module with gradient."""
        if not self.training:
            self.forwards_alone += 1
            if self.forwards_alone > FORWARDS_WITHOUT_BACKWARD:
                self.infer(start, end, samples, tokens)
                return
        if self.ended_with_backward():
            self.commit(Closed(start, self.sums))
        if self.held_wait or self.held_forwards:
            self.settle_training()
        sums = self.sums
        if not sums.forwards:
            if self.optimizer_open:
                sums.prepare = max(0, self.optimizer_start - self.mark - self.optimizer_known)
            else:
                sums.prepare = max(0, start - self.mark - self.known)
        sums.forwards += 1
        sums.forward += end - start
        self.known += end - start
        self.batch = max(self.batch, samples)
        self.batch_tokens = max(self.batch_tokens, tokens)

    def backward_ended(self, start: int, end: int, *, fills_gradients: bool, updates: bool = False) -> None:
        """Add a backward, which fills the gradients of parameters or not, or also `updates` them."""
        if self.held_wait or self.held_forwards:
            self.settle_training()
        if fills_gradients:
            self.trains(end)
            self.backwards_alone += 1
            if self.backwards_alone > BACKWARDS_WITHOUT_OPTIMIZER and not self.optimizer_steps:
                self.steps_alone = True
        if updates:
            # Unless another optimizer steps as well, after the backward pass. Some steps of the first one may have been
            # taken for such: the hook came in during it.
            if self.backwards_alone > BACKWARDS_WITHOUT_OPTIMIZER:
                # The other one steps no more.
                self.steps_at_update = self.optimizer_steps
            self.steps_alone = self.optimizer_steps <= self.steps_at_update
            self.updated = True
            if not self.updating:
                self.updating, self.steps_at_update = True, self.optimizer_steps
        sums = self.sums
        if not sums.forwards and not sums.backwards and self.next_end > self.mark:
            # The model was called past the hook (a saved `model.forward`): between the batch and here.
            unseen = start - self.next_end
            sums.prepare = max(0, self.next_end - self.mark - self.known)
            sums.forward += unseen
            self.known += unseen
        sums.backwards += 1
        sums.samples, self.batch = added(sums.samples, self.batch), NOT_MEASURED
        sums.tokens, self.batch_tokens = added(sums.tokens, self.batch_tokens), NOT_MEASURED
        sums.backward += end - start
        self.known += end - start

    def ended_with_backward(self) -> bool:
        """Whether a step is over with its last backward, because no optimizer steps after it."""
        return self.steps_alone and self.sums.backwards > 0 and (self.updated or not self.updating)

    def optimizer_ended(self, start: int, now: int, optimizer: int, cpu: int, skipped: bool) -> None:
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
        self.sums.optimizer += length
        self.known += length
        if self.held_wait or self.held_start or self.held_forwards:
            self.settle_training()
        self.trains(now)
        self.optimizer_steps += 1
        self.backwards_alone = 0
        if optimizer != self.optimizer_last or self.several:
            self._note_optimizer(optimizer)
        ended = Closed(now, self.sums, cpu, timing, skipped)
        if self.several:
            self.close(ended)
        else:
            self.commit(ended)

    def _note_optimizer(self, optimizer: int) -> None:
        """Note that this optimizer stepped, and forget those that have not stepped for long."""
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

    # Whether it trains.

    def trains(self, now: int) -> None:
        """Count the run as training."""
        if self.serves_since:
            # The step that began before the run served includes all of that time.
            self.sums.evaluation += max(0, self.infer_end - self.serves_since)
            self.serves_since = 0
        self.training = True
        self.training_time = now
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0

    def _trains_at(self, now: int) -> bool:
        """Whether the run still counts as training at `now`, although only forwards without gradient came."""
        if self.training and now - self.training_time > self.training_patience:
            self.training = False
            self.serves_since = max(self.mark, self.training_time)
            self.drop_held()
            self.clear(now)
            self.infer_end = 0
        return self.training

    # Inference.

    def forward_alone_ended(self, kind: int, start: int, end: int, a: int, b: int) -> None:
        """Take an outermost forward of a root module without gradient, or a call of `generate`."""
        if self._trains_at(end):
            self.held_forward += end - start
            self.held_forwards += 1
            self.held_samples += 0 if kind == at.GENERATE else max(0, a)
            self.known += end - start
        elif kind == at.GENERATE:
            self.infer(start, end, NOT_MEASURED, a, again=b, kind="generate")
        else:
            self.infer(start, end, a, b)

    def infer(
        self,
        start: int,
        end: int,
        samples: int,
        tokens: int,
        *,
        again: int = NOT_MEASURED,
        kind: StepKind = "infer",
    ) -> None:
        """Make a step of a forward, or of a call of `generate`."""
        began, self.infer_end = min(self.infer_end, start), end
        wait, loader = self.held_wait, self.held_start
        # There may be thousands of passes a second, so those of which nothing else is known are made quickly.
        plain = kind == "infer" and not wait and not loader and self.held_ready < 0 and self.sums == NOTHING
        if plain:
            parts = Parts(forward=end - start, forwards=1, samples=samples, tokens=tokens)
        else:
            parts = replace(
                self.sums,
                data_wait=wait,
                loader_start=loader,
                forward=end - start,
                backward=0,
                optimizer=0,
                evaluation=0,
                forwards=1,
                backwards=0,
                samples=samples if kind == "infer" else self.sums.samples,
                tokens=tokens,
                tokens_again=again,
                queue_ready=self.held_ready,
            )
        if began:
            self.index += 1
            self.made.append(Made(self.index, kind, end, end - began, parts, plain=plain))
        self.cpu_then = NOT_MEASURED
        self.drop_held()
        self.clear(end)

    def infer_aside(self, start: int, end: int, samples: int, tokens: int) -> None:
        """Take a forward without gradient in another thread than the stepping one: a step, unless the run trains."""
        if self._trains_at(end):
            return
        began, self.infer_end = min(self.infer_end, start), max(end, self.infer_end)
        if began:
            self.index += 1
            parts = Parts(forward=end - start, forwards=1, samples=samples, tokens=tokens)
            self.made.append(Made(self.index, "infer", end, end - began, parts, plain=True))

    # Ends of steps.

    def commit(self, ended: Closed) -> None:
        """End a step with one optimizer: report it and begin the next."""
        guess = self.guessed
        if guess is not None:
            ended.parts.samples, ended.parts.tokens = guess.samples, guess.tokens
        self._report(ended, estimated=guess is not None)
        self.backwards_alone = 0
        self.clear(ended.end)

    def close(self, ended: Closed) -> None:
        """Close a part of a step with several optimizers: the step may end here, or go on with the next optimizer."""
        parts, before = ended.parts, self.closed
        # Optimizers that step right after one another make one update, however many there are.
        most = MOST_TOGETHER if parts.forwards or parts.backwards or self.feeds else MOST_IN_A_ROW
        if len(self.stepped) >= most:
            self.commit_closed()
            before = None
        if before is not None:
            both = before.timing is not None and ended.timing is not None
            ended = ended._replace(
                parts=before.parts.joined(parts),
                timing=(*(before.timing or ()), *(ended.timing or ())) if both else None,
                skipped=ended.skipped or before.skipped,
            )
        self.closed = ended
        self.stepped.add(self.optimizer_last)
        self.closed_feeds |= self.feeds
        self.feeds = set()
        self.clear(ended.end)

    def commit_closed(self) -> None:
        """Report the closed step, as the next round of optimizer steps has begun."""
        if self.closed is None:
            return
        self._report(self.closed)
        self.closed = None
        self.stepped.clear()
        self.last_feeds, self.closed_feeds = self.closed_feeds or self.last_feeds, set()

    def _report(self, ended: Closed, *, estimated: bool = False) -> None:
        """Report a training step if its beginning was seen, and begin the next."""
        end, parts, cpu, timing, skipped = ended
        if self.start:
            spent = cpu - self.cpu_then if cpu >= 0 and self.cpu_then >= 0 else NOT_MEASURED
            self.regular_held, self.had_held = self.had_held, False
            self.index += 1
            made = Made(self.index, "train", end, end - self.start, parts, spent, timing, skipped, estimated=estimated)
            self.made.append(made)
            self.counted.met(made)
        self.start, self.cpu_then = end, cpu
