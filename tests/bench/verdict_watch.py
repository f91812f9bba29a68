"""Watches a running script as aitop does, for a fixed time, and holds what was shown against the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "accuracy"))

import msgspec
from expectation import Row, Seen, named, row_of
from expected import Scenario

from aitop.engine.live import LiveFeed, Options
from aitop.model.snapshot import Snapshot
from aitop.outputs.recording import RecordingWriter
from aitop.outputs.report import report_of
from aitop.sources.host.target import look

TIERS = {
    1: Options(stacks=False, hook=False),
    2: Options(hook=False),
    3: Options(),
}


class Watch:
    """Ticks of a feed, in the order in which they were published."""

    def __init__(self, scenario: Scenario, tier: int, alive: Callable[[], bool]) -> None:
        self.scenario = scenario
        self.tier = tier
        self.alive = alive
        self.ticks: list[Seen] = []
        self.last: Snapshot | None = None

    def run(self, pid: int, seconds: float, record_to: Path | None = None) -> None:
        """Attach, watch for so long whatever is shown, record where wanted, and take everything out again."""
        target = look(pid)
        recording = RecordingWriter(record_to, target) if record_to is not None else None
        feed = LiveFeed([target], TIERS[self.tier], recording)
        begun = time.monotonic()

        def publish(snapshot: Snapshot) -> None:
            self.last = snapshot
            self.ticks.append(Seen(time.monotonic() - begun, snapshot.diagnosis.verdicts))

        feed.start(publish)
        try:
            while self.alive() and time.monotonic() - begun < seconds:
                time.sleep(0.1)
        finally:
            feed.stop()

    def row(self) -> Row:
        """Hold what was seen against the table."""
        return row_of(self.scenario, self.tier, self.ticks)

    def report(self) -> dict[str, Any] | None:
        """The report of the last tick, as `diagnose --format json` has it, with the verdicts of every tick."""
        if self.last is None:
            return None
        report: dict[str, Any] = msgspec.to_builtins(report_of(self.last))
        report["ticks"] = [[round(tick.elapsed, 2), [named(v) for v in tick.verdicts]] for tick in self.ticks]
        return report
