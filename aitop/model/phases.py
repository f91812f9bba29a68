"""The phases of a step: one table, from what times them in the process to the hue that they are drawn in.

A row is enough for a phase that the hook times with an event of its own: reader, ledger, frames of libraries and
screen take from it what they need to know.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from aitop.model.steps import StepRecord

Phase = Literal[
    "data", "environment", "transfer", "forward", "backward", "optimizer", "exchange", "evaluation", "save", "host"
]
# A file and a function of a library, as in the rows of stacks.libraries.
Frames = tuple[str, str]


class MeasuredPhase(NamedTuple):
    """A phase that the hook times. `key` is its name in the ledger and on the screen.

    `hue` is the key of the kind in `ui.theme.palette` that it is drawn as. `computes` says what it does where no stack
    sample fell into it: it computes, or it waits. `fields` of a step's record add up to it.

    A phase without fields has an `event` of its own (see protocol.events), from whose start to whose end it lasts; the
    reader sums it up in `StepRecord.others` under its key. `frames` are the calls that stand for it in stack samples.
    """

    key: Phase
    hue: str
    fields: tuple[str, ...] = ()
    computes: bool = False
    event: int | None = None
    frames: tuple[Frames, ...] = ()

    def is_measured(self, step: StepRecord) -> bool:
        """Whether it was watched in this step, for one with an event: whether it came."""
        return any(getattr(step, field) is not None for field in self.fields) or self.key in step.others

    def seconds(self, step: StepRecord) -> float:
        """How long it took in this step, 0 where it was not measured."""
        return sum(getattr(step, field) or 0.0 for field in self.fields) + step.others.get(self.key, 0.0)


MEASURED = (
    MeasuredPhase("data", "data_wait", ("data_wait", "loader_start")),
    MeasuredPhase("forward", "forward", ("forward",), computes=True),
    MeasuredPhase("backward", "backward", ("backward",), computes=True),
    MeasuredPhase("optimizer", "optimizer", ("optimizer",), computes=True),
    MeasuredPhase("evaluation", "save", ("evaluation",), computes=True),
    MeasuredPhase("save", "save", ("save",)),
    MeasuredPhase("transfer", "transfer", ("transfer_apart",)),
    MeasuredPhase("exchange", "communication", ("communication_apart",)),
)
TIMED_ALONE = {phase.event: phase for phase in MEASURED if phase.event is not None}
"""Those with an event of their own, by its kind."""
APART = tuple(phase for phase in MEASURED if phase.key in ("evaluation", "save") or phase.event is not None)
"""Those that `StepRecord.outside` and `Phases.outside` have in them."""
