"""Who makes the data that steps wait for, why the data come late, and what would hide or end the wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec
from msgspec.structs import replace

from aitop.diagnosis.evidence import (
    RUNNING,
    STORAGE_WAITS,
    STORAGE_WORK,
    Lines,
    computes,
    free_cores,
    interval,
    lead_ledger,
    loader_size,
    loader_workers,
    main_lines,
    place_of,
    producer_entries,
    records,
    sampled_workers,
    stepping,
    stored,
    within_first,
    worker_lines,
)
from aitop.diagnosis.series import mean_of, values_since
from aitop.diagnosis.what_if import LEFT, WAITING, Length, Loading, estimated, fix, without
from aitop.model.ledger import HANDED_WAITS, RESTS, Activity, Entry
from aitop.model.snapshot import ProcessStacks, Snapshot
from aitop.model.units import duration, percent, plural, rate
from aitop.model.verdict import Fix, Setting, Where

# Workers wait rather than compute if the cores that they want are less than this part of the time that they work.
BUSY_CORES = 0.5
# A speedup below WORTH_IT is not worth a change. Too few workers are the cause if more of them gain at least the part
# MOST_OF_IT of what ending the wait would gain.
WORTH_IT, MOST_OF_IT = 1.03, 0.5
# The step does not wait for threads or processes that work for less than this part of their time.
LEAST_MAKING = 0.3
# Fewer samples of them may all be of stacks that changed while they were read.
LEAST_SAMPLES = 4
# Handing over counts as the cause if the busiest process does so for at least this share of the time.
LEAST_HANDING = 0.15
# One worker holds up the others if it is busy for at least SLOW_BUSY of the time, and each of them for at most
# MOST_OF_OTHERS as long, in at least SLOW_READINGS readings.
SLOW_READINGS, SLOW_BUSY, MOST_OF_OTHERS = 3, 0.5, 0.5
# Seconds above which the start of a loader counts, and the share of all waits that such starts must make up.
START, MOSTLY_STARTS = 0.002, 0.6
# Waits that several workers can spend at the same time, unlike those for the GIL.
BLOCKED: frozenset[Activity] = frozenset({*STORAGE_WAITS, "sleep", "wait", "wait-child"})
# What the makers of data may wait for: words for what they do meanwhile, and the fix.
SOURCES = {
    "file": ("reading files", "read at {place} from faster or nearer storage, larger files, or a local cache"),
    "network": (
        "waiting for the network",
        "fetch more at once at {place}, keep connections open, or keep a local copy",
    ),
    "database": ("asking a database", "read many rows with one query at {place}, or export them to files once"),
}


class Why(msgspec.Struct, frozen=True):
    """Why data come late. `confirmed`: a second signal agrees. Unless the gain is `proven`, it is only information.
    The same holds for what was seen `once`: whether it comes again is not known.

    `saved` is what a fix would save; None for all of the wait.
    """

    subtype: str
    where: tuple[Where, ...]
    evidence: tuple[str, ...]
    fixes: tuple[Fix, ...]
    confirmed: bool
    proven: bool = True
    once: bool = False
    saved: Length | None = None


# --- a torch DataLoader ---------------------------------------------------------------------------------------------


def of_loader(snapshot: Snapshot, share: float) -> Why:
    """Why a DataLoader is late."""
    respawn = _respawn(snapshot, share)
    if respawn is not None:
        return respawn
    slow = slow_worker(snapshot)
    if slow is not None:
        return _of_slow_worker(slow, share)
    lines = worker_lines(snapshot)
    waits = main_lines(snapshot, _waits_within_loader)
    if waits.share > 0.5 * main_lines(snapshot, lambda entry: entry.phase == "data").share:
        return of_threads_or_processes(snapshot, share, waits)
    if _workers_of_loader(snapshot) == 0:
        return _in_main_process(snapshot, share)
    if share <= handing_over(snapshot):
        return _handed_over(snapshot, lines)
    return _in_workers(snapshot, share, lines)


def _waits_within_loader(entry: Entry) -> bool:
    """Whether the stepping thread waits in the user's own code below its loader: not for a worker of that."""
    return entry.phase == "data" and entry.activity in HANDED_WAITS and len(entry.via) >= entry.callers > 0


