"""input-bound: steps wait for data. How much, which part of the data path is slow, and what would hide it.

What waits for data is read off the ledger: time in a loader, host code that stands before the model's call, waits there
for threads or processes that make batches, and a simulated environment. Why it takes long is read off those who make
the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from aitop.diagnosis.causes import passing
from aitop.diagnosis.causes.oversubscription import others_have_cores
from aitop.diagnosis.evidence import (
    BLOCKED,
    COLD,
    HANDED_WAITS,
    NO_LINES,
    UNPROVEN,
    Lines,
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
    stored,
    summed,
    timed_on_device,
    within_first,
    worker_lines,
)
from aitop.diagnosis.ledger import RUNNING
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import Loading, without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import LoaderInfo
from aitop.model.units import percent, rate
from aitop.model.verdict import Abstention, Fix, Setting, Severity, Verdict, Where

ID = "input-bound"
CRITICAL_SHARE = 0.3
IDLE_WORKERS = 0.5
LEAST_SECONDS = 1.5
# So many cores have to be taken by other programs for them to be in the way of a step.
OTHERS = 0.3
# Workers that use less of a core than this part of the time in which they work are waiting rather than computing.
BUSY_CORES = 0.5
READING_BYTES = 20e6
# A smaller gain than this is not worth a change.
WORTH_IT = 1.03
# Workers that rest for more of the time are not all that steps wait for.
RESTS, LEAST_AT_WORK = 0.25, 0.05
# Below this many idle cores, extra workers only move the contention.
LEAST_FREE = 0.25
# Threads and processes that wait for nearly all of the time are not why the step waits.
LEAST_MAKING = 0.3
# A worker is slower than the others when they are busy for less than this part of its time.
SLOW_READINGS, SLOW_BUSY, MOST_OF_OTHERS, SLOW_SECONDS = 3, 0.5, 0.5, 15.0

FIRST_TIME = "seen too briefly to tell it from how a run begins: what is read for the first time may be cached later"
FEW_SECONDS = "seen for hardly more than a second: whether the wait lasts is not known yet"
STARVED = "other programs use the cores that the loader's workers wait for: left alone, they may well keep up"
PASSED = "steps have not waited lately: data that were read for the first time may come from memory now"


@dataclass(frozen=True)
class Wait:
    """What waits for data: entries of the stepping thread. `kind` says how the data come."""

    kind: str  # loader | own code | producers | environment
    lines: Lines
    share: float


@dataclass(frozen=True)
class Why:
    """Why data come late. `confirmed`: a second signal agrees. `frees_cores`: the fix also ends a fight for cores.

    `open_end`: nothing seen so far bounds how far the gain of a fix may be from the end of the wait.
    """

    subtype: str
    where: tuple[Where, ...]
    evidence: tuple[str, ...]
    fixes: tuple[Fix, ...]
    confirmed: bool
    frees_cores: bool = False
    open_end: bool = False


@dataclass(frozen=True)
class Makers:
    """The threads, or processes, that make batches, and how much of their time is work."""

    count: int
    processes: bool
    lines: Lines
    at_work: float
    blocked: bool


@dataclass(frozen=True)
class SlowWorker:
    """A loader worker that is at work while the others wait: how busy it is (0..1) and how busy they are, at most."""

    pid: int
    busy: float
    others: float
    count: int
    lines: Lines


def judge(snapshot: Snapshot) -> Judgement:
    """Whether steps wait for data."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    wait = _wait(snapshot)
    if wait is None:
        return None
    contention = _contention(snapshot, wait)
    if wait.kind == "environment":
        why = _of_environment(snapshot, wait)
    elif wait.kind == "producers":
        why = _of_producers(snapshot, wait.share)
    elif wait.kind == "own code":
        why = _of_own_code(snapshot, wait.share, wait.lines)
    else:
        why = _of_loader(snapshot, wait.share, contention)
        slow = slow_worker(snapshot)
        if slow is not None and why.subtype != "respawn":
            why = _of_slow_worker(slow, wait.share)
    verdict = _verdict(snapshot, wait, why, contention if why.frees_cores else 0.0)
    return Finding(verdict, level=wait.share, claims=wait.lines.entries)


