"""Compares the ranks of a job: how long each works itself in a step, and how long it waits for the others. Pure.

Steps of several ranks are matched by the times of their ends: ranks of one machine share its monotonic clock, and an
exchange ends for all of them at about the same time.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, takewhile
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from aitop.engine.history import WINDOW_SECONDS, History, HookHistory
from aitop.engine.snapshot.standstill import rank_number, world_size
from aitop.engine.snapshot.steps import quantile
from aitop.model.gpu import GpuDevice
from aitop.model.host import ProcessSample
from aitop.model.ranks import CollectiveWait, RankPhases, Ranks, RankView
from aitop.model.steps import StepRecord

MOST_STEPS = 200
# At most this many steps of all ranks together are compared, but up to MOST_STEPS_OF_MANY of each however many ranks
# there are.
MOST_STEPS_TOGETHER, MOST_STEPS_OF_MANY = 3200, 40
LEAST_STEPS = 5
# A backward pass at this quantile of their durations is taken to contain no wait.
FAST = 0.1
MOST_COLLECTIVES = 4
# The mean of this many of the newest samples tells how long ranks run on and wait for cores, and the device clocks.
SAMPLES_AVERAGED = 15
# The wait for a core of a rank that waits at least this many times as long as the others counts in full as its own; of
# a rank that waits less, only in part.
TIMES_THE_OTHERS = 2.0


def ranks_view(history: History, now: float) -> Ranks | None:
    """Compare the ranks of this machine. None where the job has fewer than two ranks, here and elsewhere."""
    host = history.hosts.last
    if host is None:
        return None
    processes: Sequence[ProcessSample] = host.living_ranks
    world = world_size(history, host)
    if world < 2:
        # Trainers without a process group have no step in common. Where the hook is in, it would know of one.
        processes = [
            process
            for process in processes
            if rank_number(history, process) is not None
            and ((hook := history.hooks.get(process.pid)) is None or hook.facts is None)
        ]
    if len(processes) < 2 and world < 2:
        return None
    since = now - WINDOW_SECONDS
    most = max(MOST_STEPS_OF_MANY, min(MOST_STEPS, MOST_STEPS_TOGETHER // max(1, len(processes))))
    recent = {process.pid: _recent(history.hooks.get(process.pid), since, most) for process in processes}
    timed = {
        pid: _recent(history.hooks.get(pid), since, len(records), timed=True)
        if any(record.estimated for record in records)
        else records
        for pid, records in recent.items()
    }
    enough = {pid: records for pid, records in timed.items() if len(records) >= LEAST_STEPS}
    aligned = _aligned(enough)
    # With ranks on other machines, even a single rank here waits for others.
    measured = _on_one_clock(aligned or (enough if world > len(processes) else {}))
    aligned = measured if aligned else {}
    own = _own_backward(history, measured)
    waits = {pid: [_wait(record, own[pid]) for record in records] for pid, records in measured.items()}
    work = {
        pid: [record.seconds - wait for record, wait in zip(records, waits[pid], strict=True)]
        for pid, records in aligned.items()
    }
    together = list(zip(*work.values(), strict=True))
    compared = _Compared(measured, waits, work, [(min(step), max(step)) for step in together])
    cores = on_cores(history)
    views = [_rank_view(history, process, recent[process.pid], compared, cores) for process in processes]
    ordered = tuple(sorted(views, key=lambda view: (view.rank is None, view.rank or 0, view.pid)))
    if len(aligned) < 2:
        return Ranks(ranks=ordered, world_size=world or None)
    inside, calls = _exchange(aligned, own)
    exchange = inside + calls
    step = fmean(fmean(record.seconds for record in records) for records in aligned.values())
    means = {pid: fmean(each) for pid, each in work.items()}
    held_by, held_back = held(cores, means, step)
    beside = max(0.0, held_back - next((view.lateness or 0.0 for view in views if view.pid == held_by), 0.0))
    own_cores = own_part(history)
    delays = [(1.0 - own_cores) * cores[pid].delay * step if pid in cores else 0.0 for pid in aligned]
    # The part of the apparent exchange that is left without the time in which ranks wait for a core.
    left = max(0.0, 1.0 - (min(delays) + beside) / exchange) if exchange else 0.0
    return Ranks(
        ranks=ordered,
        world_size=world or None,
        steps=len(together),
        step=step,
        exchange=left * exchange,
        calls=left * calls,
        apart=min(step, beside + apart(cores, means, step, own_cores, host.usable_cores or host.machine.cores)),
        uneven=fmean(max(each) - fmean(each) for each in together),
        held=held_back,
        held_by=held_by,
        efficiency=min(1.0, fmean(means.values()) / step) if step > 0 else None,
        collectives=_collectives(aligned, {view.pid: view.rank for view in views}),
    )


def _recent(hook: HookHistory | None, since: float, most: int, *, timed: bool = False) -> list[StepRecord]:
    """At most `most` of the newest steps that ended after `since`, oldest first; with `timed` no counted steps.

    The phases of a counted step are estimates, and cannot be compared with those of another rank.
    """
    newest_first = takewhile(lambda record: record.end >= since, reversed(hook.steps if hook else ()))
    return list(islice((record for record in newest_first if not (timed and record.estimated)), most))[::-1]


def _aligned(recent: Mapping[int, Sequence[StepRecord]]) -> dict[int, list[StepRecord]]:
    """Match the steps of all these ranks by the times of their ends.

    Returns the matched steps by pid, the same number for each rank; nothing where fewer than LEAST_STEPS match.
    """
    if len(recent) < 2:
        return {}
    first, *others = sorted(recent, key=lambda pid: len(recent[pid]))
    near = 0.5 * median(record.seconds for record in recent[first])
    ends = {pid: [record.end for record in recent[pid]] for pid in others}
    aligned: dict[int, list[StepRecord]] = {pid: [] for pid in recent}
    for record in recent[first]:
        matches = {pid: _nearest(ends[pid], record.end) for pid in others}
        if all(abs(ends[pid][index] - record.end) <= near for pid, index in matches.items()):
            aligned[first].append(record)
            for pid, index in matches.items():
                aligned[pid].append(recent[pid][index])
    return aligned if len(aligned[first]) >= LEAST_STEPS else {}


def _nearest(ends: Sequence[float], wanted: float) -> int:
    index = bisect.bisect_left(ends, wanted)
    if index == len(ends) or (index and wanted - ends[index - 1] <= ends[index] - wanted):
        return index - 1
    return index


def _own_backward(history: History, aligned: Mapping[int, Sequence[StepRecord]]) -> dict[int, float | None]:
    """Seconds that each rank computes in one backward pass, without waits; None where calls show the waits.

    Only DistributedDataParallel waits inside the backward pass, where no Python call shows it. It times its own
    backward computation now and then.
    """
    backward: dict[int, float | None] = {}
    for pid, records in aligned.items():
        facts = history.hooks[pid].facts
        ddp = facts.ddp if facts else None
        least = quantile(sorted(_backward(record) / max(1, record.backwards) for record in records), FAST)
        backward[pid] = None if ddp is None else least if ddp.backward is None else min(least, ddp.backward)
    return backward


def _wait(record: StepRecord, own_backward: float | None) -> float:
    """Seconds of a step in which a rank waited for others, or for the exchange."""
    return min(record.seconds, _inside(record, own_backward) + _in_calls(record, own_backward))


def _inside(record: StepRecord, own_backward: float | None) -> float:
    """Seconds of a step that a rank waited inside its backward passes, for exchanges that no call shows."""
    return 0.0 if own_backward is None else max(0.0, _backward(record) - own_backward * max(1, record.backwards))


def _on_one_clock(ranks: Mapping[int, list[StepRecord]]) -> dict[int, list[StepRecord]]:
    """The same steps. If the device timed only some of them, its times are removed from all.

    Where steps are short it times only some, and times of the host and of the device cannot be compared.
    """
    timed = {record.device_backward is not None for records in ranks.values() for record in records}
    if len(timed) < 2:
        return dict(ranks)
    return {pid: [replace(record, device_backward=None) for record in records] for pid, records in ranks.items()}


def _backward(record: StepRecord) -> float:
    """Seconds of a step's backward passes: of the device where that was timed, as there the host only launches them."""
    return record.backward if record.device_backward is None else record.device_backward