def _respawn(snapshot: Snapshot, share: float) -> Why | None:
    """Why data come late if steps wait mainly at starts of the loader: its workers are created anew at every epoch.

    None if they wait elsewhere.
    """
    loaders = [loader for loader in (snapshot.facts.loaders if snapshot.facts else ()) if loader.workers]
    if loaders and all(loader.persistent for loader in loaders):
        return None
    steps = records(snapshot)
    starts = [step for step in steps if step.loader_start > START]
    spawning = main_lines(snapshot, lambda entry: entry.activity == "spawn")
    if steps:
        lost = sum(step.loading for step in starts)
        # Taking a batch that was ready is no wait, however long it takes on a crowded machine.
        waited = sum(step.loading for step in steps if step.loader_start or not step.queue_ready)
        if waited <= 0 or lost < MOSTLY_STARTS * waited:
            return None
        if len(starts) == 1:
            evidence = f"the loader was started once in {plural(len(steps), 'step')}, which took {duration(lost)}"
        else:
            times = f"the loader was started {len(starts)} times in {len(steps)} steps"
            evidence = f"{times}, {duration(lost / len(starts))} each (every {len(steps) / len(starts):.0f} steps)"
    elif waits_for_start(snapshot):
        evidence = f"{percent(spawning.share)} of samples start loader workers"
        if ended := len(_ended_workers(snapshot)):
            evidence += f"; {ended} of them ended meanwhile"
    else:
        return None
    setting = Setting(name="persistent_workers", to=True, current=False)
    return Why(
        subtype="respawn",
        where=spawning.where or main_lines(snapshot, lambda entry: entry.phase == "data").where,
        evidence=(
            evidence,
            "worker processes are created again for every pass over the data",
            "creating and ending them slows the steps beside them as well: the gain may be larger",
        ),
        fixes=(fix("persistent_workers=True keeps the loader's workers between epochs", share, setting),),
        confirmed=bool(starts) and spawning.share > 0.02,
        once=len(starts) == 1,
    )


def waits_for_start(snapshot: Snapshot) -> bool:
    """Whether stacks show that the wait for data is mostly for workers to start.

    They show the calls that start them; and where all workers of a loader end again and again, and others follow them,
    how long the first batch takes is seen in the windows about these changes.
    """
    waiting = main_lines(snapshot, lambda entry: entry.phase == "data")
    if main_lines(snapshot, lambda entry: entry.activity == "spawn").share > 0.5 * waiting.share:
        return True
    ended = _ended_workers(snapshot)
    if len(ended) < 2 * max(1, loader_size(snapshot)):
        return False
    sampled_in = ([window for window, count in enumerate(each.by_window) if count] for each in ended)
    last = {windows[-1] for windows in sampled_in if windows}
    about = last | {window + 1 for window in last}
    counts = [(window in about, count) for each in waiting.entries for window, count in enumerate(each.by_window)]
    whole = sum(count for _, count in counts)
    return whole > 0 and sum(count for near, count in counts if near) >= MOSTLY_STARTS * whole


def _ended_workers(snapshot: Snapshot) -> list[ProcessStacks]:
    """The loader workers of which stacks were sampled that no longer exist."""
    alive = {process.pid for process in snapshot.processes}
    return [process for process in sampled_workers(snapshot) if process.pid not in alive]


def workers_at_work(snapshot: Snapshot) -> float | None:
    """Mean share of their time in which loader workers make samples; None if there are none, or no stacks of them."""
    return worker_lines(snapshot).share if sampled_workers(snapshot) else None