def _wait(snapshot: Snapshot) -> Wait | None:
    """The largest of: a loader, batches made by the stepping thread, waits for those who make them, an environment."""
    waits = [
        _in_loader(snapshot),
        Wait("own code", *_limited(snapshot, own_code(snapshot))),
        Wait("producers", *_limited(snapshot, _for_producers(snapshot))),
        Wait("environment", *_limited(snapshot, main_lines(snapshot, lambda entry: entry.phase == "environment"))),
    ]
    largest = max(waits, key=lambda wait: wait.share)
    return largest if largest.share > 0.0 else None


def _limited(snapshot: Snapshot, lines: Lines) -> tuple[Lines, float]:
    return lines, min(lines.share, host_limit(snapshot))


def _in_loader(snapshot: Snapshot) -> Wait:
    lines = main_lines(snapshot, lambda entry: entry.phase == "data")
    share = lines.share
    if timed_on_device(snapshot) and snapshot.steps is not None:
        share = min(share, snapshot.steps.phases.data_wait or 0.0)
    at_work = workers_at_work(snapshot)
    # Where one worker holds up the rest, what the rest have made lies ready, and is not what comes next.
    if at_work is not None and at_work < IDLE_WORKERS and slow_worker(snapshot) is None:
        share *= _empty_handed(snapshot, at_work)
    if not timed_on_device(snapshot):
        share = min(share, device_idle(snapshot))
    return Wait("loader", lines, share)


def own_code(snapshot: Snapshot) -> Lines:
    """What the stepping thread does itself to make the next batch: host code before the model's call.

    In inference only what reads data counts here; computing the model's input is preprocessing.
    """
    if snapshot.kind == "unknown":
        return NO_LINES
    before = main_lines(
        snapshot,
        lambda entry: entry.phase == "host" and entry.position == "before" and entry.activity not in HANDED_WAITS,
    )
    if snapshot.kind == "training":
        return before
    reading = tuple(
        entry
        for entry in before.entries
        if entry.work in ("file", "database", "network") or entry.activity == "wait-disk"
    )
    return Lines(sum(entry.share for entry in reading), reading)


def _for_producers(snapshot: Snapshot) -> Lines:
    """Where the stepping thread waits for somebody of the run's own to hand it something; none while they idle."""
    lines = main_lines(
        snapshot,
        lambda entry: (
            entry.phase == "host"
            and entry.activity in HANDED_WAITS
            and entry.position in ("before", None)
            and entry.where is not None
        ),
    )
    return lines if lines.entries and makers(snapshot) is not None else NO_LINES


def _empty_handed(snapshot: Snapshot, at_work: float) -> float:
    """How much of the wait (0..1) is for idle workers: what fell to steps for which no batch lay ready.

    Taking a batch that lies ready costs time, too, but no loader would make it faster. Where the queue was not
    measured, the part of the time in which workers work stands for it, unless the wait is for workers being started.
    """
    known = [step for step in records(snapshot) if step.queue_ready is not None]
    waited = sum(step.data_wait + step.loader_start for step in known)
    if waited <= 0:
        waiting = main_lines(snapshot, lambda entry: entry.phase == "data").share
        starting = main_lines(snapshot, lambda entry: entry.activity == "spawn").share
        return 1.0 if starting > 0.5 * waiting else at_work
    empty = [step for step in known if not step.queue_ready or step.loader_start]
    return sum(step.data_wait + step.loader_start for step in empty) / waited


def _verdict(snapshot: Snapshot, wait: Wait, why: Why, contention: float) -> Verdict:
    steps = records(snapshot)
    measured = bool(steps)
    unproven = host_unproven(snapshot)
    signals = (measured, why.confirmed, bool(why.where))
    severity: Severity = (
        "critical" if wait.share >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven else "warning"
    )
    transient = _transient(snapshot, wait)
    if transient:
        severity = "info"
    gained = min(0.99, wait.share + contention, _most(snapshot, wait, why))
    # A loader's queue is waited for several times a batch: where steps are not counted that tells nothing.
    own = wait.kind in ("loader", "own code") and not loader_workers(snapshot) and why.subtype != "storage"
    cold = (COLD,) if steps and left_cold(snapshot, gained, computed=own) else ()
    idle = ", device idle" if _covered(snapshot, wait) else ""
    sure = confidence(*signals, steps=len(steps))
    what = "is the environment" if wait.kind == "environment" else f"waits for data{idle}"
    return Verdict(
        id=ID,
        subtype=why.subtype,
        severity=severity,
        share=round(wait.share, 4),
        speedup=round(without(gained), 3),
        confidence=min(sure, UNPROVEN) if unproven or transient else sure,
        title=f"{percent(wait.share)} of each step {what}",
        where=why.where,
        evidence=(_measure(snapshot, wait), *why.evidence, *cold, *transient),
        fixes=_ordered(why.fixes, without(gained)),
    )


