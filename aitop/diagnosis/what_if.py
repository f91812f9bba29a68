"""What if: the length of a unit without some entries of the ledger, or with other settings. Pure arithmetic.

A step is what its stepping thread does, one thing after the other; loaders and producers run beside it, and the cores
carry so much. Every predicted gain comes from here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix, Verdict

MOST_SPEEDUP = 100.0
MOST_WORKERS = 32
HEADROOM = 0.9
# A fix rarely ends all of a cause, and what is left of a step changes with it (caches, clocks, cores). Chosen so that
# the range is as wide as that; of 29 real gains it held 25 (tests/bench/README.md, verdicts.py).
ENDED, LEFT = 0.85, 0.15
# Where no sample divides the time, the share itself is known so well.
UNSAMPLED = 0.05
# A loader that is behind at this part of the steps cannot keep up.
EMPTY = 0.8
# Work of every step: while loading cannot keep up, a step without it only waits longer for its data.
IN_EVERY_STEP = frozenset(
    {
        "python-overhead", "host-bound", "optimizer-bound", "host-io-stall", "sync-stall", "transfer-bound",
        "launch-bound", "precision",
    }
)  # fmt: skip
# What takes its part of every phase leaves the proportions of the phases as they are.
OF_EVERY_PART = frozenset({"precision", "gil-contention", "cpu-oversubscription"})
# Their share is of what could be done in the time, not of what a step loses.
OF_THROUGHPUT = frozenset({"underbatched", "memory-bandwidth-bound"})


def without(share: float) -> float:
    """The factor in steps per second if `share` (0..1) of each step's time were gone."""
    left = max(1.0 - share, 1.0 / MOST_SPEEDUP)
    return 1.0 / left


@dataclass(frozen=True)
class Loading:
    """A loader that a step waits for. Seconds per step.

    `step` is the whole step, `wait` what it waits for data, `workers` how many make it (0: the main process),
    `cores_per_worker` how much of a core each one uses, `free_cores` what could be used on top (None: unknown).
    `at_work` is the part of their time (0..1] in which the workers there are make data: less where nobody asks.
    """

    step: float
    wait: float
    workers: int
    cores_per_worker: float
    free_cores: float | None
    at_work: float = 1.0

    @property
    def compute(self) -> float:
        """The step without the wait."""
        return max(self.step - self.wait, self.step / MOST_SPEEDUP)

    @property
    def load(self) -> float:
        """Seconds of one worker to load one batch: saturated workers each take as many steps as there are workers."""
        return self.step * self.workers * self.at_work if self.workers else self.wait

    def step_with(self, workers: int) -> float:
        """Predicted step time with that many workers, loading and computing overlapped, within the cores there are."""
        return max(self.compute, self.load / workers, self._core_bound())

    def _core_bound(self) -> float:
        """The shortest step in which the cores in reach can do the CPU work of loading and computing."""
        if self.free_cores is None:
            return 0.0
        in_reach = 1.0 + self.workers * self.cores_per_worker + self.free_cores
        return (self.compute + self.load * self.cores_per_worker) / in_reach

    def affordable_workers(self) -> int:
        """How many workers the cores allow: those there are plus what free cores carry."""
        if self.cores_per_worker < 0.05 or self.free_cores is None:
            return MOST_WORKERS
        more = self.free_cores / self.cores_per_worker
        return min(MOST_WORKERS, self.workers + math.floor(more + 0.3))

    def best_workers(self) -> int:
        """The fewest workers that hide loading, with a little headroom, within what the cores allow."""
        wanted = math.ceil(self.load / (self.compute * HEADROOM))
        return max(self.workers, min(wanted, self.affordable_workers()), 1)

    def speedup_with(self, workers: int) -> float:
        """The factor that `workers` workers would give."""
        return self.step / self.step_with(workers)


def range_of(low: float, high: float) -> tuple[float, float]:
    """The factors that go with a share that lies between `low` and `high`."""
    return round(without(max(0.0, min(low, high))), 3), round(without(min(0.99, high)), 3)