def waited_empty(snapshot: Snapshot) -> float | None:
    """The share (0..1) of the measured wait for data in steps for which no batch was ready.

    None where the queue was not measured.
    """
    known = [step for step in records(snapshot) if step.queue_ready is not None]
    waited = sum(step.loading for step in known)
    if waited <= 0:
        return None
    empty = [step for step in known if not step.queue_ready or step.loader_start]
    return sum(step.loading for step in empty) / waited


def handing_over(snapshot: Snapshot) -> float:
    """Share of a step that num_workers=0 would save, where taking over a batch costs more than making it; else 0.

    The stepping thread would do the workers' work itself; the upper bound of that work counts.
    """
    return max(0.0, 1.0 - _without_workers(snapshot).likely)


def _without_workers(snapshot: Snapshot) -> Length:
    """The length of the step with num_workers=0: nothing overlaps, but nothing has to be handed over either."""
    samples = sum(process.samples for process in sampled_workers(snapshot))
    _, most = interval(workers_at_work(snapshot) or 0.0, samples)
    wait, workers = main_lines(snapshot, lambda entry: entry.phase == "data").share, _workers_of_loader(snapshot)
    likely = 1.0 - wait + workers * most if workers else 1.0
    return Length(likely, likely * (1.0 - LEFT), likely + LEFT * (1.0 - likely))


def _handed_over(snapshot: Snapshot, lines: Lines) -> Why:
    """Why data come late if it takes longer to take over batches from the workers than to make them.

    On a crowded machine a part of that is waiting for a core, and would remain without workers: no gain is proven.
    """
    workers = _workers_of_loader(snapshot) or 0
    taking = main_lines(snapshot, lambda entry: entry.phase == "data")
    depths = [step.queue_ready for step in records(snapshot) if step.queue_ready is not None]
    ready = 1.0 - depths.count(0) / len(depths) if depths else None
    evidence = [
        f"taking batches over from workers takes {percent(taking.share)} of a step, making them "
        f"{percent(workers * lines.share)}: each goes through shared memory and a queue"
    ]
    if ready is not None:
        evidence.append(f"a batch lay ready at {percent(ready)} of the requests")
    setting = Setting(name="num_workers", to=0, current=workers)
    return Why(
        subtype="workers",
        where=taking.where,
        evidence=tuple(evidence),
        fixes=(
            fix(f"num_workers {workers} → 0: make batches where they are used", _without_workers(snapshot), setting),
            fix("or hand over more at once: larger batches, or tensors that workers share instead of sending them"),
        ),
        confirmed=ready is not None and ready > 0.5,
        proven=False,
    )


def _workers_of_loader(snapshot: Snapshot) -> int | None:
    """How many workers the loader has: 0 where the stepping thread makes the batches, None where their number is open.

    No stacks show workers that have ended, or that were started after the last look. Then they show in what the
    stepping thread does: it waits for them, or starts them.
    """
    workers = loader_size(snapshot)
    if loader_workers(snapshot) or worker_lines(snapshot).lines:
        return workers or None
    data = main_lines(snapshot, lambda entry: entry.phase == "data")
    if data.part(lambda entry: entry.activity in HANDED_WAITS or entry.activity == "spawn") > 0.5:
        return workers or None
    return 0 if data.lines else workers


def _in_main_process(snapshot: Snapshot, share: float) -> Why:
    """Why data come late with num_workers=0: loading happens inside `next()`."""
    lines = main_lines(snapshot, lambda entry: entry.phase == "data" and entry.activity != "wait-queue")
    free, blocked = free_cores(snapshot), mostly_waits(lines)
    workers, beside = _with_best_workers(snapshot, share, blocked, making=lines.share)
    fixes = []
    if beside.speedup >= WORTH_IT or not lines.where or blocked:
        setting = Setting(name="num_workers", to=workers, current=0)
        fixes.append(fix(f"num_workers 0 → {workers}: load while the step computes", beside, setting))
    if lines.where and not blocked:
        fixes.append(_cheaper(place_of(lines.where[0]), share * within_first(lines)))
    return Why(
        subtype=_subtype(lines, blocked, beside, share),
        where=lines.where,
        evidence=("num_workers=0: samples are loaded by the process that computes, nothing overlaps", *_free(free)),
        fixes=tuple(fixes),
        confirmed=bool(lines.lines),
    )


