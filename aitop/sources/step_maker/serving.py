"""Whether a run trains, and the steps of one that does not: root forwards without gradient, and calls of `generate`."""

from __future__ import annotations

from aitop.model.steps import StepKind
from aitop.sources.step_maker.events import NOT_MEASURED
from aitop.sources.step_maker.sums import Made, Parts, Sums

# A training run that for so long has only done forwards without gradient is taken for inference from then on.
TRAINING_ENDS_AFTER_NS = 300_000_000_000
GUESSED_TRAINING_ENDS_AFTER_NS = 20_000_000_000


class Serving(Sums):
    """Keeps count of the steps (`index`); `made` takes those that are finished."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []
        self.index = 0
        self.infer_end = 0
        self.training = False
        self.training_time = 0
        self.training_patience = TRAINING_ENDS_AFTER_NS
        self.forwards_alone = 0
        # Since when a run that has trained only serves.
        self.serves_since = 0

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

    def _trains_at(self, now: int) -> bool:
        """Whether it still counts as training at `now`, when nothing but forwards has come for a while."""
        if self.training and now - self.training_time > self.training_patience:
            self.training = False
            self.serves_since = max(self.mark, self.training_time)
            self.drop_held()
            self.clear(now)
            self.infer_end = 0
        return self.training

    def forward_alone_ended(self, start: int, end: int, samples: int, tokens: int) -> None:
        """An outermost forward of a root module, without gradient, has ended."""
        if not self._trains_at(end):
            self.infer(start, end, samples, tokens)
            return
        self.held_forward += end - start
        self.held_forwards += 1
        self.known += end - start

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
