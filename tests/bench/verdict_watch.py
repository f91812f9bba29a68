"""Watches a running script as aitop does, notes when which verdict came first, and holds it against the table."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from expected import HEALTHY, Scenario

from aitop.engine.live import LiveFeed, Options
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import Verdict
from aitop.outputs.recording import RecordingWriter
from aitop.outputs.report import report_of
from aitop.sources.target import look

TIERS = {
    1: Options(stacks=False, hook=False),
    2: Options(hook=False),
    3: Options(),
}


@dataclass(frozen=True)
class Patience:
    """How long to watch (seconds): until the right verdict has been first for `settled`, within `least` and `most`."""

    least: float
    most: float
    settled: float

    def over(self, elapsed: float, right_since: float | None) -> bool:
        """Whether there is nothing more to wait for."""
        if elapsed >= self.most:
            return True
        return elapsed >= self.least and right_since is not None and elapsed - right_since >= self.settled


@dataclass(frozen=True)
class Seen:
    """One tick: seconds since attaching, and what was shown."""

    elapsed: float
    verdicts: tuple[Verdict, ...]


@dataclass
class Row:
    """What one scenario got at one tier.

    `seconds` from attaching until the right verdict came first for good; `alarms` are warnings that are not true,
    shown at the end (on a healthy run: ever). `predicted` is that of the change that `--fixed` makes. `code` is the
    commit that watched.
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
    predicted: float | None = None
    fixes: list[tuple[str, float | None]] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    note: str = ""
    code: str = ""


class Watch:
    """Ticks of a feed, in the order in which they were published."""

    def __init__(self, scenario: Scenario, tier: int, alive: Callable[[], bool]) -> None:
        self.scenario = scenario
        self.tier = tier
        self.alive = alive
        self.ticks: list[Seen] = []
        self.last: Snapshot | None = None

    def run(self, pid: int, patience: Patience, record_to: Path | None = None) -> None:
        """Attach, watch, record where that is wanted, and take everything out again."""
        target = look(pid)
        recording = RecordingWriter(record_to, target) if record_to is not None else None
        feed = LiveFeed([target], TIERS[self.tier], recording)
        begun = time.monotonic()

        def publish(snapshot: Snapshot) -> None:
            self.last = snapshot
            self.ticks.append(Seen(time.monotonic() - begun, snapshot.diagnosis.verdicts))

        feed.start(publish)
        try:
            while self.alive() and not patience.over(time.monotonic() - begun, self.right_since()):
                time.sleep(0.1)
        finally:
            feed.stop()

    def right(self, verdicts: tuple[Verdict, ...]) -> bool:
        """Whether the first verdict is the planted fault. Without stacks, silence is right for a healthy run."""
        if not verdicts:
            return self.scenario.healthy() and self.tier == 1 and bool(self.ticks)
        return self.scenario.accepts(verdicts[0].id, verdicts[0].subtype)

    def right_since(self) -> float | None:
        """When the right verdict came first and stayed, None if it is not first now. Never early on a healthy run."""
        since = None
        for tick in reversed(self.ticks):
            if not self.right(tick.verdicts):
                break
            since = tick.elapsed
        return None if self.scenario.healthy() else since

    def row(self) -> Row:
        """Hold what was seen against the table."""
        scenario = self.scenario
        verdicts = self.last.diagnosis.verdicts if self.last else ()
        wanted = scenario.verdict + (f"/{'|'.join(scenario.subtypes)}" if scenario.subtypes else "")
        row = Row(scenario.name, self.tier, wanted, "nothing", self.right(verdicts), alarms=self.alarms())
        row.seconds = self.right_since()
        named_lines = bool(scenario.guilty) and self.tier > 1
        if named_lines:
            row.right_line = False
        if not verdicts:
            return row
        first = verdicts[0]
        row.said = named(first)
        row.others = [f"{named(v)} {v.severity}" for v in verdicts[1:]]
        row.share, row.confidence, row.if_gone = first.share, first.confidence, first.speedup
        row.fixes = [(fix.text, fix.speedup) for fix in first.fixes]
        row.predicted = predicted(first, scenario.remedy)
        if first.where:
            place = first.where[0]
            row.where = f"{Path(place.file).name}:{place.line}"
            if named_lines:
                row.right_line = place.file == str(scenario.script) and place.line in scenario.guilty_lines()
        return row

    def alarms(self) -> list[str]:
        """Warnings that are not true: at the end, on a healthy run ever."""
        true = self.scenario.true_ids()
        ticks = self.ticks if self.scenario.healthy() else self.ticks[-1:]
        found = [
            (v, tick.elapsed) for tick in ticks for v in tick.verdicts if v.severity != "info" and v.id not in true
        ]
        return list(dict.fromkeys(named(verdict) for verdict, _ in found))

    def report(self) -> dict[str, Any] | None:
        """The report of the last tick, as `diagnose --format json` has it, with the verdicts of every tick."""
        if self.last is None:
            return None
        report: dict[str, Any] = msgspec.to_builtins(report_of(self.last))
        report["ticks"] = [[round(tick.elapsed, 2), [named(v) for v in tick.verdicts]] for tick in self.ticks]
        return report


def named(verdict: Verdict) -> str:
    """Id and subtype."""
    return verdict.id + (f"/{verdict.subtype}" if verdict.subtype else "")


def predicted(verdict: Verdict, remedy: str) -> float | None:
    """The factor of the change that `remedy` describes; of the cause being gone where it describes none."""
    if verdict.id == HEALTHY:
        return None
    for fix in verdict.fixes if remedy else ():
        if fix.speedup is not None and re.search(remedy, fix.text):
            return fix.speedup
    return verdict.speedup