def _in_workers(snapshot: Snapshot, share: float, lines: Lines) -> Why:
    """Why loader workers make batches too slowly."""
    workers = _workers_of_loader(snapshot) or 0
    free = free_cores(snapshot)
    each, wanted = _cores_of_each(snapshot)
    blocked = each is not None and wanted < BUSY_CORES * max(lines.share, 0.3)
    drained = waited_empty(snapshot)
    reading = sum(process.read_bytes or 0.0 for process in loader_workers(snapshot))
    loading = Loading(
        wait=share,
        makers=workers,
        cores_each=0.0 if blocked else max(wanted if each is not None else 1.0, BUSY_CORES),
        free_cores=_free_for_one(snapshot),
    )
    best = loading.best_workers()
    if blocked:
        # `best` is not limited by cores, since waiting needs none. But the little that workers compute does.
        loading = replace(loading, cores_each=wanted)
    more = loading.with_workers(best)
    subtype = _subtype(lines, blocked, more, share)
    fixes = []
    if best > workers > 0 and more.speedup >= WORTH_IT:
        setting = Setting(name="num_workers", to=best, current=workers)
        fixes.append(fix(f"num_workers {workers} → {best}", more, setting))
    if lines.where and not blocked:
        fixes.append(_cheaper(place_of(lines.where[0]), share))
    elif lines.where and subtype == "storage":
        fixes.append(fix((_source(lines) or SOURCES["file"])[1].format(place=place_of(lines.where[0])), share))
    empty = [] if drained is None else [f"no batch lay ready for {percent(drained)} of the wait"]
    return Why(
        subtype=subtype,
        where=lines.where,
        evidence=(
            *empty,
            _workers(snapshot, workers, each, blocked, lines),
            *_free(free),
            *([f"workers read {rate(reading)} from storage"] if reading > 1e6 else []),
        ),
        fixes=tuple(fixes),
        confirmed=lines.share > 0.5,
    )


def _cores_of_each(snapshot: Snapshot) -> tuple[float | None, float]:
    """The cores that a loader worker of the judged process uses, None if not measured, and those that it wants."""
    own = [mean_of(snapshot, f"worker{process.pid}.cpu") for process in loader_workers(snapshot)]
    # The busiest, as many as one loader has: those of another, for validation say, wait for their turn.
    known = sorted((cores for cores in own if cores is not None), reverse=True)[: loader_size(snapshot) or None]
    everywhere = max(1, sum(process.role == "loader-worker" for process in snapshot.processes))
    all_of_them = mean_of(snapshot, "workers_cpu")
    each = fmean(known) if known else None if all_of_them is None else all_of_them / everywhere
    return each, (each or 0.0) + (mean_of(snapshot, "workers_delay") or 0.0) / everywhere


def _free_for_one(snapshot: Snapshot) -> float | None:
    """The idle cores that each rank may use: what is advised is done in all of them."""
    free, ranks = free_cores(snapshot), sum(process.role == "rank" for process in snapshot.processes)
    return None if free is None else free / max(1, ranks)


# --- one loader worker that holds up the others: batches come in order, so all wait for the slowest -----------------


class SlowWorker(msgspec.Struct, frozen=True):
    """A loader worker that is at work while the others wait: how busy it is (0..1) and how busy they are, at most."""

    pid: int
    busy: float
    others: float
    count: int
    lines: Lines


