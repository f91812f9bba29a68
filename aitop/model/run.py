"""The summary of a run in some kilobytes, and how two runs differ. Names of the difference are the JSON contract."""

from __future__ import annotations

import math
from typing import Literal, Union

import msgspec

from aitop.model.ledger import Unit
from aitop.model.serving import Percentiles
from aitop.model.steps import Kind
from aitop.model.verdict import Verdict, Where

Scalar = Union[int, float, str, bool, None]  # noqa: UP007, msgspec needs it at run time
Outcome = Literal["faster", "slower", "same", "cannot-tell"]
LoadUnit = Literal["sample", "token"]
Interval = tuple[float, float]
# A file may say anything, so figures outside of these limits are refused: seconds below SHORTEST, and whatever is above
# MOST. A part of a time that is measured by itself may be up to MOST_TIMES as long as that time; a part that is
# computed as a share of it up to MOST_OF_IT, as it is only written with few digits.
SHORTEST, MOST, MOST_TIMES, MOST_OF_IT = 1e-9, 1e15, 2.0, 1.01


class Units(msgspec.Struct, frozen=True, kw_only=True):
    """All units of work of one kind that a process did, in order, as stretches of `each` units.

    `seconds` has the length of each stretch, `phases` the seconds of each phase in it, `samples` and `tokens` what went
    into it; None where some unit did not count them. `waited` is how long other programs kept the main thread from a
    core, `ran` how long it had one, `others` the seconds times the part of the machine's cores that other programs had;
    None where that is not known.
    """

    kind: Unit
    each: int
    seconds: tuple[float, ...]
    phases: dict[str, tuple[float, ...]] = {}
    waited: tuple[float, ...] | None = None
    ran: tuple[float, ...] | None = None
    others: tuple[float, ...] | None = None
    samples: tuple[float, ...] | None = None
    tokens: tuple[float, ...] | None = None

    @property
    def count(self) -> int:
        return self.each * len(self.seconds)

    @property
    def is_sound(self) -> bool:
        """Whether the figures are possible: one per stretch, none below 0, and no part longer than its stretch."""
        least = SHORTEST if self.each > 0 else math.inf
        parts = [(part, MOST_TIMES) for part in (*self.phases.values(), self.ran) if part is not None]
        parts += [(part, MOST_OF_IT) for part in (self.waited, self.others) if part is not None]
        within = all(
            len(part) == len(self.seconds)
            and all(0 <= value <= most * seconds for value, seconds in zip(part, self.seconds, strict=True))
            for part, most in parts
        )
        counts = [part for part in (self.samples, self.tokens) if part is not None]
        counted = all(len(part) == len(self.seconds) and all(0 <= value <= MOST for value in part) for part in counts)
        return within and counted and self.each <= MOST and all(least <= value <= MOST for value in self.seconds)


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Means over a run: the cores that other programs used (`others`), and those that the machine has (`machine`)."""

    others: float
    machine: float


class SoFar(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all the `seconds` since watching began. `units` are those of the process to show first, by kind.

    `concurrency` is the mean number of requests under way.
    """

    seconds: float = 0.0
    units: tuple[Units, ...] = ()
    cores: Cores | None = None
    concurrency: float | None = None


class LineShare(msgspec.Struct, frozen=True, kw_only=True):
    """The share (0..1) of a phase that a line takes; its 95 % interval is `share` ± `off`."""

    phase: str
    where: Where
    share: float
    off: float


class StackNode(msgspec.Struct, frozen=True, array_like=True):
    """A function below its caller: FILE:LINE, whose code it is, its samples, and what it calls."""

    function: str
    place: str
    whose: str
    samples: int
    children: tuple[StackNode, ...] = ()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one run. `ended` is when it was last seen (seconds since the epoch), `watched` for how many
    seconds it was watched.

    `rest` divides the time that lies in no measured phase of `units`; its shares add up to 1. `lines` are the lines
    that take a notable part of each phase.
    `verdicts` are those at the end. `settings` are facts that a user may have changed, by the name that users know.
    `file` is where the run was read from. `latency` is that of a server's last requests. `stacks` has the last sampled
    call tree of the threads that do the work, by the role of their processes.
    """

    kind: Kind
    watched: float
    ended: float
    command: str = ""
    script: str | None = None
    units: Units | None = None
    rest: dict[str, float] = {}
    lines: tuple[LineShare, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    settings: dict[str, Scalar] = {}
    cores: Cores | None = None
    concurrency: float | None = None
    latency: Percentiles | None = None
    stacks: dict[str, StackNode] = {}
    file: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the figures are possible for a run."""
        figures = [self.watched, self.ended, self.concurrency or 0.0]
        if self.cores is not None:
            figures += [self.cores.others, self.cores.machine]
        if self.latency is not None:
            figures += [self.latency.p50, self.latency.p95, self.latency.p99]
        figures += [line.off for line in self.lines]
        shares = [*self.rest.values(), *(line.share for line in self.lines)]
        shares += [verdict.share or 0.0 for verdict in self.verdicts]
        return (
            (self.units is None or self.units.is_sound)
            and all(0 <= figure <= MOST for figure in figures)
            and all(0 <= share <= MOST_TIMES for share in shares)
            and (self.cores is None or 0 < self.cores.machine >= self.cores.others / MOST_TIMES)
            and all(_is_tree(node) for node in self.stacks.values())
        )


