"""gil-contention: other Python threads hold the GIL, or a server's front fills the one core that its thread can use."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.diagnosis.causes.serving.front import DO_LESS, MORE_PROCESSES, full_front
from aitop.diagnosis.device import host_limit, host_unproven
from aitop.diagnosis.evidence import (
    MAIN,
    RUNNING,
    each_unit,
    lines_of,
    main_lines,
    main_stacks,
    others_cores,
    producer_entries,
    records,
    short_place,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import mean_of
from aitop.diagnosis.what_if import Scope, fix, waits_for_core
from aitop.model.ledger import HANDED_WAITS, RESTS, Entry
from aitop.model.snapshot import ProcessStacks, Snapshot
from aitop.model.units import percent

# Shorter waits for a core than this share of the time are not worth a word.
WORTH_SAYING = 0.05


@rule("gil-contention", 0.12, 0.07, scope=Scope(idle=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the main thread waits for the GIL while other threads hold it: the smaller of the shares counts.

    The threads of a pool, which take the same work in turns, do not contend with each other: they count as one thread.
    """
    process = main_stacks(snapshot)
    front = full_front(snapshot, making=False)
    if front is not None:
        return front
    threads = snapshot.stacks.threads if snapshot.stacks else ()
    own = [thread for thread in threads if process and thread.pid == process.pid]
    if process is None or all(thread.gil is None for thread in own):
        return "which thread holds the GIL is known only from stack samples"
    one = process.pool.threads if process.pool is not None else (process.thread,)
    holding = (thread for thread in own if thread.thread not in one and thread.gil)
    others = sorted(holding, key=lambda thread: -(thread.gil or 0.0))
    held = min(1.0, sum(thread.gil or 0.0 for thread in others))
    waiting = main_lines(snapshot, lambda entry: entry.activity == "wait-gil")
    # Holding the GIL costs nothing while no other thread wants it.
    share = min(held, waiting.share, host_limit(snapshot, in_phases=True), 0.97)
    if not others:
        return None
    most = others[0].gil or 0.0
    holders = [thread.thread for thread in others if (thread.gil or 0.0) >= 0.5 * most]
    theirs = [entry for entry in producer_entries(snapshot) if entry.pid == process.pid and entry.thread in holders]
    work = [entry for entry in theirs if entry.activity not in RESTS]
    runs = [entry for entry in work if entry.activity != "wait-gil"]
    # Native code has let go of the GIL; it is named only where nothing else was seen to run.
    where = lines_of([entry for entry in runs if entry.activity != "native"] or runs).where
    name = f"thread {holders[0]!r}" if len(holders) == 1 else f"{len(holders)} threads"
    place = f" ({short_place(where[0])})" if where else ""
    rarely = min(0.99, share + _cores_freed(snapshot, share, held))
    # In a process of their own, the threads need as many cores as they would here if none of them waited for the GIL.
    freed = _cores_freed(snapshot, share, held - sum(entry.share for entry in work))
    apart = min(0.99, share + freed, _most_apart(theirs, holders))
    if lines_of(runs).part(lambda entry: entry.handler == "event-loop") > 0.5:
        fixes = fix(DO_LESS, rarely), fix(MORE_PROCESSES, apart)
    else:
        fixes = (
            fix(f"move the work of {name}{place} into a process of its own (multiprocessing)", apart),
            fix("do it rarely, or in calls that release the lock (numpy, torch, zlib) instead of Python loops", rarely),
        )
    return Explanation(
        share=share,
        saved=rarely,
        # Who holds the GIL is sampled; for how long the main thread did not run, the kernel knows (step.cpu).
        signals=(bool(where), any(step.cpu is not None for step in records(snapshot)), held > 0.4),
        doubtful=host_unproven(snapshot, in_phases=True),
        title=f"{percent(share)} of {each_unit(snapshot)} waits for the interpreter's lock, held by {name}",
        where=where,
        claims=waiting.entries,
        evidence=(
            f"other Python threads hold the GIL {percent(held)} of the time: "
            + ", ".join(f"{thread.thread} {percent(thread.gil)}" for thread in others[:3]),
            f"{_named(process)} waits for it {percent(waiting.share)} of the time"
            + (f", and for a core once it has it: {percent(rarely - share)}" if rarely - share >= WORTH_SAYING else ""),
        ),
        fixes=sorted(fixes, key=lambda one: -(one.speedup or 0.0)),
    )


def _cores_freed(snapshot: Snapshot, share: float, fewer: float) -> float:
    """Share of the time in which the main thread no longer waits for a core once `fewer` cores less are wanted.

    With each hand-over of the GIL it has to wait for a core anew. So it is at most `share`, its waits for the GIL.
    """
    host, others, wanted = snapshot.host, others_cores(snapshot), mean_of(snapshot, "cores_wanted")
    if host is None or others is None or wanted is None:
        return 0.0
    now = main_lines(snapshot, lambda entry: entry.activity == "wait-core").share
    running = main_lines(snapshot, lambda entry: entry.activity in RUNNING).share
    cores = host.usable_cores or float(host.machine.cores)
    # Without waits for the GIL the main thread wants a core all the time.
    then = waits_for_core(now, running, max(1.0, wanted - fewer) + others, cores)
    return min(share, now - then)


def _most_apart(entries: Sequence[Entry], threads: Sequence[str]) -> float:
    """The largest share of the time that can be saved while these threads still do their work, in another process.

    A thread that rests mostly in a queue or a lock works for each step, and no step is shorter than that work.
    """
    least = 0.0
    for thread in threads:
        own = [entry for entry in entries if entry.thread == thread]
        rests = lines_of(entry for entry in own if entry.activity in RESTS)
        if rests.part(lambda entry: entry.activity in HANDED_WAITS) > 0.5:
            least = max(least, sum(entry.share for entry in own) - rests.share)
    return max(0.0, 1.0 - least)


def _named(process: ProcessStacks) -> str:
    return "the main thread" if process.thread == MAIN else f"thread {process.thread!r}"