def _in_calls(record: StepRecord, own_backward: float | None) -> float:
    """Seconds of a step that a rank spent in collective calls, without those that `_inside` counts."""
    return (record.communication if own_backward is None else record.communication_apart) or 0.0


def _exchange(aligned: Mapping[int, Sequence[StepRecord]], own: Mapping[int, float | None]) -> tuple[float, float]:
    """Mean seconds per step of the exchange alone, from the last rank's arrival to its end.

    Returns the part inside backward passes and the part in calls.
    """
    inside, calls = 0.0, 0.0
    steps = list(zip(*aligned.values(), strict=True))
    for step in steps:
        each = list(zip(step, (own[pid] for pid in aligned), strict=True))
        inside += min(_inside(record, backward) for record, backward in each)
        calls += _exchanged_in_calls(each)
    return inside / len(steps), calls / len(steps)


def _exchanged_in_calls(step: Sequence[tuple[StepRecord, float | None]]) -> float:
    """Seconds of a step from the last rank's arrival at a collective to its end, summed over its calls.

    Calls are compared one by one where all ranks made the same ones, as a different rank may be last in each.
    """
    together = [_in_calls(record, backward) for record, backward in step]
    single = [record.collective_calls for record, _ in step]
    whole = all(sum(calls) <= 1.01 * seconds for calls, seconds in zip(single, together, strict=True))
    if whole and len({len(calls) for calls in single}) == 1 and single[0]:
        return float(sum(min(same) for same in zip(*single, strict=True)))
    return min(together)