def slow_worker(snapshot: Snapshot) -> SlowWorker | None:
    """The one worker that all wait for, None where they work alike or were not watched for long enough."""
    pids = [process.pid for process in loader_workers(snapshot)]
    busy = {pid: mean_of(snapshot, f"worker{pid}.cpu") or 0.0 for pid in pids}
    if len(pids) < 2 or any(len(values_since(snapshot, f"worker{pid}.cpu", math.inf)) < SLOW_READINGS for pid in pids):
        return None
    slowest, *others = sorted(busy, key=lambda pid: -busy[pid])[: loader_size(snapshot) or None]
    if not others:
        return None
    most = busy[others[0]]
    if busy[slowest] < SLOW_BUSY or most > MOST_OF_OTHERS * busy[slowest]:
        return None
    lines = worker_lines(snapshot, lambda entry: entry.pid == slowest)
    return SlowWorker(slowest, min(1.0, busy[slowest]), most, 1 + len(others), lines)


def _of_slow_worker(slow: SlowWorker, share: float) -> Why:
    """Why data come late where all wait for one worker."""
    those = f"the other {slow.count - 1}" if slow.count > 2 else "the other one"
    work = f"worker {slow.pid} is at work {percent(slow.busy)} of the time, {those} {percent(slow.others)} at most"
    even = (slow.busy + (slow.count - 1) * slow.others) / slow.count
    shared = f"share the work out evenly: worker {slow.pid} gets the slow part of the data, all {slow.count} could"
    fixes = [fix(shared, share * (1.0 - even / slow.busy))]
    if slow.lines.where:
        cheaper = f"make {place_of(slow.lines.where[0])} cheaper: convert what it reads once, ahead"
        fixes.insert(0, fix(cheaper, share))
    return Why(
        subtype="transform",
        where=slow.lines.where,
        evidence=(f"{work}: batches come in order, so all wait for its",),
        fixes=tuple(fixes),
        confirmed=bool(slow.lines.where),
    )


# --- batches made by the stepping thread itself, without a loader; and a simulated environment ----------------------


def of_own_code(snapshot: Snapshot, share: float, lines: Lines) -> Why:
    """Why the stepping thread takes long to make batches."""
    blocked = mostly_waits(lines)
    place = place_of(lines.where[0]) if lines.where else "code before the model's call"
    _, ahead = _with_best_workers(snapshot, share, blocked, making=lines.share)
    cheaper = _cheaper(place, share * within_first(lines))
    workers = fix(f"make batches ahead in worker processes (a DataLoader with workers) instead of {place}", ahead)
    gains = workers.speedup is None or workers.speedup >= WORTH_IT
    # A program that takes its work from a queue service waits there in the same way while there is none.
    rests = snapshot.kind != "training" and lines.part(_asks_service) > 0.5
    unsure = ("whether it waits for data or has nothing to do is not known",) if rests else ()
    return Why(
        subtype="storage" if blocked else "transform",
        where=lines.where,
        evidence=(f"batches are made by the thread that computes, {_doing(lines, blocked=blocked)}: {place}", *unsure),
        # Where no core is idle, workers would only take them from the step.
        fixes=(workers, cheaper) if gains else (cheaper,),
        confirmed=True,
        proven=not rests,
    )


