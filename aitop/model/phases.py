"""The phases of a step, a request or an engine's iteration: from what times them to the hue they are drawn in.

A row is enough for a phase that the hook times with an event of its own: reader, ledger, frames of libraries, screen
and reports take from it what they need to know. `SERVED` has those of a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from aitop.model.steps import StepRecord, total

Phase = Literal[
    "data", "environment", "transfer", "forward", "backward", "optimizer", "exchange", "evaluation", "save", "idle",
    "queue", "preprocess", "schedule", "prepare", "sample", "output", "postprocess", "host",
]  # fmt: skip
PHASE_WORDS: dict[Phase, str] = {
    "data": "the wait for data",
    "save": "saving",
    "exchange": "the exchange with other ranks",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "transfer": "copying to the device",
    "queue": "the wait in the queue",
    "preprocess": "making the input",
    "postprocess": "making the output",
    "host": "the code around the model",
}
"""What phases are called in a sentence, where their key would not be understood."""
# A file and a function of a library, as in the rows of stacks.libraries.
Frames = tuple[str, str]


class MeasuredPhase(NamedTuple):
    """A phase that the hook times. `key` is its name in the ledger and on the screen.

    `hue` is the key of the kind in `ui.theme.palette` that it is drawn as. Where no stack sample fell into it, it is
    taken to compute if `computes`, and to wait if not. The `fields` of a step's record add up to it.

    A phase without fields has an `event` of its own, named as in protocol.events, and lasts from the event's start to
    its end; the reader sums it up in `StepRecord.others` under its key. `frames` are the calls that stand for it in
    stack samples.
    """

    key: Phase
    hue: str
    fields: tuple[str, ...] = ()
    computes: bool = False
    event: str | None = None
    frames: tuple[Frames, ...] = ()

    def total(self, steps: Sequence[StepRecord]) -> float | None:
        """Seconds of the phase in all of these steps together, None where it was measured in none of them."""
        values = [total(steps, field) for field in self.fields]
        if self.event is not None:
            values += [step.others.get(self.key) for step in steps]
        measured = [value for value in values if value is not None]
        return sum(measured) if measured else None

    def seconds(self, step: StepRecord) -> float:
        """Seconds of the phase in this step, 0 where it was not measured."""
        seconds = step.others.get(self.key, 0.0)
        for field in self.fields:
            seconds += getattr(step, field) or 0.0
        return seconds


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
TIMED_ALONE = tuple(phase for phase in MEASURED if phase.event is not None)
"""The phases with an event of their own."""
APART = tuple(phase for phase in MEASURED if phase.key in ("evaluation", "save") or phase.event is not None)
"""The phases that are contained in `StepRecord.outside` and `Phases.outside`."""


class ServedPhase(NamedTuple):
    """A phase of a server's work. `key` is its name in the ledger and on the screen, `hue` as for a MeasuredPhase.

    `iteration` and `request` are the fields of IterationRecord and RequestRecord that have its seconds, None where
    such a record has no such field. `computes` as for a MeasuredPhase.
    """

    key: Phase
    hue: str
    iteration: str | None = None
    request: str | None = None
    computes: bool = False


SERVED = (
    ServedPhase("queue", "communication", request="queue"),
    ServedPhase("preprocess", "data_wait", request="preprocess", computes=True),
    ServedPhase("schedule", "optimizer", iteration="schedule", computes=True),
    ServedPhase("prepare", "transfer", iteration="prepare", computes=True),
    ServedPhase("forward", "forward", iteration="model", request="model", computes=True),
    ServedPhase("sample", "backward", iteration="sample", computes=True),
    ServedPhase("output", "save", iteration="output", computes=True),
    ServedPhase("postprocess", "save", request="postprocess", computes=True),
    ServedPhase("idle", "outside", iteration="idle"),
)
"""The phases of a server, in the order in which they follow one another. While it is idle it waits for requests."""