def _collectives(
    aligned: Mapping[int, Sequence[StepRecord]], numbers: Mapping[int, int | None]
) -> tuple[CollectiveWait, ...]:
    """Who came last in each of a step's collectives, and how long the others waited.

    The rank with the shortest call came last, and the others waited for the rest of theirs. Nothing where not all
    ranks and steps have the same number of calls.
    """
    steps = [[record.collective_calls for record in step] for step in zip(*aligned.values(), strict=True)]
    lengths = {len(calls) for step in steps for calls in step}
    if len(lengths) != 1:
        return ()
    ranks = [numbers[pid] for pid in aligned]
    waits = []
    for place in range(min(lengths.pop(), MOST_COLLECTIVES)):
        times = [[calls[place] for calls in step] for step in steps]
        last, count = Counter(calls.index(min(calls)) for calls in times).most_common(1)[0]
        waits.append(
            CollectiveWait(
                place=place + 1,
                last=ranks[last],
                often=count / len(times),
                waited=fmean((sum(calls) - len(calls) * min(calls)) / (len(calls) - 1) for calls in times),
            )
        )
    return tuple(waits)


class _Compared(msgspec.Struct, frozen=True):
    """The matched steps of several ranks by pid (`records`), and the seconds that each waited in them (`waits`).

    `work` is the seconds that each worked itself, `bounds` the least and the most that any of them worked in a step.
    Both are empty where only one rank is on this machine.
    """

    records: Mapping[int, Sequence[StepRecord]]
    waits: Mapping[int, Sequence[float]]
    work: Mapping[int, Sequence[float]]
    bounds: Sequence[tuple[float, float]]


