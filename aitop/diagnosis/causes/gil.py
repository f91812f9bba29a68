"""gil-contention: other Python threads hold the interpreter's lock, or one core is all a server's front can use."""

from __future__ import annotations

from aitop.diagnosis.causes.serving.front import full_front
from aitop.diagnosis.device import host_limit, host_unproven
from aitop.diagnosis.evidence import (
    HANDED_WAITS,
    MAIN,
    beside_lines,
    each_unit,
    lines_of,
    main_lines,
    main_stacks,
    on_core,
    ran,
    short_place,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import mean_of
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.ledger import Activity, Entry
from aitop.model.snapshot import ProcessStacks, Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Where

ENTER, LEAVE = 0.12, 0.07
# A wait of the main thread that has nothing to do with the lock.
WAITS: frozenset[Activity] = frozenset(
    {"wait-queue", "wait-child", "wait-disk", "wait-network", "wait-device", "sleep", "spawn"}
)
# The thread that steps has to stand still for so much of the time, of which the kernel is sure.
LEAST_STILL = 0.04
IDLE: frozenset[Activity] = frozenset({*HANDED_WAITS, "sleep", "wait-network"})


@rule("gil-contention", ENTER, LEAVE, scope=Scope(everywhere=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the main thread stands still while other threads hold the lock: the smaller of the two shares counts."""
    process = main_stacks(snapshot)
    front = full_front(snapshot, making=False)
    if front is not None:
        return front
    own = [one for one in (snapshot.stacks.threads if snapshot.stacks else ()) if process and one.pid == process.pid]
    if process is None or all(one.gil is None for one in own):
        return "GIL not sampled yet"
    others = sorted((one for one in own if one.thread != process.thread and one.gil), key=lambda one: -(one.gil or 0.0))
    held = min(1.0, sum(one.gil or 0.0 for one in others))
    still = _standing_still(snapshot, process)
    if still is None:
        return f"how much of the time {_named(process)} runs is not known"
    share = min(held, still, host_limit(snapshot), 0.97)
    # Threads that hold the lock where nobody wants it at that moment cost nothing.
    if not others or share < LEAVE or still < LEAST_STILL:
        return None
    # Of many threads that hold it alike, each has a small part.
    least = min(0.2 * held, 0.5 * (others[0].gil or 0.0))
    holders = [one.thread for one in others if (one.gil or 0.0) >= least]
    where = _working(snapshot, process.pid, holders)
    name = f"thread {holders[0]!r}" if len(holders) == 1 else f"{len(holders)} threads"
    place = f" ({short_place(where[0])})" if where else ""
    return Explanation(
        share=share,
        critical=bool(where),
        # Who holds the lock is sampled, too, but how much the main thread stands still is the kernel's word.
        signals=(bool(where), bool(on_core(snapshot)), held > 0.4),
        doubtful=host_unproven(snapshot),
        title=f"{percent(share)} of {each_unit(snapshot)} waits for the interpreter's lock, held by {name}",
        where=where,
        claims=main_lines(snapshot, lambda entry: entry.activity == "wait-lock").entries,
        evidence=(
            f"other Python threads hold the GIL {percent(held)} of the time: "
            + ", ".join(f"{one.thread} {percent(one.gil)}" for one in others[:3]),
            f"{_named(process)} stands still {percent(still)} of the time without waiting for data or a service",
        ),
        fixes=(
            fix(f"move the work of {name}{place} into a process of its own (multiprocessing)", share),
            fix("do it rarely, or in calls that release the lock (numpy, torch, zlib) instead of Python loops"),
        ),
    )


def _named(process: ProcessStacks) -> str:
    return "the main thread" if process.thread == MAIN else f"thread {process.thread!r}"


def _standing_still(snapshot: Snapshot, process: ProcessStacks) -> float | None:
    """Share of the time in which the lead thread neither ran, nor could have, nor waited for something else."""
    waiting = main_lines(snapshot, lambda entry: entry.activity in WAITS or entry.phase == "idle").share
    if process.thread != MAIN:
        # The kernel's looks at a thread count it as active also while it only waits for a core.
        threads = snapshot.stacks.threads if snapshot.stacks else ()
        active = next((one.active for one in threads if (one.pid, one.thread) == (process.pid, process.thread)), None)
        return None if active is None else max(0.0, 1.0 - active - waiting)
    running = ran(snapshot)
    if running is None:
        return None
    return max(0.0, 1.0 - running - (mean_of(snapshot, "run_delay", 20.0) or 0.0) - waiting)


def _working(snapshot: Snapshot, pid: int, threads: list[str]) -> tuple[Where, ...]:
    """The lines on which those threads are when they do not wait."""

    def at_work(entry: Entry) -> bool:
        return entry.pid == pid and entry.thread in threads and entry.activity not in IDLE

    return lines_of(entry for entry in beside_lines(snapshot) if at_work(entry)).where
