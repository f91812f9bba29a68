"""Holds the verdicts of a run against what is expected of its scenario."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "scenarios"))

from expected import HEALTHY, Scenario

from aitop.model.verdict import Verdict


@dataclass(frozen=True)
class Seen:
    """The verdicts of one tick, `elapsed` seconds after the start."""

    elapsed: float
    verdicts: tuple[Verdict, ...]


@dataclass
class Row:
    """What one scenario got at one tier.

    `right_line` is None where no line is expected. `seconds` passed until the right verdict came first for good.
    `alarms` are untrue warnings: at the last tick, on a healthy run at any. `if_gone` is the factor if the cause were
    gone, `gone_range` its bounds; `predicted` is the factor of the change that `--fixed` makes, and `recommended` says
    whether that change is the first of the fixes. `mended` runs have the fix already. `code` is the commit that judged.
    """

    name: str
    tier: int
    expected: str
    said: str
    right: bool
    right_line: bool | None = None
    seconds: float | None = None
    where: str | None = None
    share: float | None = None
    confidence: float | None = None
    if_gone: float | None = None
    gone_range: tuple[float, float] | None = None
    predicted: float | None = None
    recommended: bool | None = None
    fixes: list[tuple[str, float | None]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    note: str = ""
    code: str = ""
    mended: bool = False

    def same_as(self, other: Row, *, source_gone: bool) -> bool:
        """Whether the answer is the other one's. The line of a leak is read from the source: it goes with it."""
        if source_gone and self.said == other.said == "memory-leak":
            return self.answer[2] == other.answer[2]
        return self.answer == other.answer

    def flawless(self) -> bool:
        """Whether verdict and line are right, and nothing else is warned of."""
        return self.right and self.right_line is not False and not self.alarms

    @property
    def answer(self) -> tuple[str, str | None, tuple[str, ...]]:
        """What must not depend on names, source text or order: first verdict, its line, the untrue warnings."""
        return self.said, self.where, tuple(sorted(self.alarms))


def row_of(scenario: Scenario, tier: int, ticks: Sequence[Seen], files: Mapping[str, str] | None = None) -> Row:
    """The row of a run. `files` has the true names of files that ran under another name."""
    verdicts = ticks[-1].verdicts if ticks else ()
    wanted = scenario.verdict + (f"/{'|'.join(scenario.subtypes)}" if scenario.subtypes else "")
    row = Row(scenario.name, tier, wanted, "nothing", is_right(scenario, tier, ticks[-1:]))
    row.alarms = alarms(scenario, ticks)
    row.seconds = right_since(scenario, tier, ticks)
    names_line = bool(scenario.guilty) and tier > 1
    if names_line:
        row.right_line = False
    if not verdicts:
        return row
    first = verdicts[0]
    row.said = named(first)
    row.others = [f"{named(verdict)} {verdict.severity}" for verdict in verdicts[1:]]
    row.share, row.confidence = first.share, first.confidence
    row.if_gone, row.gone_range = first.speedup, first.speedup_range
    row.fixes = [(fix.text, fix.speedup) for fix in first.fixes]
    row.predicted, row.recommended = predicted(first, scenario.remedy)
    if first.where:
        place = first.where[0]
        name = Path(place.file).name
        file = (files or {}).get(name, name)
        row.where = f"{file}:{place.line}"
        if names_line:
            row.right_line = file == scenario.script.name and place.line in scenario.guilty_lines()
    return row


def is_right(scenario: Scenario, tier: int, ticks: Sequence[Seen]) -> bool:
    """Whether the first verdict of the last tick is the planted fault. Without stacks a healthy run may be silent."""
    if not ticks:
        return False
    verdicts = ticks[-1].verdicts
    if not verdicts:
        return scenario.healthy() and tier == 1
    return scenario.accepts(verdicts[0].id, verdicts[0].subtype)


def right_since(scenario: Scenario, tier: int, ticks: Sequence[Seen]) -> float | None:
    """When the right verdict came first and stayed; None if it is not first at the end, and on a healthy run."""
    if scenario.healthy():
        return None
    since = None
    for number in range(len(ticks), 0, -1):
        if not is_right(scenario, tier, ticks[:number]):
            break
        since = ticks[number - 1].elapsed
    return since


def alarms(scenario: Scenario, ticks: Sequence[Seen]) -> list[str]:
    """Warnings that are not true: at the last tick, on a healthy run at any."""
    true = scenario.true_ids()
    judged = ticks if scenario.healthy() else ticks[-1:]
    untrue = (v for tick in judged for v in tick.verdicts if v.severity != "info" and v.id not in true)
    return list(dict.fromkeys(named(verdict) for verdict in untrue))


def named(verdict: Verdict) -> str:
    """Id and subtype."""
    return verdict.id + (f"/{verdict.subtype}" if verdict.subtype else "")


def predicted(verdict: Verdict, remedy: str) -> tuple[float | None, bool | None]:
    """The factor of the change that `--fixed` makes, and whether that change is recommended first.

    `remedy` is a pattern for the text of that change; where it is empty, `--fixed` removes the cause, which is what
    the first fix is for.
    """
    if verdict.id == HEALTHY and verdict.subtype is None:
        return None, None
    place = next((n for n, fix in enumerate(verdict.fixes) if re.search(remedy, fix.text)), None)
    if place is None:
        return verdict.speedup, False if verdict.fixes else None
    known = verdict.fixes[place].speedup
    return verdict.speedup if known is None else known, place == 0