def gain_range(verdict: Verdict, claims: Sequence[Entry], snapshot: Snapshot) -> tuple[float, float]:
    """Bounds (95 %) of the factor that the end of a cause gives: of its share, and of what is left of a step."""
    share = min(0.99, 1.0 - 1.0 / verdict.speedup) if verdict.speedup else 0.0
    whole = sum(entry.share for entry in claims)
    if whole > 0.0:
        # Entries are divided by samples of their own: their errors are independent.
        below = math.sqrt(sum((entry.share - entry.low) ** 2 for entry in claims)) / whole
        above = math.sqrt(sum((entry.high - entry.share) ** 2 for entry in claims)) / whole
    else:
        below = above = UNSAMPLED
    low = min(0.99, max(0.0, share * (1.0 - below) * ENDED))
    high = min(0.99, share * (1.0 + above))
    least = max(1.0, 1.0 / ((1.0 - low) * (1.0 + LEFT * share)))
    most = 1.0 / max(1.0 / MOST_SPEEDUP, (1.0 - high) * (1.0 - LEFT))
    return round(min(least, verdict.speedup or least), 3), round(max(most, verdict.speedup or most), 3)


def together(verdicts: Sequence[Verdict], snapshot: Snapshot) -> list[Verdict]:
    """The verdicts, in their order, each gain held against what limits the step next."""
    return _with_next_limit(_held_up_by_loading(list(verdicts), snapshot))


def _held_up_by_loading(verdicts: list[Verdict], snapshot: Snapshot) -> list[Verdict]:
    """While loading cannot keep up, less work in the step gains nothing before loading is faster."""
    loading = next(
        (verdict for verdict in verdicts if verdict.id == "input-bound" and verdict.severity != "info"), None
    )
    if loading is None or not loader_saturated(snapshot, loading):
        return verdicts
    evidence = "alone it gains nothing: while loading cannot keep up, a shorter step only waits longer for its data"
    held = [
        msgspec.structs.replace(
            verdict,
            speedup=1.0,
            speedup_range=(1.0, verdict.speedup_range[1] if verdict.speedup_range else 1.0),
            evidence=(*verdict.evidence, evidence),
            fixes=_gaining_nothing(verdict.fixes),
        )
        if verdict.id in IN_EVERY_STEP and verdict.share
        else verdict
        for verdict in verdicts
    ]
    if held[0].id in IN_EVERY_STEP:
        return [loading, *(verdict for verdict in held if verdict is not loading)]
    return held


def _gaining_nothing(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    return tuple(msgspec.structs.replace(fix, speedup=1.0) if fix.speedup is not None else fix for fix in fixes)


def loader_saturated(snapshot: Snapshot, loading: Verdict) -> bool:
    """Whether batches are made beside the step, and never lie ready for it."""
    if loading.subtype not in ("workers", "transform", "storage", "collate"):
        return False
    workers = {
        process.pid for process in (snapshot.host.processes if snapshot.host else ()) if process.role == "loader-worker"
    }
    steps = snapshot.steps.recent if snapshot.steps else ()
    depths = [step.queue_ready for step in steps if step.queue_ready is not None]
    if depths:
        return bool(workers) and depths.count(0) >= EMPTY * len(depths)
    ledger = snapshot.ledgers[0] if snapshot.ledgers else None
    lead = (ledger.pid, ledger.thread) if ledger is not None else None
    makers = [entry for entry in (ledger.entries if ledger else ()) if (entry.pid, entry.thread) != lead]
    return bool(loading.where) and any(
        entry.where is not None and entry.line == loading.where[0].line and entry.file == loading.where[0].file
        for entry in makers
    )


def _with_next_limit(verdicts: list[Verdict]) -> list[Verdict]:
    """The first of them, with what is left to gain when it is gone."""
    timed = [verdict for verdict in verdicts if verdict.share and verdict.severity != "info"]
    if len(timed) < 2 or not verdicts or verdicts[0] is not timed[0]:
        return verdicts
    first, second = timed[0], timed[1]
    if first.id in OF_THROUGHPUT or second.id in OF_THROUGHPUT:
        return verdicts
    left = 1.0 - (first.share or 0.0)
    rest = min(second.share or 0.0, left)
    if {first.id, second.id} & OF_EVERY_PART:
        rest = left * (second.share or 0.0)
    if left <= 0.02 or rest <= 0.0:
        return verdicts
    then = min(0.99, rest / left)
    both = without(min(0.99, (first.share or 0.0) + rest))
    # What takes time from other parts of the step too may gain more alone than by its share.
    if both <= (first.speedup or 0.0):
        return verdicts
    evidence = f"next limit: {second.id}, {percent(then)} of the step that is left (both gone: {both:.1f}×)"
    return [msgspec.structs.replace(first, evidence=(*first.evidence, evidence)), *verdicts[1:]]