def _transient(snapshot: Snapshot, wait: Wait) -> tuple[str, ...]:
    """Why the wait may be none of the run's steady state, in words; empty where it is."""
    in_loader = wait.kind == "loader"
    if passing.over(snapshot, wait.share, in_loader=in_loader):
        return (PASSED,)
    if _watched(snapshot) < LEAST_SECONDS:
        return (FEW_SECONDS,)
    if wait.share < CRITICAL_SHARE and loader_workers(snapshot) and others_have_cores(snapshot):
        return (STARVED,)
    alone = not loader_workers(snapshot) and wait.kind in ("loader", "own code")
    return (FIRST_TIME,) if alone and passing.brief(snapshot, wait.share, in_loader=in_loader) else ()


def _watched(snapshot: Snapshot) -> float:
    """Seconds of steps, else of stacks, that tell of the wait."""
    steps = records(snapshot)
    if steps:
        return sum(step.seconds for step in steps)
    return snapshot.stacks.seconds if snapshot.stacks is not None else 0.0


def _covered(snapshot: Snapshot, wait: Wait) -> float | None:
    """The whole wait, as a share of the step, where the device worked on during a part of it; else None."""
    if timed_on_device(snapshot) or wait.kind != "loader":
        return None
    whole = wait.lines.share
    return whole if round(wait.share, 2) < round(whole, 2) and wait.share == device_idle(snapshot) else None


def _measure(snapshot: Snapshot, wait: Wait) -> str:
    steps = records(snapshot)
    if steps and wait.kind == "loader":
        waits = sorted(step.data_wait + step.loader_start for step in steps)
        covered = _covered(snapshot, wait)
        measured = f"{percent(covered or wait.share)} of {len(steps)} steps (measured in the process)"
        idle = f"; for {percent(wait.share)} the device had nothing to do" if covered else ""
        return f"data wait {waits[len(waits) // 2] * 1e3:.1f} ms p50, {measured}{idle}"
    process = main_stacks(snapshot)
    samples = process.samples if process is not None else 0
    doing = "step the environment" if wait.kind == "environment" else "make or await a batch"
    return f"{percent(wait.share)} of {samples} stack samples of the stepping thread {doing}"


def _contention(snapshot: Snapshot, wait: Wait) -> float:
    """Share of step time in which the step could run but waited for what loading occupies: a core, or the lock."""
    if wait.kind == "environment":
        return 0.0
    steps = on_core(snapshot)
    used = summed(steps, lambda step: step.cpu or 0.0)
    made = makers(snapshot) if wait.kind == "producers" else None
    if made is not None and not made.processes and not made.blocked and used is not None:
        # Threads of one process: whoever makes batches in Python holds the interpreter's lock meanwhile.
        return max(0.0, 1.0 - wait.share - used - (mean_of(snapshot, "run_delay") or 0.0))
    if snapshot.facts is not None and snapshot.facts.cuda:
        return 0.0
    idle = free_cores(snapshot)
    if idle is None or idle > 0.5:
        return 0.0
    waited = wait.share if wait.kind == "producers" else summed(steps, lambda step: step.data_wait + step.loader_start)
    if waited is not None and used is not None:
        delay = max(0.0, 1.0 - waited - used)
    else:
        delay = min(mean_of(snapshot, "run_delay") or 0.0, 0.5)
    return delay * _loaders_part_of_others(snapshot)


def _most(snapshot: Snapshot, wait: Wait, why: Why) -> float:
    """The most of a step (0..1) that can be gained where others make the data, or bring them from afar.

    What the thread that steps computes stays, and so do its waits for cores that others take. 1 where it is not known.
    """
    # Starting workers is work of the thread that steps, and ends with the wait.
    beside = wait.kind == "producers" or (wait.kind == "loader" and bool(loader_workers(snapshot)))
    stays = why.subtype == "storage" or (beside and why.subtype != "respawn")
    ran = summed(on_core(snapshot), lambda step: min(step.cpu or 0.0, step.seconds))
    if ran is None:
        ran = mean_of(snapshot, "main_thread", 20.0)
    busy = snapshot.host.machine.core_busy if snapshot.host else None
    if not stays or ran is None or snapshot.host is None or busy is None:
        return 1.0
    used = sum(process.cpu or 0.0 for process in snapshot.host.processes)
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
    return workers / max(sum(busy) - main, workers, 0.01)


