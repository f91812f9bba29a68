"""Root cause of a data stall: from the processes that make the data, not from the one that waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from aitop.diagnosis.evidence import (
    Lines,
    free_cores,
    loader_workers,
    main_lines,
    mean_of,
    places,
    records,
    summed,
    within_first,
    worker_lines,
)
from aitop.diagnosis.what_if import Loading, without
from aitop.model.snapshot import HotLine, Snapshot
from aitop.model.steps import LoaderInfo
from aitop.model.units import percent, rate
from aitop.model.verdict import Fix, Setting, Where

STORAGE = frozenset({"io-file", "io-network", "io-database"})
BUSY_CORES = 0.5
READING_BYTES = 20e6
WORTH_IT = 1.03
# Workers that rest for more of the time are not all that steps wait for; what less is seen of their work is luck.
RESTS, LEAST_AT_WORK = 0.25, 0.05
# With fewer cores idle, more workers take from others, or others from them.
LEAST_FREE = 0.25


@dataclass(frozen=True)
class Cause:
    """Why data come late. `confirmed`: a second signal agrees. `frees_cores`: the fix also ends the fight for cores.

    `supposed`: nothing seen so far tells how far the gain of the fix is from the wait that it ends.
    """

    subtype: str
    where: tuple[Where, ...]
    evidence: tuple[str, ...]
    fixes: tuple[Fix, ...]
    confirmed: bool
    frees_cores: bool = False
    supposed: bool = False


def of_loader(snapshot: Snapshot, share: float, contention: float) -> Cause:
    """Cause of a wait in a torch DataLoader. `contention` is the share of step time lost to a fight for its cores."""
    respawn = _respawn(snapshot, share, contention)
    if respawn is not None:
        return respawn
    lines = worker_lines(snapshot)
    if not loader_workers(snapshot) and not lines.lines:
        return _in_main_process(snapshot, share)
    return _in_workers(snapshot, share, contention, lines)


def of_hand_written(snapshot: Snapshot, share: float, lines: Lines) -> Cause:
    """Cause of a step that makes its own batches, without a DataLoader."""
    blocked = _blocked(snapshot, share, lines)
    subtype = "storage" if blocked else "collate" if _dominant(lines.lines) == "collate" else "transform"
    doing = sources_in_words(lines) if blocked else "computing in Python"
    first = lines.where[0]
    place = place_of(first)
    return Cause(
        subtype=subtype,
        where=lines.where,
        evidence=(f"batches are made by the process that computes, {doing}: {place}",),
        fixes=(
            Fix(
                text=f"make batches ahead in worker processes (a DataLoader with workers) instead of {place}",
                speedup=round(_overlapped(snapshot, share, blocked), 2),
            ),
            Fix(
                text=f"make {place} cheaper: vectorise it, or do it once ahead of time",
                speedup=round(without(share * within_first(lines)), 2),
            ),
        ),
        confirmed=True,
        # Sources may answer many at once more slowly, and threads that wait for them share the interpreter's lock.
        supposed=blocked,
    )


def _overlapped(snapshot: Snapshot, share: float, blocked: bool) -> float:
    loading = Loading(1.0, share, 0, 0.05 if blocked else 1.0, free_cores(snapshot))
    return loading.speedup_with(loading.best_workers())


def _respawn(snapshot: Snapshot, share: float, contention: float) -> Cause | None:
    """Waits only where a loader is started anew: its workers are made again at every epoch."""
    steps = records(snapshot)
    starts = [index for index, step in enumerate(steps) if step.loader_start > 0.002]
    spawning = main_lines(snapshot, lambda line: line.activity == "spawn")
    if steps:
        lost = sum(steps[index].loader_start + steps[index].data_wait for index in starts)
        # Taking a batch that lies ready is no wait, however long it takes on a crowded machine.
        waited = sum(step.loader_start + step.data_wait for step in steps if step.loader_start or not step.queue_ready)
        if len(starts) < 2 or waited <= 0 or lost < 0.6 * waited:
            return None
        cost = lost / len(starts)
        every = len(steps) / len(starts)
        times = f"the loader was started {len(starts)} times in {len(steps)} steps"
        evidence = f"{times}, {cost * 1e3:.0f} ms each (every {every:.0f} steps)"
    else:
        if spawning.share < 0.5 * share:
            return None
        evidence = f"{percent(spawning.share)} of samples start loader workers"
    where = places(spawning.lines) or main_lines(snapshot, lambda line: line.phase == "data_wait").where
    return Cause(
        subtype="respawn",
        where=where,
        evidence=(
            evidence,
            "worker processes are made again for every pass over the data",
            "making and ending them slows down the steps beside them, too: the gain may be larger",
        ),
        fixes=(
            Fix(
                text="persistent_workers=True keeps the loader's workers between epochs",
                speedup=round(without(min(0.99, share + contention)), 2),
            ),
        ),
        confirmed=bool(starts) and spawning.share > 0.02,
        frees_cores=True,
        # New processes slow down the steps beside them, too: how much, no measurement tells.
        supposed=True,
    )


def workers_at_work(snapshot: Snapshot) -> float | None:
    """Share of their time in which loader workers make samples; None where there are none or no stacks of them."""
    sampled = snapshot.stacks.processes if snapshot.stacks else ()
    if not any(process.role == "loader-worker" for process in sampled):
        return None
    return worker_lines(snapshot).share


def _in_main_process(snapshot: Snapshot, share: float) -> Cause:
    """num_workers=0: loading happens inside `next()`."""
    lines = main_lines(snapshot, lambda line: line.phase == "data_wait" and line.activity != "queue")
    free = free_cores(snapshot)
    blocked = _blocked(snapshot, share, lines)
    loading = Loading(1.0, share, 0, 0.05 if blocked else 1.0, free)
    workers = loading.best_workers()
    gain = loading.speedup_with(workers)
    subtype = "workers"
    if _dominant(lines.lines) == "collate" or _collating(lines) > 0.5:
        subtype = "collate"
    elif blocked and _of_activity(lines, STORAGE) > 0.5:
        subtype = "storage"
    elif not blocked and gain < 1 + 0.5 * (without(share) - 1):
        subtype = "transform"
    fixes = []
    if gain >= WORTH_IT or not lines.where or blocked:
        setting = Setting(name="num_workers", to=workers, current=0)
        text = f"num_workers 0 → {workers}: load while the step computes"
        fixes.append(Fix(text=text, speedup=round(gain, 2), setting=setting))
    if lines.where and not blocked:
        first = lines.where[0]
        fixes.append(
            Fix(
                text=f"make {place_of(first)} cheaper",
                speedup=round(without(share * (first.share or 1.0)), 2),
            )
        )
    return Cause(
        subtype=subtype,
        where=lines.where,
        evidence=("num_workers=0: samples are loaded by the process that computes, nothing overlaps", *_free(free)),
        fixes=tuple(fixes),
        confirmed=bool(lines.lines),
    )


def _collating(lines: Lines) -> float:
    """How much of those lines' time (0..1) goes by in or below functions of the user's that are named for collating."""
    total = sum(line.samples for line in lines.lines)
    named = sum(
        line.samples
        for line in lines.lines
        if any("collat" in function.lower() for function in (line.function, *(frame.function for frame in line.via)))
    )
    return named / total if total else 0.0


def _in_workers(snapshot: Snapshot, share: float, contention: float, lines: Lines) -> Cause:
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
    bursts = _bursts(snapshot, loading)
    fixes = list(bursts[1])
    if best > workers and gain >= WORTH_IT:
        setting = Setting(name="num_workers", to=best, current=workers)
        fixes.append(Fix(text=f"num_workers {workers} → {best}", speedup=round(gain, 2), setting=setting))
    if lines.where and not blocked:
        first = lines.where[0]
        fixes.append(
            Fix(
                text=f"make {place_of(first)} cheaper: vectorise it, cache it, or do it once ahead",
                speedup=round(without(min(0.99, share + contention)), 2),
            )
        )
    elif lines.where and subtype == "storage":
        fixes.append(
            Fix(
                text=_faster_source(lines),
                speedup=round(without(share), 2),
            )
        )
    evidence = [
        *bursts[0],
        *_queue(snapshot),
        *_workers(workers, each, blocked, working, source_of(lines)),
        *_free(free),
        *_reading(snapshot),
    ]
    return Cause(
        subtype=subtype,
        where=lines.where,
        evidence=tuple(evidence),
        fixes=tuple(fixes),
        confirmed=working > 0.5,
        frees_cores=not blocked and subtype != "workers",
        supposed=blocked and free is not None and free < LEAST_FREE,
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
    told = (
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
    return (told,), (
        Fix(
            text=f"prefetch_factor {now}: more batches lie ready for the next burst",
            speedup=round(gain, 2),
            setting=Setting(name="prefetch_factor", to=wanted, current=ahead) if ahead else None,
        ),
    )


def _worker_subtype(snapshot: Snapshot, lines: Lines, blocked: bool, gain: float, ideal: float) -> str:
    if lines.lines and _of_activity(lines, frozenset({"collate", "pin"})) > 0.5:
        return "collate"
    if blocked and (
        _of_activity(lines, STORAGE) > 0.4 or _disk_rate(snapshot) > READING_BYTES or _waits_for_disk(snapshot)
    ):
        return "storage"
    if blocked or gain >= 1 + 0.5 * (ideal - 1):
        return "workers"
    return "transform"


def _faster_source(lines: Lines) -> str:
    place = place_of(lines.where[0])
    asked = _dominant([line for line in lines.lines if line.activity in STORAGE])
    if asked == "io-network":
        return f"fetch more at once at {place}, keep connections open, or keep a local copy"
    if asked == "io-database":
        return f"read many rows with one query at {place}, or export them to files once"
    return f"read at {place} from faster or nearer storage, larger files, or a local cache"


def _blocked(snapshot: Snapshot, share: float, lines: Lines) -> bool:
    """Whether the training process sleeps, rather than computes, while it makes data."""
    steps = [step for step in records(snapshot) if step.cpu is not None]
    if steps:
        used = summed(steps, lambda step: step.cpu or 0.0) or 0.0
        delayed = mean_of(snapshot, "run_delay") or 0.0
        return 1.0 - used - delayed > 0.5 * share
    if _of_activity(lines, STORAGE | {"sleep"}) > 0.5:
        # What the thread that steps runs, not what others of its process do meanwhile.
        cores = mean_of(snapshot, "main_thread", 15.0)
        if cores is None:
            cores = mean_of(snapshot, "main_cpu", 15.0)
        return cores is None or cores < 1.0 - 0.4 * share
    return False


def _of_activity(lines: Lines, activities: frozenset[str]) -> float:
    total = sum(line.samples for line in lines.lines)
    return sum(line.samples for line in lines.lines if line.activity in activities) / total if total else 0.0


def _dominant(lines: Sequence[HotLine]) -> str | None:
    weights: dict[str, int] = {}
    for line in lines:
        weights[line.activity] = weights.get(line.activity, 0) + line.samples
    return max(weights, key=lambda activity: weights[activity], default=None)


def source_of(lines: Lines) -> str | None:
    """What those lines wait for: files, the network or a database; None where they do not tell."""
    names = {"io-file": "reading files", "io-network": "waiting for the network", "io-database": "asking a database"}
    return names.get(_dominant([line for line in lines.lines if line.activity in STORAGE]) or "")


def sources_in_words(lines: Lines) -> str:
    """The same, in words where they do not tell, too."""
    return source_of(lines) or "waiting for something other than the CPU"


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
    one = count == 1
    named = f"{count} worker" if one else f"{count} workers"
    if each is None:
        return [named]
    use = f"{named} at {percent(each)} of a core{'' if one else ' each'}"
    its = "its" if one else "their"
    if blocked:
        why = f"{'it is' if one else 'they are'} {source or 'waiting for something other than the CPU'}"
    else:
        why = "it computes" if one else "they compute"
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