def _rank_view(
    history: History,
    process: ProcessSample,
    recent: Sequence[StepRecord],
    compared: _Compared,
    cores: Mapping[int, OnCores],
) -> RankView:
    pid = process.pid
    gpu = history.gpus.last
    device = next((device for device in gpu.devices if device.runs(pid)), None) if gpu is not None else None
    mine = compared.records.get(pid) or ()
    view = RankView(
        rank=rank_number(history, process),
        pid=pid,
        step=recent[-1].index if recent else None,
        p50=median(record.seconds for record in recent) if recent else None,
        cpu=process.cpu,
        rss=process.rss,
        run_delay=cores[pid].delay if pid in cores else None,
        resting=max(0.0, 1.0 - cores[pid].ran - cores[pid].delay) if pid in cores else None,
        gpu=device.index if device else None,
        gpu_busy=device.busy if device else None,
        gpu_memory=device.memory_used if device else None,
        gpu_clock=_clock(history, device),
        phases=_phases(mine, compared.waits[pid]) if mine else _phases(recent, None),
    )
    own = compared.work.get(pid)
    if own is None:
        return view
    skew = tuple(seconds - least for seconds, (least, _) in zip(own, compared.bounds, strict=True))
    last = [seconds >= most for seconds, (_, most) in zip(own, compared.bounds, strict=True)]
    samples = [record.samples for record in mine if record.samples is not None]
    tokens = [record.tokens for record in mine if record.tokens is not None]
    facts = history.hooks[pid].facts
    return replace(
        view,
        work=fmean(own),
        lateness=fmean(skew),
        latest=fmean(last),
        samples=fmean(samples) if samples else None,
        tokens=fmean(tokens) if tokens else None,
        operations=facts.flops_per_backward if facts is not None else None,
        skew=skew,
    )


def _phases(records: Sequence[StepRecord], waits: Sequence[float] | None) -> RankPhases | None:
    if not records:
        return None
    wait = fmean(waits) if waits else None
    timed = all(record.device_backward is not None for record in records)
    backward = fmean(_backward(record) if timed else record.backward for record in records)
    in_calls = fmean(record.communication_apart or 0.0 for record in records)
    forward = fmean(record.forward for record in records)
    inside = max(0.0, (wait or 0.0) - in_calls)
    of_backward = min(inside, backward)
    # What the device computes longer than the host launches it, the host waits for elsewhere.
    longer = backward - fmean(record.backward for record in records)
    return RankPhases(
        data_wait=fmean(record.loading for record in records),
        forward=max(0.0, forward - (inside - of_backward)),
        backward=backward - of_backward,
        optimizer=fmean(record.optimizer for record in records),
        outside=max(0.0, fmean(record.outside for record in records) - max(0.0, longer)),
        wait=wait,
    )


def _clock(history: History, device: GpuDevice | None) -> float | None:
    """The mean clock of a device over the newest samples, in MHz."""
    if device is None:
        return None
    samples = islice(reversed(history.gpus), SAMPLES_AVERAGED)
    same = (then for sample in samples for then in sample.devices if then.index == device.index)
    known = [then.sm_clock for then in same if then.sm_clock]
    return fmean(known) if known else None


# How long ranks run on cores and wait for cores, and what a step would save if one of them never waited.


class OnCores(msgspec.Struct, frozen=True):
    """CPU use of one rank in cores (seconds per second), the mean over the newest samples.

    `ran` is the time of its main thread on a core, `delay` the main thread's wait for one. `wanted` is the time of all
    its threads on a core or waiting for one, `waited` only their waits; both None where there are too many threads to
    read.
    """

    ran: float
    delay: float
    wanted: float | None = None
    waited: float | None = None