def _ordered(fixes: tuple[Fix, ...], most: float) -> tuple[Fix, ...]:
    """The fixes, best first; none gains more than the end of the wait."""
    held = [
        msgspec.structs.replace(fix, speedup=round(most, 2)) if fix.speedup is not None and fix.speedup > most else fix
        for fix in fixes
    ]
    return tuple(sorted(held, key=lambda fix: -(fix.speedup or 0.0)))


# --- a torch DataLoader ---------------------------------------------------------------------------------------------


def _of_loader(snapshot: Snapshot, share: float, contention: float) -> Why:
    """Why a DataLoader is late. `contention` is the share of step time lost to a fight for its cores."""
    respawn = _respawn(snapshot, share, contention)
    if respawn is not None:
        return respawn
    lines = worker_lines(snapshot)
    if not loader_workers(snapshot) and not lines.lines:
        return _in_main_process(snapshot, share)
    return _in_workers(snapshot, share, contention, lines)


def _respawn(snapshot: Snapshot, share: float, contention: float) -> Why | None:
    """Waits only where a loader is started anew: its workers are made again at every epoch."""
    steps = records(snapshot)
    starts = [index for index, step in enumerate(steps) if step.loader_start > 0.002]
    spawning = main_lines(snapshot, lambda entry: entry.activity == "spawn")
    if steps:
        lost = sum(steps[index].loader_start + steps[index].data_wait for index in starts)
        # Taking a batch that lies ready is no wait, however long it takes on a crowded machine.
        waited = sum(step.loader_start + step.data_wait for step in steps if step.loader_start or not step.queue_ready)
        if len(starts) < 2 or waited <= 0 or lost < 0.6 * waited:
            return None
        cost = lost / len(starts)
        times = f"the loader was started {len(starts)} times in {len(steps)} steps"
        evidence = f"{times}, {cost * 1e3:.0f} ms each (every {len(steps) / len(starts):.0f} steps)"
    else:
        if spawning.share < 0.5 * share:
            return None
        evidence = f"{percent(spawning.share)} of samples start loader workers"
    return Why(
        subtype="respawn",
        where=spawning.where or main_lines(snapshot, lambda entry: entry.phase == "data").where,
        evidence=(
            evidence,
            "worker processes are created again for every pass over the data",
            "creating and ending them slows the steps beside them as well: the gain may be larger",
        ),
        fixes=(
            Fix(
                text="persistent_workers=True keeps the loader's workers between epochs",
                speedup=round(without(min(0.99, share + contention)), 2),
                setting=Setting(name="persistent_workers", to=True, current=False),
            ),
        ),
        confirmed=bool(starts) and spawning.share > 0.02,
        frees_cores=True,
        open_end=True,
    )


def workers_at_work(snapshot: Snapshot) -> float | None:
    """Share of their time in which loader workers make samples; None where there are none or no stacks of them."""
    sampled = snapshot.stacks.processes if snapshot.stacks else ()
    if not any(process.role == "loader-worker" for process in sampled):
        return None
    return worker_lines(snapshot).share


def _in_main_process(snapshot: Snapshot, share: float) -> Why:
    """num_workers=0: loading happens inside `next()`."""
    lines = main_lines(snapshot, lambda entry: entry.phase == "data" and entry.activity != "wait-queue")
    free = free_cores(snapshot)
    blocked = _waits(lines)
    loading = Loading(1.0, share, 0, 0.05 if blocked else 1.0, free)
    workers = loading.best_workers()
    gain = loading.speedup_with(workers)
    subtype = "workers"
    if lines.part(lambda entry: entry.work == "collate") > 0.5:
        subtype = "collate"
    elif blocked and lines.part(stored) > 0.5:
        subtype = "storage"
    elif not blocked and gain < 1 + 0.5 * (without(share) - 1):
        subtype = "transform"
    fixes = []
    if gain >= WORTH_IT or not lines.where or blocked:
        setting = Setting(name="num_workers", to=workers, current=0)
        text = f"num_workers 0 → {workers}: load while the step computes"
        fixes.append(Fix(text=text, speedup=round(gain, 2), setting=setting))
    if lines.where and not blocked:
        gone = share * within_first(lines)
        fixes.append(Fix(text=f"make {place_of(lines.where[0])} cheaper", speedup=round(without(gone), 2)))
    return Why(
        subtype=subtype,
        where=lines.where,
        evidence=("num_workers=0: samples are loaded by the process that computes, nothing overlaps", *_free(free)),
        fixes=tuple(fixes),
        confirmed=bool(lines.lines),
    )


