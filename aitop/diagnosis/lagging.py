"""One loader worker that holds up the others: batches come in order, so all wait for the slowest."""

from __future__ import annotations

from dataclasses import dataclass

from aitop.diagnosis.evidence import Lines, loader_workers, mean_of, worker_lines
from aitop.diagnosis.input_cause import Cause, place_of
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix

SECONDS = 15.0
# Workers that were just started differ by chance.
LEAST_READINGS = 3
LEAST_BUSY = 0.5
MOST_OF_OTHERS = 0.5


@dataclass(frozen=True)
class Laggard:
    """The worker that is at work while the others wait: how busy it is (0..1) and how busy they are, at most."""

    pid: int
    busy: float
    others: float
    count: int
    lines: Lines


def cause(late: Laggard, share: float) -> Cause:
    """Why the data come late: `share` of the step is the wait for that one worker."""
    those = f"the other {late.count - 1}" if late.count > 2 else "the other one"
    work = f"worker {late.pid} is at work {percent(late.busy)} of the time, {those} {percent(late.others)} at most"
    even = (late.busy + (late.count - 1) * late.others) / late.count
    fixes = [
        Fix(
            text=f"share the work out evenly: worker {late.pid} gets the slow part of the data, all {late.count} could",
            speedup=round(without(share * (1.0 - even / late.busy)), 2),
        )
    ]
    if late.lines.where:
        text = f"make {place_of(late.lines.where[0])} cheaper: convert what it reads once, ahead"
        fixes.insert(0, Fix(text=text, speedup=round(without(share), 2)))
    return Cause(
        subtype="transform",
        where=late.lines.where,
        evidence=(f"{work}: batches come in order, so all wait for its",),
        fixes=tuple(fixes),
        confirmed=bool(late.lines.where),
    )


def laggard(snapshot: Snapshot) -> Laggard | None:
    """The one worker that all wait for, None where they work alike or were not watched for long enough."""
    pids = [process.pid for process in loader_workers(snapshot)]
    busy = {pid: used for pid in pids if (used := _busy(snapshot, pid)) is not None}
    if len(busy) < 2 or len(busy) < len(pids):
        return None
    slowest, *others = sorted(busy, key=lambda pid: -busy[pid])
    most = busy[others[0]]
    if busy[slowest] < LEAST_BUSY or most > MOST_OF_OTHERS * busy[slowest]:
        return None
    lines = worker_lines(snapshot, lambda line: line.pid == slowest)
    return Laggard(slowest, min(1.0, busy[slowest]), most, len(busy), Lines(lines.share * len(busy), lines.lines))


def _busy(snapshot: Snapshot, pid: int) -> float | None:
    """Share of the last seconds in which that worker used a core; None while there are too few readings."""
    name = f"worker{pid}.cpu"
    series = snapshot.series.get(name)
    if series is None or sum(value is not None for value in series.values) < LEAST_READINGS:
        return None
    return mean_of(snapshot, name, SECONDS)
