"""Several verdicts at once: which say the same, which stretches another's time, and what limits the step next. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from aitop.diagnosis.evidence import UNPROVEN, loader_workers, main_lines, mean_of, records
from aitop.diagnosis.growth_cause import kept_graph
from aitop.diagnosis.own_pipeline import makers
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix, Verdict

# The more a verdict says of a line, the later it stands here: it keeps the line, the others leave.
SPECIFIC = ("python-overhead", "optimizer-bound", "input-bound", "gc-stall", "step-time-growth")
# A thread that makes batches holds the interpreter's lock: the step waits for the batch, unless that wait is less than
# this part of the time in which the lock was held.
LOCK_OR_BATCHES = {"gil-contention", "input-bound"}
WAITED = 0.5
# What stretches every phase alike, and verdicts that judge a phase by its length.
STRETCHING = ("gil-contention", "cpu-oversubscription")
BY_LENGTH = ("optimizer-bound", "python-overhead", "underbatched")
LEAST_STRETCH = 0.2
COMPUTES = frozenset({"compute", "python", "decode"})
# What takes its part of every phase leaves the proportions of the phases as they are.
OF_EVERY_PART = frozenset({"precision", *STRETCHING})
# Work of every step: while the loader cannot keep up, a step without it only waits longer for its data.
IN_EVERY_STEP = frozenset(
    {"python-overhead", "optimizer-bound", "host-io-stall", "sync-stall", "transfer-bound", "launch-bound", "precision"}
)
EMPTY = 0.8
# As sure as one is of Python between operations that nobody counted, and that no loop shows.
SUSPECTED = 0.5
# Their share is of what could be done in the time, or of how busy a part of the device is, not of what a step loses:
# what is left of a step is not told by it.
OF_THROUGHPUT = frozenset({"underbatched", "memory-bandwidth-bound"})
# Other programs that take so much of the cores, and keep the main thread waiting for so much of the time.
TAKEN, KEPT_WAITING = 0.3, 0.2


def composed(verdicts: Sequence[Verdict], snapshot: Snapshot) -> tuple[Verdict, ...]:
    """The verdicts, in their order, without those that others explain, each gain held against what limits next."""
    kept = _without_stretched([one for one in verdicts if not _told_better(one, verdicts)])
    kept = _without_waits_for_lock(kept, snapshot)
    kept = _without_suspected(_without_collecting_of_others(kept), snapshot)
    kept = _without_operations_of_earlier_steps(kept, snapshot)
    kept = _held_up_by_loading(kept, snapshot)
    return tuple(_less_sure_beside_others(_with_next_limit(kept), snapshot))


def _less_sure_beside_others(verdicts: list[Verdict], snapshot: Snapshot) -> list[Verdict]:
    """How much faster a step gets on cores that other programs take most of, too, is theirs to decide."""
    host = snapshot.host
    delay = mean_of(snapshot, "run_delay", 20.0)
    if host is None or host.machine.core_busy is None or delay is None or delay < KEPT_WAITING:
        return verdicts
    used = sum(one.cpu or 0.0 for one in host.processes)
    if sum(host.machine.core_busy) - used < TAKEN * (host.usable_cores or host.machine.cores):
        return verdicts
    return [
        msgspec.structs.replace(one, confidence=UNPROVEN)
        if one.speedup is not None and one.confidence > UNPROVEN
        else one
        for one in verdicts
    ]


def _told_better(verdict: Verdict, verdicts: Sequence[Verdict]) -> bool:
    """Whether another verdict on the same line says more of it, or as much and takes a larger share."""
    if not verdict.share or not verdict.where:
        return False
    here = verdict.where[0].file, verdict.where[0].line
    for other in verdicts:
        if other.id == verdict.id or not other.share or not other.where or other.severity == "info":
            continue
        if (other.where[0].file, other.where[0].line) != here:
            continue
        if {verdict.id, other.id} == LOCK_OR_BATCHES:
            # Who waits for the next batch does not wait for the lock that its maker holds meanwhile.
            if (other.share or 0.0) * (WAITED if other.id == "gil-contention" else 1.0 / WAITED) > verdict.share:
                return True
        elif _rank(other) > _rank(verdict):
            return True
    return False


def _rank(verdict: Verdict) -> tuple[int, float, str]:
    known = SPECIFIC.index(verdict.id) if verdict.id in SPECIFIC else SPECIFIC.index("input-bound")
    return known, verdict.share or 0.0, verdict.id


def _without_stretched(verdicts: Sequence[Verdict]) -> list[Verdict]:
    stretch = max((one.share or 0.0 for one in verdicts if one.id in STRETCHING), default=0.0)
    if stretch < LEAST_STRETCH:
        return list(verdicts)
    return [one for one in verdicts if one.id not in BY_LENGTH or (one.share or 0.0) > stretch]


def _without_waits_for_lock(verdicts: list[Verdict], snapshot: Snapshot) -> list[Verdict]:
    """Lines that make a batch in the stepping thread wait for the lock as all others do: for no source of data."""
    lock = max((one.share or 0.0 for one in verdicts if one.id == "gil-contention"), default=0.0)
    if lock < LEAST_STRETCH:
        return verdicts
    own = {
        (line.file, line.line)
        for line in main_lines(snapshot, lambda line: line.phase == "outside" and line.activity in COMPUTES).lines
    }
    return [
        one
        for one in verdicts
        if one.id != "input-bound"
        or (one.share or 0.0) > lock
        or not one.where
        or (one.where[0].file, one.where[0].line) not in own
    ]


def _without_collecting_of_others(verdicts: list[Verdict]) -> list[Verdict]:
    """Compiling makes so many objects that the collector starts by itself, and so does a thread that holds the lock.

    It ends with them. Where a line asks for it, it is a fault of its own.
    """
    compiling = any(one.id == "recompile" and one.severity != "info" for one in verdicts)
    lock = max((one.share or 0.0 for one in verdicts if one.id == "gil-contention"), default=0.0)
    return [
        one for one in verdicts if one.id != "gc-stall" or one.where or not (compiling or lock > (one.share or 0.0))
    ]


def _without_operations_of_earlier_steps(verdicts: list[Verdict], snapshot: Snapshot) -> list[Verdict]:
    """A backward through the graphs of earlier steps has many operations, and none of them is the code's own loop."""
    if not any(one.id == "step-time-growth" for one in verdicts) or kept_graph(snapshot) is None:
        return verdicts
    return [one for one in verdicts if one.id not in ("python-overhead", "launch-bound")]