def of_environment(snapshot: Snapshot, share: float, lines: Lines) -> Why:
    """Why an environment (RL) takes long: the thread that computes steps it, or others for which that thread waits."""
    waits = lines.part(lambda entry: entry.activity in HANDED_WAITS) >= LEAST_MAKING
    made = makers(snapshot) if waits else None
    longest = _one_after_another(snapshot, lines) if waits and made is None else None
    steppers = made.count if made is not None else 0
    lines = made.lines if made is not None else lines
    workers, beside = _with_best_workers(snapshot, share, mostly_waits(lines), makers=steppers)
    policy = main_lines(snapshot, lambda entry: entry.phase == "forward").share
    learning = main_lines(snapshot, lambda entry: entry.phase in ("backward", "optimizer")).share
    place = place_of(lines.where[0]) if lines.where else "the environment"
    cheaper = f"make {place} cheaper: a compiled or vectorised environment, less work for each step of it"
    several = f"step {max(2, workers)} environments in processes (AsyncVectorEnv), one policy call for all"
    by_others = f", stepped by {made.who}" if made is not None else ""
    fixes = [fix(cheaper, share * within_first(lines))]
    in_turn = []
    if longest is not None:
        in_turn = [f"its processes work one after the other, the busiest for {percent(longest)} of the time"]
        fixes = [fix("ask all processes for a step before waiting for the first answer", share - longest)]
    elif not steppers or (workers > steppers and beside.speedup >= WORTH_IT):
        fixes.append(fix(several, beside))
    return Why(
        subtype="environment",
        where=lines.where,
        evidence=(
            f"the environment{by_others} takes {percent(share)}, model calls {percent(policy)}, "
            f"backward and update {percent(learning)}",
            *in_turn,
            *_free(free_cores(snapshot)),
        ),
        fixes=tuple(fixes),
        confirmed=bool(lines.where),
    )


# --- batches made by threads or processes of the run's own ----------------------------------------------------------


class Makers(msgspec.Struct, frozen=True):
    """The threads, or processes, that make batches, and how much of their time is work."""

    count: int
    processes: bool
    lines: Lines
    blocked: bool

    @property
    def who(self) -> str:
        """Their number and kind, as in "3 processes"."""
        return plural(self.count, "process", "processes") if self.processes else plural(self.count, "thread")


def _one_after_another(snapshot: Snapshot, waits: Lines) -> float | None:
    """How much (0..1) the stepping thread would wait for processes if they worked at once; None if they do, or hardly.

    That is as long as the busiest one works, or as the free cores need for what all compute.
    """
    work: dict[int, float] = {}
    computing = 0.0
    for entry in producer_entries(snapshot):
        if entry.pid != waits.entries[0].pid and entry.role != "rank":
            works = entry.share * (entry.activity not in HANDED_WAITS)
            work[entry.pid] = work.get(entry.pid, 0.0) + works
            computing += works * (entry.activity in RUNNING)
    if len(work) < 2 or not LEAST_MAKING * waits.share <= sum(work.values()) <= waits.share:
        return None
    longest = max(*work.values(), computing / max(1.0, free_cores(snapshot) or 1.0))
    return longest if longest < 0.5 * sum(work.values()) else None


def makers(snapshot: Snapshot) -> Makers | None:
    """Who makes the batches: other threads of the process, else other processes; None where nobody works enough."""
    ledger = lead_ledger(snapshot)
    others = producer_entries(snapshot)
    threads = [entry for entry in others if ledger and entry.pid == ledger.pid]
    children = [entry for entry in others if ledger and entry.pid != ledger.pid and entry.role != "rank"]
    return _makers(snapshot, threads, processes=False) or _makers(snapshot, children, processes=True)


def _makers(snapshot: Snapshot, entries: Sequence[Entry], *, processes: bool) -> Makers | None:
    """The makers among the threads, or processes, of these entries; None where they hardly work.

    A client of a server rests between requests: outside of training, waiting for the network counts as rest.
    """
    rests = HANDED_WAITS if snapshot.kind == "training" else RESTS
    samples: dict[tuple[int, str], float] = {}
    for entry in entries:
        key = (entry.pid, "" if processes else entry.thread)
        samples[key] = samples.get(key, 0.0) + entry.samples
    working = [entry for entry in entries if entry.activity not in rests and entry.work not in ("log", "hand-over")]
    # A thread that only ever sleeps makes nothing: it watches, or writes a line now and then.
    busy = {(entry.pid, "" if processes else entry.thread) for entry in working if entry.activity != "sleep"}
    working = [entry for entry in working if (entry.pid, "" if processes else entry.thread) in busy]
    total = sum(samples[key] for key in busy)
    at_work = sum(entry.samples for entry in working) / total if total else 0.0
    if at_work < LEAST_MAKING or total < LEAST_SAMPLES:
        return None
    lines = Lines(at_work, tuple(sorted(working, key=lambda entry: -entry.samples)))
    return Makers(len(busy), processes, lines, mostly_waits(lines))