def _is_tree(node: StackNode) -> bool:
    """Whether no function has more samples than its caller."""
    waiting = [node]
    while waiting:
        caller = waiting.pop()
        if not all(0 <= called.samples <= caller.samples for called in caller.children):
            return False
        waiting += caller.children
    return 0 <= node.samples <= MOST


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of two runs: the number of units compared, which follow `warm_up` units at the start, and their mean length.

    For a server, `per_s` is the number of requests answered per second, `latency_ms` the latency of the last ones.
    """

    file: str
    command: str
    kind: str
    unit: str | None
    units: int
    warm_up: int
    watched_s: float
    mean_ms: float | None
    per_s: float | None = None
    latency_ms: Percentiles | None = None


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples or tokens go into a unit in each run, in the mean."""

    unit: LoadUnit
    before: float
    after: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """How throughput changed. `ratio` is the one after divided by the one before (2.0: twice as fast), `range` its 95 %
    interval.

    `at_equal_load` says whether both runs had the same load; None where it is not known. Where what goes into a unit
    changed, `load` has it, and the second run's lengths are scaled to that of the first. `other_cores` is how many
    cores other programs took in each run. `reason` says why the change cannot be told, or which phase alone tells it.
    `record_s` is for how many seconds to record both runs instead, None where that would not help.
    """

    verdict: Outcome
    ratio: float | None = None
    range: Interval | None = None
    at_equal_load: bool | None = None
    load: Load | None = None
    other_cores: tuple[float, float] | None = None
    reason: str | None = None
    record_s: float | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How a part of a unit differs in two runs. `range` bounds the difference (95 %), None where that is not known."""

    before_ms: float
    after_ms: float
    delta_ms: float
    range: Interval | None = None


class PhasePart(Difference, frozen=True, kw_only=True):
    """The difference in one phase."""

    phase: str


class CausePart(Difference, frozen=True, kw_only=True):
    """The part of the difference that a verdict explains; `id` None is the part that none explains."""

    id: str | None


class LinePart(Difference, frozen=True, kw_only=True):
    """The difference in one line of the user's code; where `where` is None, in what is left of a phase."""

    where: Where | None = None
    phase: str | None = None


class ChangedNode(msgspec.Struct, frozen=True, array_like=True):
    """A function below its caller in either run: milliseconds per unit that it was on the stack, before and after.

    `sure` says that they differ by more than chance explains. `place` is that of the second run if it is in that one.
    """

    function: str
    place: str
    whose: str
    before_ms: float
    after_ms: float
    sure: bool
    children: tuple[ChangedNode, ...] = ()


class SettingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that differs; None is not known."""

    name: str
    before: Scalar
    after: Scalar


class VerdictChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Verdicts of the first run alone (`gone`), of the second alone (`new`), and of both, as the second has them."""

    gone: tuple[Verdict, ...] = ()
    new: tuple[Verdict, ...] = ()
    kept: tuple[Verdict, ...] = ()


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How two runs differ. The differences of `phases`, of `causes` and of `lines` each add up to that of a unit.

    `stacks` has the call trees of both in one, by the role of the processes whose stacks they are.
    """

    schema: int = 1
    before: Side
    after: Side
    change: Change
    phases: tuple[PhasePart, ...] = ()
    causes: tuple[CausePart, ...] = ()
    lines: tuple[LinePart, ...] = ()
    settings: tuple[SettingChange, ...] = ()
    verdicts: VerdictChanges = VerdictChanges()
    stacks: dict[str, ChangedNode] = {}
