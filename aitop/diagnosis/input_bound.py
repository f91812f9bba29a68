"""input-bound: the step waits for data. How much, which part of the data path, and what would hide it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from aitop.diagnosis import input_cause, lagging, own_pipeline
from aitop.diagnosis.evidence import (
    COLD,
    UNPROVEN,
    Lines,
    by_samples,
    confidence,
    device_idle,
    enough,
    free_cores,
    host_limit,
    host_unproven,
    left_cold,
    loader_workers,
    main_lines,
    main_stacks,
    mean_of,
    on_core,
    records,
    samples_of,
    summed,
    timed_on_device,
)
from aitop.diagnosis.hand_written import feeding_lines
from aitop.diagnosis.input_cause import Cause
from aitop.diagnosis.lagging import laggard
from aitop.diagnosis.oversubscription import others_have_cores
from aitop.diagnosis.passing import brief, over
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "input-bound"
CRITICAL_SHARE = 0.3
IDLE_WORKERS = 0.5
LEAST_SECONDS = 1.5
# So many cores have to be taken by other programs for them to be in the way of a step.
OTHERS = 0.3

FIRST_TIME = "seen too briefly to tell it from how a run begins: what is read for the first time may be kept in memory"
FEW_SECONDS = "seen for hardly more than a second: whether the wait lasts is not known yet"
STARVED = "other programs have the cores that the loader's workers wait for: left alone, they may well keep up"
PASSED = "steps have not waited any more lately: data that were read for the first time may come from memory now"


@dataclass(frozen=True)
class Wait:
    """Share of step time spent waiting for data, and how it was measured."""

    share: float
    measured: bool
    hand_written: Lines | None
    handed_over: bool = False


def judge(snapshot: Snapshot) -> Judgement:
    """Whether steps wait for data, in a DataLoader or in a hand-written pipeline."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    wait = _wait(snapshot)
    if wait is None:
        return None
    contention = _contention(snapshot, wait)
    if wait.handed_over:
        cause = own_pipeline.cause(snapshot, wait.share)
    elif wait.hand_written is not None:
        cause = input_cause.of_hand_written(snapshot, wait.share, wait.hand_written)
    else:
        cause = input_cause.of_loader(snapshot, wait.share, contention)
        late = laggard(snapshot)
        if late is not None and cause.subtype != "respawn":
            cause = lagging.cause(late, wait.share)
    return Finding(_verdict(snapshot, wait, cause, contention if cause.frees_cores else 0.0), level=wait.share)


def _wait(snapshot: Snapshot) -> Wait | None:
    """The largest of waiting in a loader, making batches by hand in the step, and waiting for those who make them."""
    steps = snapshot.steps
    in_loader = steps.phases.data_wait if steps else None
    at_work = input_cause.workers_at_work(snapshot)
    # Where one worker holds up the rest, what the rest have made lies ready, and is not what comes next.
    if in_loader is not None and at_work is not None and at_work < IDLE_WORKERS and laggard(snapshot) is None:
        in_loader *= _empty_handed(snapshot, at_work)
    if in_loader is not None and not timed_on_device(snapshot):
        in_loader = min(in_loader, device_idle(snapshot))
    by_hand = feeding_lines(snapshot)
    by_hand = Lines(min(by_hand.share, host_limit(snapshot)), by_hand.lines)
    handed = own_pipeline.waiting(snapshot)
    if in_loader is None and not by_hand.lines and not handed.lines:
        return None
    if handed.share > max(in_loader or 0.0, by_hand.share):
        return Wait(handed.share, steps is not None and steps.basis == "hook", handed, handed_over=True)
    if by_hand.share > (in_loader or 0.0):
        return Wait(by_hand.share, steps is not None and steps.basis == "hook", by_hand)
    return Wait(in_loader or 0.0, steps is not None and steps.basis == "hook", None)