class HandingOver(msgspec.Struct, frozen=True):
    """What processes that hand results to the stepping thread do, as shares (0..1) of the time.

    `running` is how long one of them pickles, copies or unpickles, the one that does so most. `at_work` is how long at
    least one of them does what it is there for, at most.
    """

    running: float
    at_work: float


def handing_between(snapshot: Snapshot) -> HandingOver | None:
    """How long the run's other processes hand things over; None where that is not much more than their work."""
    running: dict[int, float] = {}
    at_work = 0.0
    ledger = lead_ledger(snapshot)
    for entry in producer_entries(snapshot):
        # A torch DataLoader's workers are in the phase of data.
        if entry.phase != "host" or (ledger is not None and entry.pid == ledger.pid):
            continue
        if entry.activity in RUNNING and entry.work == "hand-over":
            running[entry.pid] = running.get(entry.pid, 0.0) + entry.share
        elif entry.activity not in RESTS:
            at_work += entry.share
    most = min(1.0, max(running.values(), default=0.0))
    return HandingOver(most, min(1.0, at_work)) if most >= max(LEAST_HANDING, at_work) else None


def _why_handing_over(share: float, waits: Lines, handing: HandingOver) -> Why:
    """Why the stepping thread waits where pickling and copying results takes longer than making them.

    With none of that, at least the part of `share` in which the busiest process pickles is gone; at most all but the
    time in which the processes are at work.
    """
    least, most = share * handing.running, max(share * handing.running, share - handing.at_work)
    likely = estimated(0.5 * (least + most), least, most)
    return Why(
        "workers",
        waits.where,
        (
            f"one process of the run's own pickles and copies for {percent(handing.running)} of the time",
            f"all of them together are at work on what they get for {percent(handing.at_work)}",
        ),
        (
            fix("hand over less: what stays the same only once (an initializer, or a global they inherit)", likely),
            fix("or share memory instead of pickling: torch.multiprocessing, multiprocessing.shared_memory"),
        ),
        confirmed=True,
        saved=likely,
    )


def of_threads_or_processes(snapshot: Snapshot, share: float, waits: Lines) -> Why:
    """Why the threads or processes that make the batches are too slow. `waits`: where the stepping thread waits."""
    made = makers(snapshot)
    if made is None and (handing := handing_between(snapshot)) is not None:
        return _why_handing_over(share, waits, handing)
    if made is None:
        resting = "no thread or process of the run works on batches for long: handing them over takes the time"
        shared = "hand over less, or through shared memory (torch.multiprocessing) instead of pickled"
        return Why("workers", waits.where, (resting,), (fix(shared),), confirmed=False)
    free, blocked = free_cores(snapshot), made.blocked
    best, more = _with_best_workers(snapshot, share, blocked, makers=made.count)
    subtype = _subtype(made.lines, blocked, more if made.processes else None, share)
    work = f"{percent(min(1.0, made.lines.share))} of the time at work: {_doing(made.lines, blocked=blocked)}"
    evidence = [f"batches are made by {made.who} of the run's own, {work}"]
    if not blocked and not made.processes:
        evidence.append("threads of one process take turns at running Python: they share one interpreter's lock")
    place = place_of(made.lines.where[0]) if made.lines.where else "their work"
    shorter = fix(f"shorten the wait at {place}: cache it, or ask for more at once", share)
    fixes = [shorter if blocked else _cheaper(place, share)]
    if best > made.count and more.speedup >= WORTH_IT:
        kind = "processes" if made.processes else "threads" if blocked else "worker processes (a DataLoader)"
        before = f"{made.count} → {best}" if made.processes or blocked else f"{best}"
        fixes.append(fix(f"{before} {kind} to make batches", more))
    return Why(
        subtype,
        made.lines.where,
        (*evidence, *_free(free)),
        tuple(fixes),
        confirmed=made.lines.share > 0.6,
        # If no step was seen, what they compute may be what the program is for.
        proven=stepping(snapshot) or made.lines.part(computes) <= 0.5,
    )


