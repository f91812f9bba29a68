"""gc-stall: the step waits while Python's garbage collector walks over all objects, on request or by itself."""

from __future__ import annotations

from operator import attrgetter
from statistics import median_high

from aitop.diagnosis.device import host_limit, host_unproven
from aitop.diagnosis.evidence import (
    Lines,
    each_unit,
    lines_of,
    main_lines,
    of_unit,
    producer_entries,
    records,
    share_of_steps,
    short_place,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent

ENTER, LEAVE = 0.05, 0.03


@rule("gc-stall", ENTER, LEAVE, scope=Scope(idle=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Time in the collector, measured in the process, or on a line that asks for a collection."""
    collecting = main_lines(snapshot, lambda entry: entry.activity == "collect")
    asked = lines_of(collecting.lines)
    if not asked.lines and collecting.entries:
        asked = _asked_elsewhere(snapshot, collecting.entries[0].pid)
    measured = share_of_steps(records(snapshot), attrgetter("gc"))
    share = min(collecting.share, host_limit(snapshot, in_phases=True))
    if share < LEAVE:
        # Collections that start by themselves show on no stack.
        return None if measured is not None else "only the hook sees the collector at work"
    of_each, at_leisure = of_unit(snapshot, share)
    explicit = asked.share >= 0.3 * share
    place = short_place(asked.where[0]) if asked.where else ""
    by_line = (
        fix(f"leave out the collection at {place}: memory is reused without it", of_each),
        fix(f"call it every 100 steps instead ({place})", 0.99 * of_each),
    )
    by_itself = (
        fix("gc.collect(); gc.freeze() once data and model are built: they are never walked over again", 0.9 * of_each),
        fix("gc.set_threshold(50_000, 50, 50), or arrays instead of lists and dicts of many small objects"),
    )
    return Explanation(
        share=share,
        saved=of_each,
        signals=(measured is not None and measured >= LEAVE, explicit),
        doubtful=host_unproven(snapshot, in_phases=True),
        title=f"{percent(share)} of the time goes into garbage collection",
        where=asked.where if explicit else (),
        claims=collecting.entries,
        evidence=[*_evidence(snapshot, asked, measured), *([at_leisure] if at_leisure else ())],
        fixes=by_line if explicit else by_itself,
    )


def _asked_elsewhere(snapshot: Snapshot, pid: int) -> Lines:
    """The lines of this process's other threads that ask for collections: the lock is held, and all threads wait."""
    there = (entry for entry in producer_entries(snapshot) if entry.pid == pid and entry.activity == "collect")
    return lines_of(lines_of(there).lines)


def _evidence(snapshot: Snapshot, asked: Lines, measured: float | None) -> list[str]:
    steps = records(snapshot)
    pauses = [step.gc for step in steps if step.gc > 0]
    evidence = []
    if pauses and measured:
        long = f"{duration(median_high(pauses))} p50, the longest {duration(max(pauses))}"
        seen = f"pauses in {len(pauses)} of {len(steps)} steps, {long}"
        evidence.append(f"{seen}, {percent(measured)} of {each_unit(snapshot)} (measured in the process)")
    if asked.lines:
        return [*evidence, f"{percent(asked.share)} of stack samples stand at {short_place(asked.where[0])}"]
    nobody = "no line asks for it: the collector starts by itself, and walks over every object that is alive"
    return [*evidence, nobody]