def _empty_handed(snapshot: Snapshot, at_work: float) -> float:
    """How much of the wait (0..1) is for idle workers: what fell to steps for which no batch lay ready.

    Taking a batch that lies ready costs time, too, but no loader would make it faster. Where the queue was not
    measured, the part of the time in which workers work stands for it, unless the wait is for workers being started.
    """
    known = [step for step in records(snapshot) if step.queue_ready is not None]
    waited = sum(step.data_wait + step.loader_start for step in known)
    if waited <= 0:
        waiting = main_lines(snapshot, lambda line: line.phase == "data_wait").share
        starting = main_lines(snapshot, lambda line: line.activity == "spawn").share
        return 1.0 if starting > 0.5 * waiting else at_work
    empty = [step for step in known if not step.queue_ready or step.loader_start]
    return sum(step.data_wait + step.loader_start for step in empty) / waited


def _verdict(snapshot: Snapshot, wait: Wait, cause: Cause, contention: float) -> Verdict:
    steps = records(snapshot)
    process = main_stacks(snapshot)
    certain = wait.share if wait.measured or process is None else by_samples(wait.share, process.samples)
    signals = (wait.measured, cause.confirmed, bool(cause.where))
    unproven = host_unproven(snapshot)
    severity: Severity = (
        "critical" if wait.share >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven else "warning"
    )
    passing = _passing(snapshot, wait)
    if passing:
        severity = "info"
    gained = min(0.99, certain + contention, _most(snapshot, wait, cause))
    samples = None if wait.measured else samples_of(snapshot)
    base = 0.55 if gained < 0.9 else 0.4
    sure = confidence(*signals, base=base, steps=len(steps), share=gained, samples=samples)
    # A loader's queue is waited for several times a batch: where steps are not counted that tells nothing.
    own = not wait.handed_over and not loader_workers(snapshot) and cause.subtype != "storage"
    cold = (COLD,) if steps and left_cold(snapshot, gained, computed=own) else ()
    idle = ", device idle" if _covered(snapshot, wait) else ""
    return Verdict(
        id=ID,
        subtype=cause.subtype,
        severity=severity,
        share=round(wait.share, 4),
        speedup=round(without(gained), 3),
        confidence=min(sure, UNPROVEN) if unproven or cause.supposed or cold else sure,
        title=f"{percent(wait.share)} of each step waits for data{idle}",
        where=cause.where,
        evidence=(_measure(snapshot, wait), *cause.evidence, *cold, *passing),
        fixes=_ordered(cause.fixes, without(gained)),
    )


def _passing(snapshot: Snapshot, wait: Wait) -> tuple[str, ...]:
    """Why the wait may be none of the run's steady state, in words; empty where it is."""
    in_loader = wait.hand_written is None
    if over(snapshot, wait.share, in_loader=in_loader):
        return (PASSED,)
    if _watched(snapshot) < LEAST_SECONDS:
        return (FEW_SECONDS,)
    if wait.share < CRITICAL_SHARE and loader_workers(snapshot) and others_have_cores(snapshot):
        return (STARVED,)
    alone = not loader_workers(snapshot) and not wait.handed_over
    return (FIRST_TIME,) if alone and brief(snapshot, wait.share, in_loader=in_loader) else ()


def _watched(snapshot: Snapshot) -> float:
    """Seconds of steps, else of stacks, that tell of the wait."""
    steps = records(snapshot)
    if steps:
        return sum(step.seconds for step in steps)
    return snapshot.stacks.seconds if snapshot.stacks is not None else 0.0


def _covered(snapshot: Snapshot, wait: Wait) -> float | None:
    """The whole wait, as a share of the step, where the device worked on during a part of it; else None."""
    whole = snapshot.steps.phases.data_wait if snapshot.steps else None
    if whole is None or timed_on_device(snapshot) or wait.hand_written is not None:
        return None
    return whole if round(wait.share, 2) < round(whole, 2) and wait.share == device_idle(snapshot) else None