def on_cores(history: History) -> dict[int, OnCores]:
    """The recent CPU use of each rank, by pid; without ranks of which the kernel does not report it."""
    fields = {"ran": "main_cpu", "delay": "run_delay", "wanted": "wanted", "waited": "waited"}
    samples: dict[int, dict[str, list[float]]] = {}
    for host in islice(reversed(history.hosts), SAMPLES_AVERAGED):
        for process in (process for process in host.processes if process.role == "rank"):
            of_rank = samples.setdefault(process.pid, {})
            for name, field in fields.items():
                if (value := getattr(process, field)) is not None:
                    of_rank.setdefault(name, []).append(value)
    means = {pid: {name: fmean(each) for name, each in of_rank.items()} for pid, of_rank in samples.items()}
    return {pid: OnCores(**mean) for pid, mean in means.items() if {"ran", "delay"} <= mean.keys()}


def held(cores: Mapping[int, OnCores], work: Mapping[int, float], step: float) -> tuple[int | None, float]:
    """The pid of the rank that waits longest for a core, and the seconds that a step would save if it never waited.

    `work` has the seconds of a step that each rank works itself. Without the wait, a step is shorter by it but at least
    as long as the other ranks need, who keep their own waits. Where the rank waits less than TIMES_THE_OTHERS as long
    as the others, only a part of that counts. (None, 0) where the kernel does not report every rank's waits.
    """
    known = {pid: waits for pid, waits in cores.items() if pid in work}
    if len(known) < 2 or len(known) < len(work):
        return None, 0.0
    last = max(known, key=lambda pid: known[pid].delay)
    mine, others = known[last], [pid for pid in known if pid != last]
    excess = mine.delay - fmean(known[pid].delay for pid in others)
    if excess <= 0:
        return last, 0.0
    left = max([step - _waited(mine, work[last], step), *(_needed(known[pid], work[pid], step) for pid in others)])
    alone = min(1.0, excess / mine.delay * TIMES_THE_OTHERS / (TIMES_THE_OTHERS - 1.0))
    return last, alone * max(0.0, step - left)


def _waited(rank: OnCores, work: float, step: float) -> float:
    """Seconds of a step that a rank loses to waits for a core.

    These are the waits of its main thread, and the waits of other threads while the main thread sleeps in an exchange.
    Waits of several threads at the same time may count more than once, but in total no more than that sleep.
    """
    main = (rank.ran + rank.delay) * step
    asleep = max(0.0, step - max(main, work))
    return rank.delay * step + min(asleep, max(0.0, ((rank.waited or 0.0) - rank.delay) * step))


def _needed(rank: OnCores, work: float, step: float) -> float:
    """Seconds that a rank would need for a step if no other rank were late.

    They add up from the time of all its threads on cores, the main thread's waits for a core, and the main thread's
    sleep in work of its own (for a device, say). Waits of other threads do not count, as they mostly wait for threads
    of their own rank.
    """
    ran = rank.ran if rank.wanted is None else max(rank.ran, rank.wanted - (rank.waited or 0.0))
    return min(step, (ran + rank.delay) * step + max(0.0, work - rank.ran * step))


def own_part(history: History) -> float:
    """The job's own part (0..1) of the CPU time lately used on all cores; 0 where that is not measured."""
    own, whole = 0.0, 0.0
    for host in islice(reversed(history.hosts), SAMPLES_AVERAGED):
        used, others = host.cores_used, host.cores_taken
        if used is not None and others is not None:
            own += used
            whole += used + others
    return own / whole if whole > 0 else 0.0


def apart(cores: Mapping[int, OnCores], work: Mapping[int, float], step: float, own: float, at_hand: float) -> float:
    """Seconds that a step would take if the ranks exchanged nothing.

    That is as long as the rank that works longest, but no less than the main threads' CPU time on `at_hand` cores.
    Threads that exchange take cores from threads that compute: `own` (0..1) is the part of the waits for cores that
    comes from them, and not from other programs.
    """
    delays = {pid: own * cores[pid].delay * step if pid in cores else 0.0 for pid in work}
    undisturbed = {pid: max(0.0, seconds - delays[pid]) for pid, seconds in work.items()}
    ran = sum(min(cores[pid].ran * step, seconds) for pid, seconds in undisturbed.items() if pid in cores)
    return max(*undisturbed.values(), ran / at_hand)
