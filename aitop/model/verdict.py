"""What is wrong, where, how sure we are, and what would be gained. Field names are the JSON contract."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Severity = Literal["critical", "warning", "info"]

SEVERITY_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "info": 2}

# What a share is a part of. "step": the time of the steps. "time": all time of a process without steps, its idle time
# included. "request": the time that requests take. "tail": the time by which the slowest requests take longer than
# the usual one.
Base = Literal["step", "time", "request", "tail"]
BASES: dict[Base, str] = {"step": "step time", "time": "the time", "request": "request time", "tail": "the tail"}
"""Each base in words."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, or of a library that is all of the program; `share` is of the samples of the processes
    where the time is lost.
    """

    pid: int
    file: str
    line: int
    function: str
    share: float | None = None
    text: str | None = None

    @property
    def at(self) -> tuple[str, int]:
        """File and line."""
        return self.file, self.line


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A named setting to change. `current` is None where it is not known. In JSON: name, from, to."""

    name: str
    to: int | float | str | bool
    current: int | float | str | bool | None = msgspec.field(default=None, name="from")


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A change to make, and the factor by which units per second would grow on this machine with it alone."""

    text: str
    speedup: float | None = None
    setting: Setting | None = None


class NamedShare(msgspec.Struct, frozen=True, kw_only=True):
    """A cause by name, and the share (0..1) that it explains of the time that a verdict is about."""

    name: str
    share: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `share` is the part (0..1) of its `base` that is lost, `speedup` the factor by which units per
    second would grow if the cause were gone.

    `speedup_range` bounds that factor (95 %). `confidence` (0..1) is how sure the cause is, not the gain. `processes`
    are the pids of the processes that lose the time. `parts` are the causes of that time, the largest first, where it
    has several. `since` is when it began (seconds since the epoch), None where that is not known.
    `full_in` is the number of seconds until the memory that the verdict is about is full, at the present rate.
    """

    id: str
    severity: Severity
    title: str
    confidence: float
    subtype: str | None = None
    share: float | None = None
    base: Base = "step"
    speedup: float | None = None
    where: tuple[Where, ...] = ()
    evidence: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    ranks: tuple[int, ...] = ()
    speedup_range: tuple[float, float] | None = None
    processes: tuple[int, ...] = ()
    parts: tuple[NamedShare, ...] = ()
    since: float | None = None
    full_in: float | None = None


class Abstention(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that lacked evidence to judge, with what is missing."""

    id: str
    reason: str


def by_reason(abstained: Iterable[Abstention]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each reason once, in the order in which they came up, with the ids of the verdicts that could not be judged."""
    ids_by_reason: dict[str, list[str]] = {}
    for abstention in abstained:
        ids_by_reason.setdefault(abstention.reason, []).append(abstention.id)
    return tuple((reason, tuple(ids)) for reason, ids in ids_by_reason.items())


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All findings of one tick, the primary one first, and what could not be judged."""

    verdicts: tuple[Verdict, ...] = ()
    abstained: tuple[Abstention, ...] = ()

    @property
    def primary(self) -> Verdict | None:
        """The finding that costs most, if any."""
        return self.verdicts[0] if self.verdicts else None