def _without_suspected(verdicts: list[Verdict], snapshot: Snapshot) -> list[Verdict]:
    """Beside a larger wait for data, a few samples of Python in the forward pass are no finding of their own."""
    if snapshot.steps is None or snapshot.steps.basis != "stacks":
        return verdicts
    loading = max(
        (one.share or 0.0 for one in verdicts if one.id == "input-bound" and one.severity != "info"), default=0.0
    )
    return [
        one
        for one in verdicts
        if one.id != "python-overhead" or one.confidence > SUSPECTED or (one.share or 0.0) >= loading
    ]


def _held_up_by_loading(verdicts: list[Verdict], snapshot: Snapshot) -> list[Verdict]:
    """While loading cannot keep up, less work in the step gains nothing before loading is faster."""
    loading = next((one for one in verdicts if one.id == "input-bound" and one.severity != "info"), None)
    if loading is None or not saturated(snapshot, loading):
        return verdicts
    told = "alone it gains nothing: while loading cannot keep up, a shorter step only waits longer for its data"
    held = [
        msgspec.structs.replace(one, speedup=1.0, evidence=(*one.evidence, told), fixes=_gaining_nothing(one.fixes))
        if one.id in IN_EVERY_STEP and one.share
        else one
        for one in verdicts
    ]
    return [loading, *(one for one in held if one is not loading)] if held[0].id in IN_EVERY_STEP else held


def _gaining_nothing(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    return tuple(msgspec.structs.replace(fix, speedup=1.0) if fix.speedup is not None else fix for fix in fixes)


def saturated(snapshot: Snapshot, loading: Verdict) -> bool:
    """Whether batches are made beside the step, and never lie ready for it."""
    if loading.subtype not in ("workers", "transform", "storage", "collate"):
        return False
    depths = [step.queue_ready for step in records(snapshot) if step.queue_ready is not None]
    if depths:
        return bool(loader_workers(snapshot)) and depths.count(0) >= EMPTY * len(depths)
    made = makers(snapshot)
    return (
        made is not None
        and any(place.pid == made.lines.where[0].pid for place in loading.where[:1])
        and not (snapshot.steps is not None and snapshot.steps.phases.data_wait)
    )


def _with_next_limit(verdicts: list[Verdict]) -> list[Verdict]:
    """The first of them, with what is left to gain when it is gone."""
    timed = [one for one in verdicts if one.share and one.severity != "info"]
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
    told = f"next limit: {second.id}, {percent(then)} of the step that is left (both gone: {both:.1f}×)"
    return [msgspec.structs.replace(first, evidence=(*first.evidence, told)), *verdicts[1:]]
