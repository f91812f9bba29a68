"""Starts a script of this folder and lets a hook come and go while it trains, as a monitor would."""

from __future__ import annotations

import bisect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high as median
from typing import Any

from aitop.attach.entrance import install, remove
from aitop.model.steps import HookFacts, StepRecord
from aitop.sources.ring.reader import HookRing
from waiting import until

FOLDER = Path(__file__).parent
PHASES = ("data_wait", "forward", "backward", "optimizer")
PATIENCE = 90.0
STEPS_BEFORE, RECORDS, STEPS_AFTER = 3, 14, 3

Wants = Callable[[HookFacts, list[StepRecord]], object]


def has_loaders(facts: HookFacts, records: list[StepRecord]) -> bool:
    return bool(facts.loaders)


@dataclass
class Seen:
    """One run: `steps` as the script wrote them down, `again` those of its undisturbed repetition, `records` what the
    hook said. The hook was surely out for the first steps up to number `before`, in from `came`, and out from `left`.
    """

    records: list[StepRecord]
    facts: HookFacts | None
    steps: list[dict[str, Any]]
    before: int = 0
    came: int = 0
    left: int = 0
    again: list[dict[str, Any]] = field(default_factory=list)

    def matched(self) -> list[tuple[StepRecord, int]]:
        """Each record with the number of the script's step that ended with it: the first one noted after its end."""
        ends = [step["end"] for step in self.steps]
        return [(record, bisect.bisect_left(ends, record.end)) for record in self.records]


class Script:
    """A script that trains in one way after another, each until it is told."""

    def __init__(self, name: str, folder: Path, kinds: tuple[str, ...]) -> None:
        self.folder = folder
        self.errors = folder / "errors"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(FOLDER / name), str(folder), *kinds],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"},
            )

    def notes(self, file: str) -> list[dict[str, Any]]:
        path = self.folder / file
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def until(self, come: Callable[[], object], what: str) -> None:
        def come_or_ended() -> object:
            if self.process.poll() is not None and not come():
                raise AssertionError(f"the script ended before {what}:\n{self.errors.read_text()[-3000:]}")
            return come()

        until(come_or_ended, PATIENCE, why_not=lambda: f"no {what}:\n{self.errors.read_text()[-3000:]}")

    def watch(self, kind: str, pid: int | None = None, rank: str = "", wants: Wants = has_loaders) -> Seen:
        """Let the hook in, read it until the newest facts and all records are what one `wants`, and take it out."""
        pid, log = pid or self.process.pid, f"{kind}{rank}"
        self.until(lambda: len(self.notes(f"{log}.steps")) >= STEPS_BEFORE, f"step of {log}")
        before = len(self.notes(f"{log}.steps"))
        install(pid, timeout=20.0)
        came = len(self.notes(f"{log}.steps"))
        records, facts = self._read(pid, wants)
        remove(pid, timeout=20.0)
        left = len(self.notes(f"{log}.steps"))
        self.until(lambda: len(self.notes(f"{log}.steps")) >= left + STEPS_AFTER, f"step of {log} afterwards")
        return Seen(records, facts, [], before, came, left)

    def finish(self, kind: str, seen: Seen, rank: str = "") -> Seen:
        """Tell the script that this run is over, and take down what it wrote."""
        (self.folder / f"{kind}.stop").touch()
        self.until((self.folder / f"{kind}{rank}.done").exists, f"end of {kind}{rank}")
        seen.steps, seen.again = self.notes(f"{kind}{rank}.steps"), self.notes(f"{kind}{rank}.again")
        return seen

    def _read(self, pid: int, wants: Wants) -> tuple[list[StepRecord], HookFacts | None]:
        ring = HookRing(pid)
        records: list[StepRecord] = []
        facts: list[HookFacts] = []

        def enough() -> bool:
            ring.renew()
            sample = ring.read(time.monotonic())
            records.extend(sample.steps)
            if sample.facts is not None:
                facts.append(sample.facts)
            return len(records) >= RECORDS and bool(facts) and bool(wants(facts[-1], records))

        try:
            self.until(enough, "records of the hook")
        finally:
            ring.close()
        return records, facts[-1] if facts else None

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(3)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self.process.wait(60)


def check_losses(seen: Seen) -> None:
    """Bit for bit those of the undisturbed run."""
    losses = [step["losses"] for step in seen.steps]
    assert len({str(loss) for loss in losses}) > RECORDS
    assert losses == [step["losses"] for step in seen.again]


def check_nothing_stays(seen: Seen) -> None:
    """Something was changed while the hook was in, and nothing was before or afterwards."""
    assert not any(step["changed"] for step in seen.steps[: seen.before])
    assert any(step["changed"] for step in seen.steps[seen.came : seen.left])
    # The step in which the hook left may have been looked at before.
    assert not any(step["changed"] for step in seen.steps[seen.left + 1 :])


def check_steps(seen: Seen, phases: tuple[str, ...] = PHASES) -> None:
    """A record for each step of the script's, as long as its own clock says, the `phases` where they were spent."""
    # The hook may come in the middle of a round of several optimizers.
    matched = seen.matched()[2:]
    numbers = [number for _, number in matched]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    for record, number in matched:
        slept = seen.steps[number]["slept"]
        for phase in phases:
            assert getattr(record, phase) >= slept[phase] - 1e-4, (phase, record, slept)
        assert record.kind == "train"
    own = [seen.steps[number]["end"] - seen.steps[number - 1]["end"] for number in numbers]
    summed = [
        sum(getattr(record, phase) for phase in PHASES) + record.outside + (record.communication_apart or 0.0)
        for record, _ in matched
    ]
    assert 0.95 < median(one / other for one, other in zip(summed, own, strict=True)) < 1.05
    # No pause lies outside of the phases. How much else does depends on the machine. But ranks wait for each other, and
    # that lies outside for as long as collectives are not measured.
    alone = (seen.facts.world_size or 1) == 1
    beside = [
        length - sum(seen.steps[number]["slept"].values()) - record.outside
        for length, (record, number) in zip(own, matched, strict=True)
        if alone or record.collectives is not None
    ]
    if phases == PHASES:
        assert median(beside) > -0.001