# --- words ----------------------------------------------------------------------------------------------------------


def _with_best_workers(
    snapshot: Snapshot, share: float, blocked: bool, makers: int = 0, making: float | None = None
) -> tuple[int, Length]:
    """How many workers hide the wait best, and the step with them; now there are `makers` of them.

    `making` is the part of the step in which the lead thread makes the data itself, if it does.
    """
    cores = WAITING if blocked else 1.0
    making = None if making is None else max(share, making)
    loading = Loading(share, makers, cores_each=cores, free_cores=_free_for_one(snapshot), making=making)
    workers = loading.best_workers()
    return workers, loading.with_workers(workers)


def _subtype(lines: Lines, blocked: bool, more: Length | None, share: float) -> str:
    """The subtype that says why the data come late.

    It is "workers" if more of them would end most of the wait; otherwise it is their work on these lines. `more` is the
    step with more workers, None if there can be no more of those who make the data now.
    """
    if lines.part(lambda entry: entry.work in ("collate", "pin")) > 0.5:
        return "collate"
    if blocked:
        return "storage" if lines.part(stored) > 0.5 else "workers"
    cured = more is not None and more.speedup - 1.0 >= MOST_OF_IT * (without(share).speedup - 1.0)
    return "workers" if cured else "transform"


def mostly_waits(lines: Lines) -> bool:
    """Whether the makers of the data mostly wait for something that several can wait for at the same time."""
    return lines.part(lambda entry: entry.does in BLOCKED) > 0.5


def reads(entry: Entry) -> bool:
    """Whether the time of the entry is spent in a library that reads data."""
    return entry.work in STORAGE_WORK


def _asks_service(entry: Entry) -> bool:
    """Whether the entry waits for a service on the network."""
    return entry.activity == "wait-network" or (entry.activity != "python" and entry.work in ("network", "database"))


def _source(lines: Lines) -> tuple[str, str] | None:
    """The row of SOURCES (file, network or database) for which these entries wait most; None where nothing tells."""
    weights = {
        "database": lines.part(lambda entry: entry.work == "database"),
        "network": lines.part(lambda entry: entry.activity == "wait-network" or entry.work == "network"),
        "file": lines.part(lambda entry: entry.activity == "wait-disk" or entry.work == "file"),
    }
    largest = max(weights, key=lambda name: weights[name])
    return SOURCES[largest] if weights[largest] > 0.0 else None


def _doing(lines: Lines, *, blocked: bool) -> str:
    """Words for what the makers of the data do for most of the time."""
    if not blocked:
        return "computing"
    source = _source(lines)
    return source[0] if source is not None else "waiting for something other than the CPU"


def _workers(snapshot: Snapshot, count: int, each: float | None, blocked: bool, lines: Lines) -> str:
    """Evidence of what the workers do; `count` is 0 where their number is not known: between epochs none may live."""
    named = plural(count, "worker") if count else "worker processes"
    if not sampled_workers(snapshot):
        return f"{named} of which no stacks were seen yet"
    if each is None or not count:
        return named
    at_work = percent(min(1.0, lines.share))
    return f"{named} at {percent(each)} of a core each, {at_work} of the time at work: {_doing(lines, blocked=blocked)}"


def _cheaper(place: str, saved: float) -> Fix:
    return fix(f"make {place} cheaper: vectorise it, cache it, or do it once beforehand", saved)


def _free(free: float | None) -> list[str]:
    return [] if free is None else [f"{free:.1f} cores idle"]