def _in_workers(snapshot: Snapshot, share: float, contention: float, lines: Lines) -> Why:
    workers = max(len(loader_workers(snapshot)), _configured(snapshot))
    free = free_cores(snapshot)
    used = mean_of(snapshot, "workers_cpu", 15.0)
    each = used / workers if used is not None and workers else None
    working = lines.share
    delayed = (mean_of(snapshot, "workers_delay", 15.0) or 0.0) / workers if workers else 0.0
    blocked = each is not None and each + delayed < BUSY_CORES * max(working, 0.3)
    step = snapshot.steps.mean if snapshot.steps and snapshot.steps.mean else 1.0
    each_takes = 0.0 if blocked else max((each or 1.0) + delayed, 0.5)
    loading = Loading(step, share * step, workers, each_takes, free, _at_work(snapshot))
    best = loading.best_workers()
    if blocked and each is not None:
        # How many wait at once costs nothing; what they all compute needs cores, and others may have those.
        loading = replace(loading, cores_per_worker=each + delayed)
    gain = loading.speedup_with(best)
    subtype = _worker_subtype(snapshot, lines, blocked, gain, without(share))
    burst_evidence, burst_fixes = _bursts(snapshot, loading)
    fixes = list(burst_fixes)
    if best > workers and gain >= WORTH_IT:
        setting = Setting(name="num_workers", to=best, current=workers)
        fixes.append(Fix(text=f"num_workers {workers} → {best}", speedup=round(gain, 2), setting=setting))
    if lines.where and not blocked:
        text = f"make {place_of(lines.where[0])} cheaper: vectorise it, cache it, or do it once ahead"
        fixes.append(Fix(text=text, speedup=round(without(min(0.99, share + contention)), 2)))
    elif lines.where and subtype == "storage":
        fixes.append(Fix(text=_faster_source(lines), speedup=round(without(share), 2)))
    return Why(
        subtype=subtype,
        where=lines.where,
        evidence=(
            *burst_evidence,
            *_queue(snapshot),
            *_workers(workers, each, blocked, working, source_of(lines)),
            *_free(free),
            *_reading(snapshot),
        ),
        fixes=tuple(fixes),
        confirmed=working > 0.5,
        frees_cores=not blocked and subtype != "workers",
        open_end=blocked and free is not None and free < LEAST_FREE,
    )


def _at_work(snapshot: Snapshot) -> float:
    """The part of their time (0..1] in which loader workers make batches; all of it unless they clearly rest."""
    working = workers_at_work(snapshot)
    return 1.0 if working is None or working > 1.0 - RESTS else max(working, LEAST_AT_WORK)


