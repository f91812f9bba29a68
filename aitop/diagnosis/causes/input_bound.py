"""input-bound: steps wait for data. This file says how much, and for whom; `producers` says why that takes long.

Waits for data are read from the ledger: time in a loader, host code that stands before the model's call, waits there
for threads or processes that make batches, and a simulated environment.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from aitop.diagnosis.causes import producers
from aitop.diagnosis.causes.oversubscription import others_have_cores
from aitop.diagnosis.device import host_limit, host_unproven, timed_on_device
from aitop.diagnosis.evidence import (
    HOST,
    NO_LINES,
    Lines,
    by_window,
    each_unit,
    lines_of,
    loader_workers,
    main_lines,
    main_stacks,
    records,
    samples_of,
    stepping,
)
from aitop.diagnosis.rule import CRITICAL_SHARE, Explanation, rule
from aitop.diagnosis.what_if import Length, Scope, without
from aitop.model.ledger import HANDED_WAITS
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent
from aitop.model.verdict import Fix

# If workers work for less than this part of their time, batches are ready when needed: taking one is no wait for them.
IDLE_WORKERS = 0.5
# A wait that was watched for less than this (seconds) may not last.
LEAST_SECONDS = 1.5
# A wait is over after QUIET_WINDOWS quiet windows in a row. Only if SEEN_WINDOWS windows show it, it can be told from
# how a run begins.
QUIET_WINDOWS = 2
SEEN_WINDOWS = 4
# A window counts as quiet if it holds less than this part of the mean wait. It is not 0: a window of stacks has a few
# dozen samples, of which one or two show the wait by chance.
QUIET = 0.35

FIRST_TIME = "seen too briefly to tell it from how a run begins: what is read for the first time may be cached later"
FEW_SECONDS = "seen for hardly more than a second: whether the wait lasts is not known yet"
STARVED = "other programs use the cores that the loader's workers wait for: left alone, they may well keep up"
PASSED = "steps have not waited lately: data that were read for the first time may come from memory now"
ONCE = "that was seen only once: if it comes again with every pass over the data, this is a finding"


class Wait(msgspec.Struct, frozen=True):
    """The stepping thread's waits for data. `kind` says where the data come from.

    `covered` is the whole wait if the device kept working during a part of it (`share` is the rest), else None. With
    `guessed`, `share` is the most that it may be: nobody measured how often no batch was ready.
    """

    kind: str  # loader | own code | producers | environment
    lines: Lines
    share: float
    covered: float | None = None
    guessed: bool = False


@rule("input-bound", 0.12, 0.07, scope=Scope(idle=True))
def judge(snapshot: Snapshot) -> Explanation | None:
    """Whether steps wait for data. Of the waits in a loader, own code, for producers, and for an environment, the
    largest counts.
    """
    between = {
        "own code": _own_code(snapshot),
        "producers": _for_producers(snapshot),
        "environment": main_lines(snapshot, lambda entry: entry.phase == "environment"),
    }
    waits = [Wait(kind, lines, min(lines.share, host_limit(snapshot))) for kind, lines in between.items()]
    wait = max([_in_loader(snapshot), *waits], key=lambda wait: wait.share)
    if wait.share <= 0.0:
        return None
    if wait.kind == "environment":
        why = producers.of_environment(snapshot, wait.share, wait.lines)
    elif wait.kind == "producers":
        why = producers.of_threads_or_processes(snapshot, wait.share, wait.lines)
    elif wait.kind == "own code":
        why = producers.of_own_code(snapshot, wait.share, wait.lines)
    else:
        why = producers.of_loader(snapshot, wait.share)
    return _explained(snapshot, wait, why)


def _explained(snapshot: Snapshot, wait: Wait, why: producers.Why) -> Explanation:
    """Make the verdict on a wait from the reason why the data come late."""
    steps, saved = records(snapshot), why.saved or min(0.99, wait.share)
    transient = ONCE if why.once else why_transient(snapshot, wait)
    unsure = transient is not None or not why.proven or wait.guessed
    idle = ", device idle" if wait.covered else ""
    what = "is the environment" if wait.kind == "environment" else f"waits for data{idle}"
    return Explanation(
        subtype=why.subtype,
        severity="info" if unsure else None,
        share=wait.share,
        saved=saved,
        signals=(bool(steps), why.confirmed, bool(why.where)),
        doubtful=unsure or host_unproven(snapshot),
        title=f"{percent(wait.share)} of {each_unit(snapshot)} {what}",
        # Until those who make the data were looked at, all that is known is where they are waited for.
        where=why.where or wait.lines.where,
        claims=wait.lines.entries,
        evidence=[_measure(snapshot, wait), *why.evidence, *filter(None, [transient])],
        fixes=_best_first(why.fixes, saved),
    )


def _best_first(fixes: tuple[Fix, ...], saved: float | Length) -> list[Fix]:
    """The fixes, best first; none is said to gain more than the end of the wait does."""
    most = round((saved if isinstance(saved, Length) else without(saved)).speedup, 2)
    held = [replace(fix, speedup=min(most, fix.speedup)) if fix.speedup is not None else fix for fix in fixes]
    return sorted(held, key=lambda fix: -(fix.speedup or 0.0))


def _in_loader(snapshot: Snapshot) -> Wait:
    """The wait in a loader: only for batches that were not ready, and only while the device, if there is one, idled."""
    lines = main_lines(snapshot, lambda entry: entry.phase == "data")
    share = lines.share
    measured = timed_on_device(snapshot)
    if measured:
        share = min(share, snapshot.phases.data_wait or 0.0)
    at_work, guessed = producers.workers_at_work(snapshot), False
    # If one worker holds up the rest, the others' batches are ready, but the next batch in order is not.
    if at_work is not None and at_work < IDLE_WORKERS and producers.slow_worker(snapshot) is None:
        empty = _empty_handed(snapshot)
        guessed = empty is None
        share = max(share * (at_work if empty is None else empty), producers.handing_over(snapshot))
    idle = 1.0 if measured else host_limit(snapshot, in_phases=True)
    covered = lines.share if idle < share and round(idle, 2) < round(lines.share, 2) else None
    return Wait("loader", lines, min(share, idle), covered, guessed)


def _empty_handed(snapshot: Snapshot) -> float | None:
    """The share (0..1) of the wait for data in which no batch was ready.

    Taking a batch that is ready costs time, too, but neither more nor faster workers would end that. It is 1 if the
    wait is mostly for workers to start, and otherwise None if the queue was not measured: then at most the part of the
    time in which workers work.
    """
    measured = producers.waited_empty(snapshot)
    if measured is not None:
        return measured
    return 1.0 if producers.waits_for_start(snapshot) else None


def _own_code(snapshot: Snapshot) -> Lines:
    """The lines on which the stepping thread makes the next batch itself: host code before the model's call.

    In inference only waiting for data counts here: computing the model's input, as by reading a file that is cached, is
    preprocessing-bound. What a request's handler waits for is host-io-stall, or host-bound if it blocks an event loop:
    no worker can fetch it before the request is there.
    """
    if snapshot.kind == "unknown":
        return NO_LINES
    before = main_lines(
        snapshot,
        lambda entry: (
            entry.phase == "host"
            and entry.position == "before"
            and entry.activity not in HANDED_WAITS
            and entry.work != "hand-over"
        ),
    )
    if snapshot.kind == "training":
        return before
    own = [entry for entry in before.entries if entry.handler is None]
    waiting = lines_of(entry for entry in own if entry.activity == "wait-disk")
    reading = lines_of(entry for entry in own if entry.activity == "wait-disk" or producers.reads(entry))
    return reading if producers.mostly_waits(reading) else waiting


def _for_producers(snapshot: Snapshot) -> Lines:
    """The lines on which the stepping thread waits for the run's own threads or processes.

    If none of these is at work or hands things over, only waits before the model's call in training count. A handler
    that waits for another thread does not wait for data: its request queues.
    """
    lines = main_lines(
        snapshot,
        lambda entry: (
            entry.phase == "host"
            and (entry.activity in HANDED_WAITS or entry.work == "hand-over")
            # A full queue waits for whoever takes from it, and a lock in the code itself keeps others out.
            and entry.activity != "wait-room"
            and not (entry.activity == "wait-lock" and not entry.below)
            and entry.position in ("before", None)
            and entry.where is not None
            and entry.handler is None
        ),
    )
    if producers.makers(snapshot) is not None or producers.handing_between(snapshot) is not None:
        return lines
    return lines_of(entry for entry in lines.entries if entry.position == "before" and snapshot.kind == "training")


def _measure(snapshot: Snapshot, wait: Wait) -> str:
    """Evidence of how long the wait is and how that is known."""
    steps = records(snapshot)
    if steps and wait.kind == "loader":
        mean = sum(step.loading for step in steps) / len(steps)
        measured = f"{percent(wait.covered or wait.share)} of the time of {len(steps)} steps (measured in the process)"
        idle = f"; for {percent(wait.share)} the device had nothing to do" if wait.covered else ""
        return f"data wait {duration(mean)} a step, {measured}{idle}"
    doing = "step the environment" if wait.kind == "environment" else "make or await a batch"
    thread = "stepping thread"
    if not stepping(snapshot):
        # Nothing says that what a pool is asked for are batches.
        doing, thread = "await what others make", "leading thread"
    return f"{percent(wait.share)} of {samples_of(snapshot)} stack samples of the {thread} {doing}"


# --- waits that may not last ------------------------------------------------------------------------------------------


def why_transient(snapshot: Snapshot, wait: Wait) -> str | None:
    """Say why a wait may not last; None if nothing suggests that."""
    quiet = _quiet_windows(snapshot, wait)
    loud = [index for index, still in enumerate(quiet) if not still]
    # A wait that comes and goes, as at the start of each epoch, has been quiet before: it may come back.
    came_back = bool(loud) and _in_a_row(quiet[loud[0] : loud[-1]], QUIET_WINDOWS)
    if loud and not came_back and len(quiet) - 1 - loud[-1] >= QUIET_WINDOWS:
        return PASSED
    steps, workers = _over_window(snapshot), loader_workers(snapshot)
    watched = snapshot.stacks.seconds if snapshot.stacks else 0.0
    if steps:
        watched = max(steps[-1].end - steps[0].end, sum(step.seconds for step in steps))
    if watched < LEAST_SECONDS:
        return FEW_SECONDS
    if wait.share < CRITICAL_SHARE and workers and others_have_cores(snapshot):
        return STARVED
    brief = bool(quiet) and len(loud) < SEEN_WINDOWS and not came_back
    own = wait.kind in ("loader", "own code")
    return FIRST_TIME if brief and own and not workers else None


def _quiet_windows(snapshot: Snapshot, wait: Wait) -> list[bool]:
    """Whether the wait was quiet (QUIET), for each second of steps; without steps, for each window of stacks."""
    steps, process = _over_window(snapshot), main_stacks(snapshot)
    beside = main_lines(snapshot, lambda entry: entry.phase in (*HOST, "data", "environment")).lines
    windows = by_window(beside, process) if beside and process is not None else []
    if steps:
        waited: dict[int, float] = {}
        whole: dict[int, float] = {}
        for step in steps:
            second, outside = int(step.end), 0.0 if wait.kind == "loader" else step.outside
            waited[second] = waited.get(second, 0.0) + step.loading + outside
            whole[second] = whole.get(second, 0.0) + step.seconds
        windows = [waited[second] / whole[second] if whole[second] > 0 else 0.0 for second in sorted(whole)]
    return [value < QUIET * wait.share for value in windows]


def _over_window(snapshot: Snapshot) -> tuple[StepRecord, ...]:
    """Steps from all over the window: quick ones are too many for all of them to be kept."""
    steps, some = records(snapshot), snapshot.steps.spread if snapshot.steps else ()
    return some if some and steps and some[0].end < steps[0].end else steps


def _in_a_row(values: Sequence[bool], count: int) -> bool:
    return any(all(values[start : start + count]) for start in range(len(values) - count + 1))
