"""Finds the position of host code in a step, and the forward passes that are an evaluation. Pure.

Stacks show below which lines of the user's functions the libraries run each phase. A function that calls the model on
one line and updates it on another makes steps; its other lines are before, within or after these. If the dataflow of
the function is known, a line whose value goes into the model's call makes input, wherever it stands. A line that makes
the next input from the last output belongs to an environment, unless it only converts, as in sampling an action. Where
a framework's loop makes the steps, its functions tell in the same way where what they call stands, callbacks among it.
Names in the user's code are not used.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aitop.model.ledger import Position
from aitop.model.stacks import Flow, Frame
from aitop.model.steps import Caller
from aitop.stacks.dataflow import ModelCalls, innermost
from aitop.stacks.libraries import COMPUTES, Phase, begins_task, meaning
from aitop.stacks.reading import Seen

Function = tuple[str, str]

UPDATES: frozenset[Phase] = frozenset({"backward", "optimizer"})
# Phases that a step is made of.
STEPPING: frozenset[Phase] = frozenset({"data_wait", "environment", "forward", "backward", "optimizer"})
# A function only evaluates if it has fewer samples of training than this share of its samples of evaluation.
_LEAST_OF_PHASE = 0.1
# A stack that changes while it is read may combine the line of one moment with the calls of another, in up to this
# share of a function's samples. Fewer do not prove that a phase runs below a line, unless no other line has more of it.
_TORN = 0.01
# In loops of a few milliseconds more stacks are torn, in up to this share of a phase's samples in a function. So many
# prove it only for a line that has the phase in most of its samples.
_TORN_OF_PHASE = 0.1


@dataclass
class _Anchors:
    """By phase, the lines of one function below which it was seen, and how often, of all `samples` of the function.

    `seen` has the samples of each line in whatever phase; `callers` are the lines below which the hook saw a phase.
    """

    samples: int = 0
    seen: Counter[int] = field(default_factory=Counter)
    lines: dict[Phase, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    callers: dict[Phase, set[int]] = field(default_factory=lambda: defaultdict(set))

    def of(self, *phases: Phase) -> frozenset[int]:
        """The lines below which any of these phases runs."""
        return frozenset(line for phase in phases for line in self._lines_of(phase))

    def _lines_of(self, phase: Phase) -> set[int]:
        """The lines below which a phase runs in most steps.

        The hook's stacks are never torn, so where it saw the phase in this function, only its lines count. A line among
        them that is hardly ever sampled does not run in most steps (an occasional evaluation, say), and is dropped if
        others remain.
        """
        counts = self.lines.get(phase)
        if not counts:
            return set()
        least, most = min(_TORN * self.samples, max(counts.values())), _TORN_OF_PHASE * counts.total()
        sampled = {
            line for line, count in counts.items() if count >= least and (count >= most or 2 * count >= self.seen[line])
        }
        callers = self.callers.get(phase, set())
        often = {line for line in callers if line in sampled or self.seen[line] >= _TORN * self.samples}
        return often or callers or sampled

    @property
    def forwards(self) -> frozenset[int]:
        """The lines below which the model runs."""
        return self.of("forward")

    @property
    def updates(self) -> frozenset[int]:
        """The lines below which the model is updated."""
        return self.of(*UPDATES)


_NO_ANCHORS = _Anchors()


class StepFunctions:
    """Which functions and lines of one thread make its steps, learnt from all its stacks.

    `callers` are the lines below which the hook saw the model called and updated. Samples may miss them: in a loop of
    less than a millisecond, stacks as deep as such a call are often lost. Lines that were not sampled are used for the
    dataflow only, because a line that calls the model now and then, to evaluate it, is no part of the steps.
    """

    def __init__(
        self,
        stacks: Iterable[tuple[Seen, int]],
        flows: Mapping[str, Sequence[Flow]] | None = None,
        callers: Iterable[Caller] = (),
    ) -> None:
        seen = [(stack, count) for stack, count in stacks if not stack.worker and not stack.importing]
        self._models = any(stack.model for stack, _ in seen)
        self._anchors: dict[Function, _Anchors] = {}
        for stack, count in seen:
            # Where the model is no module, stacks cannot tell its functions from those of a loss, so they are no call.
            phase = "outside" if stack.phase == "forward" and not stack.model else stack.phase
            for index, frame in stack.stages:
                if index >= stack.library:
                    continue
                anchors = self._anchors.setdefault((frame.file, frame.function), _Anchors())
                anchors.samples += count
                anchors.seen[frame.line] += count
                if phase in STEPPING:
                    anchors.lines[phase][frame.line] += count
        for caller in callers:
            if (function := self._anchors.get((caller.file, caller.function))) is not None:
                function.callers[caller.phase].add(caller.line)
        self._flows = flows or {}
        self._model_calls: dict[Function, ModelCalls | None] = {}
        self.trains = any(stack.phase in UPDATES for stack, _ in seen)
        self._evaluating = self._functions_that_evaluate(seen) if self.trains else frozenset()

    def phase(self, stack: Seen) -> Phase:
        """The phase of a stack, corrected by the other stacks (a forward pass after the update evaluates, say)."""
        if stack.phase in ("forward", "outside", "data_wait") and not stack.worker:
            users = [frame for frame in stack.frames if frame.user]
            if any((frame.file, frame.function) in self._evaluating for frame in users) or (
                stack.phase == "forward" and self._evaluates(stack) is not None
            ):
                return "evaluation"
            if stack.phase == "outside" and self.trains and self._is_environment(stack, users):
                return "environment"
        # A loss that is a module looks like a model.
        return "outside" if stack.phase == "forward" and self._calls_another_module(stack) else stack.phase

    def apart(self, stack: Seen) -> bool:
        """Whether one request calls the model in a loop, and no call needs what an earlier one gave.

        Only if the loop calls the model itself: a function in between may keep something for the next call.
        """
        loops: list[bool | None] = []
        for frame in reversed(stack.frames[: stack.library]):
            if frame.user:
                calls = self._calls_in(frame)
                loops.append(calls.apart(frame.line) if calls is not None else None)
            elif begins_task(frame):
                return loops[:1] == [True] and not any(loop is not None for loop in loops[1:])
        return False

    def position(self, stack: Seen) -> Position | None:
        """The position in a step of a stack outside of every phase; None if no function that makes steps is on it."""
        stages = [frame for _, frame in stack.stages]
        for index, frame in reversed(list(enumerate(stages))):
            anchors, calls = self._of(frame), self._calls_in(frame)
            if calls is not None and calls.feeds(frame.line):
                return "before"
            if self.trains and calls is not None and calls.answers(frame.line):
                return "within"
            framework = any(not each.user for each in stages[index : index + 2])
            inner = _calls_next(stack, index)
            if inner and calls is not None and calls.follows(frame.line, stages[index + 1]):
                inner = False
            place = self._place(anchors, frame.line, stack, inner=inner, framework=framework)
            if place == "after" and not anchors.updates and self.trains:
                # This function calls the model but does not update it: its callers tell if the update follows.
                return self._outer_place(stages[:index]) or place
            if place == "before" and not frame.user and meaning(frame).handler is None:
                # A framework's loop calls more than what makes the model's input, and its dataflow is not read.
                return None
            if place is not None:
                return place
        return None

    def _calls_another_module(self, stack: Seen) -> bool:
        """Whether a forward pass is of a module that the hook does not measure: it saw models called on other lines."""
        measured = (self._of(frame).callers.get("forward", ()) for frame in reversed(stack.callers))
        frames = zip(reversed(stack.callers), measured, strict=True)
        return next((frame.line not in lines for frame, lines in frames if lines), False)

    def _is_environment(self, stack: Seen, users: Sequence[Frame]) -> bool:
        """Whether a frame makes the model's next input from its last output, and not by array operations alone."""
        for frame in users:
            calls = self._calls_in(frame)
            if calls is not None and calls.answers(frame.line):
                converts = frame is users[-1] and (stack.leaf or stack.work in COMPUTES)
                if not converts or calls.carries(frame.line):
                    return True
        return False

    def _of(self, frame: Frame) -> _Anchors:
        return self._anchors.get((frame.file, frame.function), _NO_ANCHORS)

    def _calls_in(self, frame: Frame) -> ModelCalls | None:
        """The model's calls in the function of a frame; None if there are none or its dataflow is not known."""
        function = frame.file, frame.function
        if function not in self._model_calls:
            anchors, flow = self._of(frame), innermost(self._flows.get(frame.file, ()), frame.line)
            calls = anchors.forwards | anchors.callers.get("forward", set())
            self._model_calls[function] = ModelCalls(flow, calls, anchors.updates) if flow and calls else None
        return self._model_calls[function]

    def _outer_place(self, stages: Sequence[Frame]) -> Position | None:
        for frame in reversed(stages):
            updates = self._of(frame).updates
            if updates:
                return "within" if frame.line <= max(updates) else "after"
        return None

    def _place(self, anchors: _Anchors, line: int, stack: Seen, *, inner: bool, framework: bool) -> Position | None:
        """The position of a line in a function with these anchors; None if frames further out decide.

        `inner`: the line calls the next stage itself; `framework`: it is a framework's, or calls one.
        """
        forwards, updates = anchors.forwards, anchors.updates
        if not forwards and not updates:
            return None
        first = min(forwards or updates)
        last = max(forwards | updates)
        # Where the model is no module, code that computes before the backward, or is called on its line, counts as the
        # model.
        ahead: Position = "before" if forwards or self._models or not _computes(stack) else "within"
        if line < first:
            return ahead
        if line == first:
            if inner and (framework or (self._models and not forwards)):
                # Another call on a line that updates the model, or below which a framework makes the steps, such as a
                # callback.
                return None
            # A function called on the same line as the model usually computes an argument for it.
            return ahead if inner else "within"
        if line <= last:
            return "gradients" if self._has_gradients(anchors, line) else "within"
        later = [number for number in anchors.of("data_wait") if number > last]
        return "before" if later and line >= min(later) else "after"

    @staticmethod
    def _has_gradients(anchors: _Anchors, line: int) -> bool:
        """Whether the last phase above a line is a backward, and an optimizer follows."""
        earlier = [number for number in anchors.forwards | anchors.updates if number < line]
        backward = anchors.of("backward") - anchors.of("optimizer")
        return max(earlier, default=0) in backward and line <= max(anchors.of("optimizer"), default=0)

    def _evaluates(self, stack: Seen) -> int | None:
        """The index in `callers` of the training function that starts this evaluation; None if the pass trains."""
        for index, frame in reversed(list(enumerate(stack.callers))):
            updates = self._of(frame).updates
            if not updates:
                continue
            if not self._of(frame).of("optimizer") and any(map(self._updates_later, stack.callers[:index])):
                # It takes gradients for itself, and a caller updates the model with what it gives, as in meta-learning.
                return None
            own_data = any(self._of(inner).of("data_wait") for inner in stack.callers[index + 1 :])
            return index if frame.line not in updates and (frame.line > max(updates) or own_data) else None
        return None

    def _updates_later(self, frame: Frame) -> bool:
        """Whether the function of this frame has an optimizer update the model on a later line."""
        return frame.line < max(self._of(frame).of("optimizer"), default=0)

    def _functions_that_evaluate(self, seen: Sequence[tuple[Seen, int]]) -> frozenset[Function]:
        """The user's functions that only run evaluations, never steps."""
        evaluating: Counter[Function] = Counter()
        training: Counter[Function] = Counter()
        for stack, count in seen:
            if stack.phase != "forward" and stack.phase not in UPDATES:
                continue
            evaluates = self._evaluates(stack) if stack.phase == "forward" else None
            for index, frame in enumerate(stack.callers):
                side = training if evaluates is None or index <= evaluates else evaluating
                side[frame.file, frame.function] += count
        return frozenset(
            function for function, count in evaluating.items() if training[function] < _LEAST_OF_PHASE * count
        )


def _computes(stack: Seen) -> bool:
    """Whether a stack may be of a model: no library on it waits, or works on anything but arrays."""
    return stack.state in (None, "compile") and stack.work in (None, *COMPUTES)


def _calls_next(stack: Seen, index: int) -> bool:
    """Whether the stage of this index calls the next one itself, not through an array library.

    A function that such a library calls (to differentiate it, say) is a part of the library's call.
    """
    if index + 1 >= len(stack.stages):
        return False
    (first, _), (last, _) = stack.stages[index : index + 2]
    return not any(meaning(frame).work in COMPUTES for frame in stack.frames[first + 1 : last])