def _bursts(snapshot: Snapshot, loading: Loading) -> tuple[tuple[str, ...], tuple[Fix, ...]]:
    """What to say and do where workers rest although steps wait: several batches are taken at once, then none."""
    idle = 1.0 - loading.at_work
    if not idle:
        return (), ()
    evidence = (
        f"workers have nothing to do {percent(idle)} of the time although steps wait: batches are taken in bursts, "
        "and no more are made ahead than the queue holds"
    )
    gain = loading.step / max(loading.compute, loading.load / loading.workers)
    info = _loader(snapshot)
    ahead = info.prefetch if info is not None else None
    taken = sorted(step.backwards for step in records(snapshot))
    at_once = taken[len(taken) // 2] if taken else 0
    wanted = max(2 * (ahead or 2), math.ceil(2 * at_once / loading.workers))
    now = f"{ahead} → {wanted}" if ahead else "higher"
    return (evidence,), (
        Fix(
            text=f"prefetch_factor {now}: more batches lie ready for the next burst",
            speedup=round(gain, 2),
            setting=Setting(name="prefetch_factor", to=wanted, current=ahead) if ahead else None,
        ),
    )


def _worker_subtype(snapshot: Snapshot, lines: Lines, blocked: bool, gain: float, ideal: float) -> str:
    if lines.part(lambda entry: entry.work in ("collate", "pin")) > 0.5:
        return "collate"
    if blocked and (lines.part(stored) > 0.4 or _disk_rate(snapshot) > READING_BYTES or _waits_for_disk(snapshot)):
        return "storage"
    if blocked or gain >= 1 + 0.5 * (ideal - 1):
        return "workers"
    return "transform"


# --- one loader worker that holds up the others: batches come in order, so all wait for the slowest -----------------


def slow_worker(snapshot: Snapshot) -> SlowWorker | None:
    """The one worker that all wait for, None where they work alike or were not watched for long enough."""
    pids = [process.pid for process in loader_workers(snapshot)]
    busy = {pid: used for pid in pids if (used := _busy(snapshot, pid)) is not None}
    if len(busy) < 2 or len(busy) < len(pids):
        return None
    slowest, *others = sorted(busy, key=lambda pid: -busy[pid])
    most = busy[others[0]]
    if busy[slowest] < SLOW_BUSY or most > MOST_OF_OTHERS * busy[slowest]:
        return None
    lines = worker_lines(snapshot, lambda entry: entry.pid == slowest)
    return SlowWorker(slowest, min(1.0, busy[slowest]), most, len(busy), lines)


def _busy(snapshot: Snapshot, pid: int) -> float | None:
    """Share of the last seconds in which that worker used a core; None while there are too few readings."""
    name = f"worker{pid}.cpu"
    series = snapshot.series.get(name)
    if series is None or sum(value is not None for value in series.values) < SLOW_READINGS:
        return None
    return mean_of(snapshot, name, SLOW_SECONDS)


def _of_slow_worker(slow: SlowWorker, share: float) -> Why:
    those = f"the other {slow.count - 1}" if slow.count > 2 else "the other one"
    work = f"worker {slow.pid} is at work {percent(slow.busy)} of the time, {those} {percent(slow.others)} at most"
    even = (slow.busy + (slow.count - 1) * slow.others) / slow.count
    fixes = [
        Fix(
            text=f"share the work out evenly: worker {slow.pid} gets the slow part of the data, all {slow.count} could",
            speedup=round(without(share * (1.0 - even / slow.busy)), 2),
        )
    ]
    if slow.lines.where:
        text = f"make {place_of(slow.lines.where[0])} cheaper: convert what it reads once, ahead"
        fixes.insert(0, Fix(text=text, speedup=round(without(share), 2)))
    return Why(
        subtype="transform",
        where=slow.lines.where,
        evidence=(f"{work}: batches come in order, so all wait for its",),
        fixes=tuple(fixes),
        confirmed=bool(slow.lines.where),
    )


# --- batches made by the stepping thread itself, without a loader ---------------------------------------------------


def _of_own_code(snapshot: Snapshot, share: float, lines: Lines) -> Why:
    blocked = _waits(lines)
    subtype = "storage" if blocked else "transform"
    doing = source_of(lines) or ("waiting" if blocked else "computing")
    place = place_of(lines.where[0]) if lines.where else "code before the model's call"
    loading = Loading(1.0, share, 0, 0.05 if blocked else 1.0, free_cores(snapshot))
    return Why(
        subtype=subtype,
        where=lines.where,
        evidence=(f"batches are made by the thread that computes, {doing}: {place}",),
        fixes=(
            Fix(
                text=f"make batches ahead in worker processes (a DataLoader with workers) instead of {place}",
                speedup=round(loading.speedup_with(loading.best_workers()), 2),
            ),
            Fix(
                text=f"make {place} cheaper: vectorise it, or do it once ahead of time",
                speedup=round(without(share * within_first(lines)), 2),
            ),
        ),
        confirmed=True,
        # Sources may answer many at once more slowly, and threads that wait for them share the interpreter's lock.
        open_end=blocked,
    )


# --- batches made by threads or processes of the run's own ----------------------------------------------------------


def makers(snapshot: Snapshot) -> Makers | None:
    """Who makes the batches: other threads of the process, else processes below it; None where nobody works on any."""
    ledger = snapshot.ledgers[0] if snapshot.ledgers else None
    if ledger is None:
        return None
    others = [entry for entry in ledger.entries if entry.lane == "producers"]
    threads = [entry for entry in others if entry.pid == ledger.pid]
    children = [entry for entry in others if entry.pid != ledger.pid and entry.role != "rank"]
    for entries, processes in ((threads, False), (children, True)):
        made = _makers(snapshot, entries, processes)
        if made is not None:
            return made
    return None


def _makers(snapshot: Snapshot, entries: Sequence[Entry], processes: bool) -> Makers | None:
    """The same of these entries. Clients of a server rest between requests: there, a wait is no work."""
    rests = HANDED_WAITS if snapshot.kind == "training" else HANDED_WAITS | {"sleep", "wait-network"}
    samples: dict[tuple[int, str], float] = {}
    for entry in entries:
        key = (entry.pid, "" if processes else entry.thread)
        samples[key] = samples.get(key, 0.0) + entry.samples
    working = [entry for entry in entries if entry.activity not in rests and entry.work != "log"]
    busy = {(entry.pid, "" if processes else entry.thread) for entry in working}
    total = sum(samples[key] for key in busy)
    if not working or not total:
        return None
    at_work = sum(entry.samples for entry in working) / total
    if at_work < LEAST_MAKING:
        return None
    ordered = tuple(sorted(working, key=lambda entry: -entry.samples))
    lines = Lines(at_work, ordered)
    return Makers(len(busy), processes, lines, at_work, lines.part(lambda entry: entry.activity in BLOCKED) > 0.5)


def _of_producers(snapshot: Snapshot, share: float) -> Why:
    """Why those who make the batches are too slow. There must be some, see `_for_producers`."""
    made = makers(snapshot)
    if made is None:
        return Why("workers", (), ("nobody was seen to make batches",), (), confirmed=False)
    free = free_cores(snapshot)
    step = snapshot.steps.mean if snapshot.steps and snapshot.steps.mean else 1.0
    loading = Loading(step, share * step, made.count, 0.05 if made.blocked else 1.0, free)
    best = loading.best_workers()
    gain = loading.speedup_with(best)
    if made.blocked:
        subtype = "storage" if made.lines.part(stored) > 0.4 else "workers"
    else:
        subtype = "workers" if made.processes and gain >= 1 + 0.5 * (without(share) - 1) else "transform"
    what = "process" if made.processes else "thread"
    who = f"{made.count} {what}{('es' if made.processes else 's') if made.count > 1 else ''}"
    doing = (source_of(made.lines) or "waiting for something other than the CPU") if made.blocked else "computing"
    at_work = percent(min(1.0, made.at_work))
    evidence = [f"batches are made by {who} of the run's own, {at_work} of the time at work: {doing}"]
    if not made.blocked and not made.processes:
        evidence.append("threads of one process take turns at running Python: they share one interpreter's lock")
    place = place_of(made.lines.where[0]) if made.lines.where else "their work"
    text = (
        f"shorten the wait at {place}: cache it, or ask for more at once"
        if made.blocked
        else f"make {place} cheaper: vectorise it, or do it once ahead of time"
    )
    fixes = [Fix(text=text, speedup=round(without(share), 2))]
    if best > made.count and gain >= WORTH_IT:
        kind = "processes" if made.processes else "threads" if made.blocked else "worker processes (a DataLoader)"
        before = f"{made.count} → {best}" if made.processes or made.blocked else f"{best}"
        fixes.append(Fix(text=f"{before} {kind} to make batches", speedup=round(gain, 2)))
    return Why(
        subtype=subtype,
        where=made.lines.where,
        evidence=(*evidence, *_free(free)),
        fixes=tuple(fixes),
        confirmed=made.at_work > 0.6,
        frees_cores=not made.blocked,
        # A thread that holds the interpreter's lock slows the rest of the step as well; by how much was not measured.
        open_end=not made.processes and not made.blocked,
    )


# --- a simulated environment ----------------------------------------------------------------------------------------


def _of_environment(snapshot: Snapshot, wait: Wait) -> Why:
    """Reinforcement learning: the environment is stepped by the thread that computes."""
    free = free_cores(snapshot)
    loading = Loading(1.0, wait.share, 0, 0.05 if _waits(wait.lines) else 1.0, free)
    workers = loading.best_workers()
    policy = main_lines(snapshot, lambda entry: entry.phase == "forward").share
    learning = main_lines(snapshot, lambda entry: entry.phase in ("backward", "optimizer")).share
    place = place_of(wait.lines.where[0]) if wait.lines.where else "the environment"
    return Why(
        subtype="environment",
        where=wait.lines.where,
        evidence=(
            f"the environment takes {percent(wait.share)}, model calls {percent(policy)}, "
            f"backward and update {percent(learning)}",
            *_free(free),
        ),
        fixes=(
            Fix(
                text=f"make {place} cheaper: a compiled or vectorised environment, less work for each step of it",
                speedup=round(without(wait.share * within_first(wait.lines)), 2),
            ),
            Fix(
                text=f"step {max(2, workers)} environments in processes (AsyncVectorEnv), one policy call for all",
                speedup=round(loading.speedup_with(workers), 2),
            ),
        ),
        confirmed=bool(wait.lines.where),
    )


# --- words ----------------------------------------------------------------------------------------------------------


def _waits(lines: Lines) -> bool:
    """Whether whoever makes the data mostly sleeps rather than computes."""
    return lines.part(lambda entry: entry.does not in RUNNING) > 0.5


def _faster_source(lines: Lines) -> str:
    place = place_of(lines.where[0])
    source = _source(lines)
    if source == "network":
        return f"fetch more at once at {place}, keep connections open, or keep a local copy"
    if source == "database":
        return f"read many rows with one query at {place}, or export them to files once"
    return f"read at {place} from faster or nearer storage, larger files, or a local cache"


def _source(lines: Lines) -> str | None:
    """What those entries wait for: file, network or database; None where nothing tells."""
    kinds: dict[str, Callable[[Entry], bool]] = {
        "database": lambda entry: entry.work == "database",
        "network": lambda entry: entry.activity == "wait-network" or entry.work == "network",
        "file": lambda entry: entry.activity == "wait-disk" or entry.work == "file",
    }
    weights = {name: lines.part(test) for name, test in kinds.items()}
    largest = max(weights, key=lambda name: weights[name])
    return largest if weights[largest] > 0.0 else None


def source_of(lines: Lines) -> str | None:
    """The same in words."""
    words = {"file": "reading files", "network": "waiting for the network", "database": "asking a database"}
    source = _source(lines)
    return words[source] if source is not None else None


def _loader(snapshot: Snapshot) -> LoaderInfo | None:
    loaders = snapshot.facts.loaders if snapshot.facts else ()
    return max(loaders, key=lambda loader: loader.workers, default=None)


def _configured(snapshot: Snapshot) -> int:
    loader = _loader(snapshot)
    return loader.workers if loader else 0


def _queue(snapshot: Snapshot) -> list[str]:
    depths = [step.queue_ready for step in records(snapshot) if step.queue_ready is not None]
    if not depths:
        return []
    empty = sum(1 for depth in depths if depth == 0)
    return [f"no batch lay ready at {percent(empty / len(depths))} of the requests"]


def _workers(count: int, each: float | None, blocked: bool, working: float, source: str | None) -> list[str]:
    alone = count == 1
    named = f"{count} worker" if alone else f"{count} workers"
    if each is None:
        return [named]
    use = f"{named} at {percent(each)} of a core{'' if alone else ' each'}"
    its = "its" if alone else "their"
    if blocked:
        why = f"{'it is' if alone else 'they are'} {source or 'waiting for something other than the CPU'}"
    else:
        why = "it computes" if alone else "they compute"
    return [f"{use}, {percent(min(1.0, working))} of {its} samples at work: {why}"]


def _free(free: float | None) -> list[str]:
    return [] if free is None else [f"{free:.1f} cores idle"]


def _reading(snapshot: Snapshot) -> list[str]:
    reading = _disk_rate(snapshot)
    return [f"workers read {rate(reading)} from storage"] if reading > 1e6 else []


def _disk_rate(snapshot: Snapshot) -> float:
    return sum(process.read_bytes or 0.0 for process in loader_workers(snapshot))


def _waits_for_disk(snapshot: Snapshot) -> bool:
    workers = loader_workers(snapshot)
    return bool(workers) and sum(process.state == "D" for process in workers) * 2 >= len(workers)


def place_of(where: Where) -> str:
    """A place in words: function and line."""
    return f"{where.function} ({where.file.rsplit('/', 1)[-1]}:{where.line})"


RULE = Rule(ID, judge, Band(enter=0.12, leave=0.07))
