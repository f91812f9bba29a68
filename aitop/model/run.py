"""A whole run in a few figures, and how two of them differ: what `aitop compare` reads and says. Times in seconds."""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from aitop.model.ledger import Entry, Unit
from aitop.model.steps import Kind
from aitop.model.verdict import Verdict, Where

Scalar = Union[int, float, str, bool, None]  # noqa: UP007, msgspec needs it at run time
Outcome = Literal["faster", "slower", "same", "cannot-tell"]
LoadUnit = Literal["sample", "token"]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Units of work that followed one another: how many, how long they took together, and what went into them.

    `phases` has the seconds of each phase that was measured, by its key. `samples` and `tokens` are None where one of
    the units did not count them.
    """

    count: int
    seconds: float
    samples: int | None = None
    tokens: int | None = None
    phases: dict[str, float] = {}


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """The mean length of a unit with its 95 % interval, for a run of which no single unit is known."""

    seconds: float
    low: float
    high: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one run. `basis` says what it was read from.

    `stretches` are its units in order, a report has none, and instead `mean`. `entries` and `verdicts` are those of the
    end of the run, the entries of the process that was shown first; `unit` is theirs. `watched` is how long the run was
    looked at. `settings` are facts that a user may have changed, by name, without those that are not known.
    `other_load` is how many cores programs outside of the run took on average, `concurrency` how many requests were
    under way.
    """

    file: str
    basis: Literal["recording", "report"]
    command: str
    script: str | None = None
    kind: Kind = "unknown"
    unit: Unit | None = None
    watched: float = 0.0
    stretches: tuple[Stretch, ...] = ()
    mean: Mean | None = None
    entries: tuple[Entry, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    settings: dict[str, Scalar] = {}
    other_load: float | None = None
    concurrency: float | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a unit, on average, in each of two runs."""

    unit: LoadUnit
    before: float
    after: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run is faster. `ratio` is its throughput relative to that of the run before (2.0: twice as fast).

    `low` and `high` bound it (95 %). `equal_load` is None where what goes into a unit is not known; True also where
    that differs and `load` says what the lengths were scaled to. `reason` says why it cannot be told, or what disturbs
    the comparison; `record_seconds` is for how long to record both runs instead, None where that would not help.
    """

    outcome: Outcome
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    equal_load: bool | None = None
    load: Load | None = None
    reason: str | None = None
    record_seconds: float | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a unit that belongs to a phase, a cause or a line, before and after.

    `low` and `high` bound the difference (95 %), None where the noise of it is not known. `name` is the phase or the
    verdict's id, `where` the line; None of both is the rest.
    """

    before: float
    after: float
    name: str | None = None
    where: Where | None = None
    low: float | None = None
    high: float | None = None

    @property
    def delta(self) -> float:
        """By how much longer it takes, in seconds per unit."""
        return self.after - self.before


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that differs; None is not known."""

    name: str
    before: Scalar
    after: Scalar


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The units of a run that were compared: how many, and their mean length; `warm_up` were left out at the start."""

    count: int
    mean: float | None
    low: float | None = None
    high: float | None = None
    warm_up: int = 0


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How two runs differ. The differences of `phases`, of `causes` and of `lines` add up to that of a unit.

    The lengths of `after`, of the phases, causes and lines are at the load of the run before.
    """

    before: Side
    after: Side
    change: Change
    phases: tuple[Share, ...] = ()
    causes: tuple[Share, ...] = ()
    lines: tuple[Share, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    gone: tuple[Verdict, ...] = ()
    new: tuple[Verdict, ...] = ()
    kept: tuple[Verdict, ...] = ()
