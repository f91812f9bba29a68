"""gil-contention: another Python thread holds the interpreter's lock while the thread that steps wants it."""

from __future__ import annotations

from aitop.diagnosis.evidence import (
    HANDED_WAITS,
    MAIN,
    UNPROVEN,
    confidence,
    enough,
    host_limit,
    host_unproven,
    main_lines,
    main_stacks,
    mean_of,
    on_core,
    places,
    records,
    summed,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ledger import Activity, Entry
from aitop.model.snapshot import Snapshot, ThreadShare
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "gil-contention"
CRITICAL_SHARE = 0.3
BAND = Band(enter=0.12, leave=0.07)
# A wait of the main thread that has nothing to do with the lock.
WAITS: frozenset[Activity] = frozenset(
    {"wait-queue", "wait-child", "wait-disk", "wait-network", "wait-device", "sleep", "spawn"}
)
IDLE: frozenset[Activity] = frozenset({*HANDED_WAITS, "sleep", "wait-network"})
# The thread that steps has to stand still for so much of the time.
LEAST_STILL = 0.04
# Who holds the lock is looked at now and then: they may hold it for so many times what was seen.
LOOKED_AT_RARELY = 2.0


def judge(snapshot: Snapshot) -> Judgement:
    """Whether the main thread stands still while other threads hold the lock: the smaller of the two shares counts."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    process = main_stacks(snapshot)
    threads = snapshot.stacks.threads if snapshot.stacks else ()
    if process is not None and process.thread != MAIN:
        return Abstention(id=ID, reason=f"steps are made by {process.thread}, not by the main thread")
    others = [one for one in threads if process and one.pid == process.pid and one.thread != MAIN and one.gil]
    if process is None or not any(one.pid == process.pid and one.gil is not None for one in threads):
        return Abstention(id=ID, reason="GIL not sampled yet")
    held = min(1.0, sum(one.gil or 0.0 for one in others))
    still = _standing_still(snapshot)
    if still is None:
        return Abstention(id=ID, reason="how much of the time the main thread runs is not known")
    # Who holds the lock is looked at now and then: where that is often others, they are what the thread stands for.
    seen = held * LOOKED_AT_RARELY if held >= CRITICAL_SHARE else held
    share = min(seen, still + _crowding(snapshot, held), host_limit(snapshot), 0.97)
    # Threads that hold the lock where nobody wants it at that moment cost nothing.
    if not others or share < BAND.leave or still < LEAST_STILL:
        return None
    waits = main_lines(snapshot, lambda entry: entry.activity == "wait-lock")
    return Finding(_verdict(snapshot, others, held, still, share), level=share, claims=waits.entries)


def _standing_still(snapshot: Snapshot) -> float | None:
    """Share of the time in which the main thread neither ran, nor could have, nor waited for something else."""
    timed = on_core(snapshot)
    ran = summed(timed, lambda step: min(step.cpu or 0.0, step.seconds))
    if ran is None:
        ran = mean_of(snapshot, "main_thread", 20.0)
    if ran is None:
        return None
    delayed = mean_of(snapshot, "run_delay", 20.0) or 0.0
    waiting = main_lines(snapshot, lambda entry: entry.activity in WAITS).share
    return max(0.0, 1.0 - ran - delayed - waiting)


def _crowding(snapshot: Snapshot, held: float) -> float:
    """Share of the time in which the main thread waits for a core because of those threads rather than of others."""
    host = snapshot.host
    delayed = mean_of(snapshot, "run_delay", 20.0)
    if host is None or delayed is None or host.machine.core_busy is None:
        return 0.0
    others = max(0.0, sum(host.machine.core_busy) - sum(one.cpu or 0.0 for one in host.processes))
    return delayed * held / (held + others) if held + others > 0 else 0.0


def _verdict(snapshot: Snapshot, others: list[ThreadShare], held: float, still: float, share: float) -> Verdict:
    others = sorted(others, key=lambda one: -(one.gil or 0.0))
    # Of many threads that hold it alike, each has a small part.
    least = min(0.2 * held, 0.5 * (others[0].gil or 0.0))
    guilty = [one.thread for one in others if (one.gil or 0.0) >= least]
    lines = _lines(snapshot, others[0].pid, guilty)
    where = places(lines)
    unproven = host_unproven(snapshot)
    measured = any(step.cpu is not None for step in records(snapshot))
    severity: Severity = "critical" if share >= CRITICAL_SHARE and where and not unproven else "warning"
    # Who holds the lock is sampled, too, but how much the main thread stands still is the kernel's word.
    sure = confidence(bool(where), measured, held > 0.4, steps=len(records(snapshot)))
    name = f"thread {guilty[0]!r}" if len(guilty) == 1 else f"{len(guilty)} threads"
    place = f" ({where[0].file.rsplit('/', 1)[-1]}:{where[0].line})" if where else ""
    gain = round(without(share), 2)
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=min(sure, UNPROVEN) if unproven else sure,
        title=f"{percent(share)} of each step waits for the interpreter's lock, held by {name}",
        where=where,
        evidence=(
            f"other Python threads hold the GIL {percent(held)} of the time: "
            + ", ".join(f"{one.thread} {percent(one.gil)}" for one in others[:3]),
            f"the main thread stands still {percent(still)} of the time without waiting for data, a core or a service",
        ),
        fixes=(
            Fix(text=f"move the work of {name}{place} into a process of its own (multiprocessing)", speedup=gain),
            Fix(text="do it rarely, or in calls that release the lock (numpy, torch, zlib) instead of Python loops"),
        ),
    )


def _lines(snapshot: Snapshot, pid: int, threads: list[str]) -> tuple[Entry, ...]:
    """What those threads do when they do not wait."""
    entries = snapshot.ledgers[0].entries if snapshot.ledgers else ()
    working = [
        entry
        for entry in entries
        if entry.lane == "producers" and entry.pid == pid and entry.thread in threads and entry.activity not in IDLE
    ]
    return tuple(sorted(working, key=lambda entry: -entry.samples))


RULE = Rule(ID, judge, BAND)
