"""The counters of one rank, which only grow: sums of its steps, requests and iterations over all Snapshots."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TypeVar

from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord

# Bounds of the buckets in seconds, three per decade: from a tiny step to a slow request.
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)

Record = TypeVar("Record", StepRecord, RequestRecord, IterationRecord)


class Tally:
    """A histogram: the number of values between each of BOUNDS and the one before, the number above, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(BOUNDS, value)] += 1
        self.sum += value


class RankCounters:
    """The counters of one rank, across all processes that were this rank. `unit_seconds` is by kind: step, request or
    iteration. `steps` are all steps: very short ones do not all have a length.
    """

    def __init__(self) -> None:
        self.steps: int | None = None
        self.unit_seconds: dict[str, Tally] = {}
        self.first_token_seconds = Tally()
        self.hook_seconds: float | None = None
        self.pid = 0
        # Of the present process: its number of steps, and by kind when the newest record ended.
        self._steps: int | None = None
        self._ended: dict[str, float] = {}

    def take(self, pid: int, snapshot: Snapshot) -> None:
        """Add what is new in a Snapshot; successive Snapshots overlap."""
        if pid != self.pid:
            self.pid, self._steps, self._ended = pid, None, {}
        self._take_steps(pid, snapshot)
        serving = snapshot.serving
        if serving is None:
            return
        self._new("iteration", serving.iterations if serving.pid == pid else ())
        for request in self._new("request", serving.requests_of(pid)):
            first = request.first_token if request.first_sent is None else request.first_sent
            if first is not None:
                self.first_token_seconds.add(first)

    def _take_steps(self, pid: int, snapshot: Snapshot) -> None:
        steps, facts = snapshot.steps, snapshot.facts
        leads = steps is not None and steps.pid == pid
        # By the number that the hook gives each step: a rank's steps go on when another one leads.
        number = steps.recent[-1].index if steps is not None and leads and steps.recent else _step_of(pid, snapshot)
        if number is None:
            return
        made = max(0, number - self._steps) if self._steps is not None else 0
        self._steps = number
        self.steps = (self.steps or 0) + made
        if steps is None or not leads:
            return
        self._new("step", steps.recent)
        if facts is not None and facts.cost_us is not None:
            self.hook_seconds = (self.hook_seconds or 0.0) + made * facts.cost_us / 1e6

    def _new(self, kind: str, records: Sequence[Record]) -> list[Record]:
        """The records that were not seen before. Their lengths go into the histogram of their kind."""
        before = self._ended.get(kind)
        new = [record for record in records if before is None or record.end > before]
        if new:
            self._ended[kind] = max(record.end for record in new)
            tally = self.unit_seconds.setdefault(kind, Tally())
            for record in new:
                tally.add(record.seconds)
        return new


def _step_of(pid: int, snapshot: Snapshot) -> int | None:
    """The number of the last step of a rank that is not the lead process."""
    views = snapshot.ranks.ranks if snapshot.ranks else ()
    return next((view.step for view in views if view.pid == pid), None)
