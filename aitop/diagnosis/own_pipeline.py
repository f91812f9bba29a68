"""A step that waits for batches which the run's own threads or processes make, without a DataLoader: who makes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aitop.diagnosis.evidence import (
    MAIN,
    Lines,
    free_cores,
    host_limit,
    main_lines,
    main_stacks,
    of_outside,
)
from aitop.diagnosis.input_cause import STORAGE, WORTH_IT, Cause, place_of, sources_in_words
from aitop.diagnosis.what_if import Loading, without
from aitop.model.snapshot import HotLine, Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix, Setting

WAITS = frozenset({"queue", "lock"})
BLOCKED = STORAGE | {"sleep"}
NOT_FOR_BATCHES = re.compile(r"\.put\(|\.put_nowait\(|\.join\(|\.acquire\(|\bwith \w*lock\b|\.close\(|\.shutdown\(")
# Threads and processes that stand on the queue for nearly all of the time are not why the step waits.
LEAST_AT_WORK = 0.3


@dataclass(frozen=True)
class Makers:
    """The threads, or processes, that make batches: lines of their work, and how much of their time is work."""

    count: int
    processes: bool
    lines: Lines
    at_work: float
    blocked: bool


def waiting(snapshot: Snapshot) -> Lines:
    """Lines on which the main thread waits for somebody of the run's own to hand it something; none while they idle."""
    found = main_lines(snapshot, _waits)
    if not found.lines or makers(snapshot) is None:
        return Lines(0.0, ())
    return Lines(min(of_outside(snapshot, found), host_limit(snapshot)), found.lines)


def _waits(line: HotLine) -> bool:
    return line.phase == "outside" and line.activity in WAITS and not NOT_FOR_BATCHES.search(line.text or "")


def makers(snapshot: Snapshot) -> Makers | None:
    """Who makes the batches: other threads of the process, else processes below it; None where nobody works on any."""
    process = main_stacks(snapshot)
    if process is None or snapshot.stacks is None:
        return None
    lines = snapshot.stacks.lines
    threads = [line for line in lines if line.pid == process.pid and line.thread != MAIN]
    children = [line for line in lines if line.role in ("other", "helper", "loader-worker") and line.pid != process.pid]
    for found, processes in ((threads, False), (children, True)):
        made = _makers(snapshot, found, processes)
        if made is not None:
            return made
    return None


def _makers(snapshot: Snapshot, lines: list[HotLine], processes: bool) -> Makers | None:
    """The same of these lines. Clients of a server rest between requests: there, a wait is no work."""
    idle = WAITS if snapshot.kind == "training" else WAITS | {"sleep", "io-network"}
    by_maker: dict[tuple[int, str], list[HotLine]] = {}
    for line in lines:
        by_maker.setdefault((line.pid, line.thread if not processes else ""), []).append(line)
    working = [line for line in lines if line.activity not in idle and line.activity != "log"]
    of_makers = {(line.pid, line.thread if not processes else "") for line in working}
    samples = sum(line.samples for key in of_makers for line in by_maker[key])
    if not working or not samples:
        return None
    at_work = sum(line.samples for line in working) / samples
    if at_work < LEAST_AT_WORK:
        return None
    blocked = sum(line.samples for line in working if line.activity in BLOCKED) > 0.5 * sum(
        line.samples for line in working
    )
    kept = tuple(sorted(working, key=lambda line: -line.samples))
    return Makers(len(of_makers), processes, Lines(at_work, kept), at_work, blocked)


def cause(snapshot: Snapshot, share: float) -> Cause:
    """Why those who make the batches are too slow. There must be some, see `waiting`."""
    made = makers(snapshot)
    if made is None:
        return Cause("workers", (), ("nobody was seen to make batches",), (), confirmed=False)
    free = free_cores(snapshot)
    step = snapshot.steps.mean if snapshot.steps and snapshot.steps.mean else 1.0
    loading = Loading(step, share * step, made.count, 0.05 if made.blocked else 1.0, free)
    best = loading.best_workers()
    gain = loading.speedup_with(best)
    stored = sum(line.samples for line in made.lines.lines if line.activity in STORAGE)
    total = sum(line.samples for line in made.lines.lines)
    if made.blocked:
        subtype = "storage" if stored > 0.4 * total else "workers"
    else:
        subtype = "workers" if made.processes and gain >= 1 + 0.5 * (without(share) - 1) else "transform"
    return Cause(
        subtype=subtype,
        where=made.lines.where,
        evidence=_evidence(made, free),
        fixes=_fixes(made, best, gain, share),
        confirmed=made.at_work > 0.6,
        frees_cores=not made.blocked,
        # A thread that holds the interpreter's lock slows down the rest of the step, too: how much, nobody measured.
        supposed=not made.processes and not made.blocked,
    )


def _evidence(made: Makers, free: float | None) -> tuple[str, ...]:
    what = "process" if made.processes else "thread"
    who = f"{made.count} {what}{('es' if made.processes else 's') if made.count > 1 else ''}"
    doing = sources_in_words(made.lines) if made.blocked else "computing"
    found = [
        f"batches are made by {who} of the run's own, {percent(min(1.0, made.at_work))} of the time at work: {doing}"
    ]
    if not made.blocked and not made.processes:
        found.append("threads of one process take turns at running Python: they share one interpreter's lock")
        found.append("the rest of the step waits for that lock, too: the gain may be larger")
    return (*found, *([] if free is None else [f"{free:.1f} cores idle"]))


def _fixes(made: Makers, best: int, gain: float, share: float) -> tuple[Fix, ...]:
    place = place_of(made.lines.where[0])
    fixes = [
        Fix(text=f"make {place} cheaper: vectorise it, or do it once ahead of time", speedup=round(without(share), 2))
        if not made.blocked
        else Fix(
            text=f"shorten the wait at {place}: cache it, or ask for more at once", speedup=round(without(share), 2)
        )
    ]
    if best > made.count and gain >= WORTH_IT:
        kind = "processes" if made.processes else "threads" if made.blocked else "worker processes (a DataLoader)"
        before = f"{made.count} → {best}" if made.processes or made.blocked else f"{best}"
        setting = Setting(name=kind, to=best, current=made.count) if kind in ("processes", "threads") else None
        fixes.append(Fix(text=f"{before} {kind} to make batches", speedup=round(gain, 2), setting=setting))
    return tuple(fixes)