def _measure(snapshot: Snapshot, wait: Wait) -> str:
    steps = records(snapshot)
    if wait.measured and wait.hand_written is None and steps:
        waits = sorted(step.data_wait + step.loader_start for step in steps)
        middle = waits[len(waits) // 2]
        covered = _covered(snapshot, wait)
        measured = f"{percent(covered or wait.share)} of {len(steps)} steps (measured in the process)"
        idle = f"; for {percent(wait.share)} the device had nothing to do" if covered else ""
        return f"data wait {middle * 1e3:.1f} ms p50, {measured}{idle}"
    process = main_stacks(snapshot)
    samples = process.samples if process is not None else 0
    return f"{percent(wait.share)} of {samples} stack samples of the main thread make or await a batch"


def _contention(snapshot: Snapshot, wait: Wait) -> float:
    """Share of step time in which the step could run but waited for what loading occupies: a core, or the lock."""
    steps = on_core(snapshot)
    used = summed(steps, lambda step: step.cpu or 0.0)
    made = own_pipeline.makers(snapshot) if wait.handed_over else None
    if made is not None and not made.processes and not made.blocked and used is not None:
        # Threads of one process: whoever makes batches in Python holds the interpreter's lock meanwhile.
        return max(0.0, 1.0 - wait.share - used - (mean_of(snapshot, "run_delay") or 0.0))
    if snapshot.facts is not None and snapshot.facts.cuda:
        return 0.0
    idle = free_cores(snapshot)
    if idle is None or idle > 0.5:
        return 0.0
    waited = wait.share if wait.handed_over else summed(steps, lambda step: step.data_wait + step.loader_start)
    if waited is not None and used is not None:
        delay = max(0.0, 1.0 - waited - used)
    else:
        delay = min(mean_of(snapshot, "run_delay") or 0.0, 0.5)
    return delay * _loaders_part_of_others(snapshot)


def _most(snapshot: Snapshot, wait: Wait, cause: Cause) -> float:
    """The most of a step (0..1) that can be gained where others make the data, or bring them from afar.

    What the thread that steps computes stays, and so do its waits for cores that others take. 1 where it is not known.
    """
    # Starting workers is work of the thread that steps, and ends with the wait.
    beside = wait.handed_over or (wait.hand_written is None and bool(loader_workers(snapshot)))
    stays = cause.subtype == "storage" or (beside and cause.subtype != "respawn")
    ran = summed(on_core(snapshot), lambda step: min(step.cpu or 0.0, step.seconds))
    if ran is None:
        ran = mean_of(snapshot, "main_thread", 20.0)
    busy = snapshot.host.machine.core_busy if snapshot.host else None
    if not stays or ran is None or snapshot.host is None or busy is None:
        return 1.0
    used = sum(one.cpu or 0.0 for one in snapshot.host.processes)
    others = sum(busy) - used
    delay = (mean_of(snapshot, "run_delay", 20.0) or 0.0) if others >= OTHERS else 0.0
    theirs = others / max(sum(busy) - ran, others, 0.01)
    return max(min(1.0 - ran - delay * theirs, 1.0), wait.share / 2)


def _loaders_part_of_others(snapshot: Snapshot) -> float:
    """How much of the CPU that others than the training process use is used by its own loader workers (0..1)."""
    workers = mean_of(snapshot, "workers_cpu")
    main = mean_of(snapshot, "main_cpu")
    busy = snapshot.host.machine.core_busy if snapshot.host else None
    if workers is None or main is None or busy is None:
        return 0.0
    others = max(sum(busy) - main, workers, 0.01)
    return workers / others


def _ordered(fixes: tuple[Fix, ...], most: float) -> tuple[Fix, ...]:
    """The fixes, best first; none gains more than the end of the wait."""
    held = [
        msgspec.structs.replace(fix, speedup=round(most, 2)) if fix.speedup is not None and fix.speedup > most else fix
        for fix in fixes
    ]
    return tuple(sorted(held, key=lambda fix: -(fix.speedup or 0.0)))


RULE = Rule(ID, judge, Band(enter=0.12, leave=0.07))
