"""The ranks of a job side by side: what each does itself in a step, and what it waits for the others. Pure.

Steps of several ranks are the same step where they end together: ranks of one machine share its monotonic clock, and
an exchange ends for all of them at about the same time.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from statistics import fmean, median

import msgspec
from msgspec.structs import replace

from aitop.engine.history import WINDOW_SECONDS, History, HookHistory
from aitop.engine.snapshot.rank_cores import DELAYS, OnCores, apart, held, on_cores, own_part
from aitop.engine.snapshot.standstill import rank_number, world_size
from aitop.engine.snapshot.steps import quantile
from aitop.model.gpu import GpuDevice
from aitop.model.host import ProcessSample
from aitop.model.ranks import CollectiveWait, RankPhases, Ranks, RankView
from aitop.model.steps import StepRecord

MOST_STEPS = 200
# Steps of all ranks together, and how many of each are compared however many ranks there are.
MOST_STEPS_TOGETHER, MOST_STEPS_OF_MANY = 3200, 40
LEAST_STEPS = 5
# The quantile of backward passes that is taken as one without any wait.
FAST = 0.1
MOST_COLLECTIVES = 4


def ranks_view(history: History, now: float) -> Ranks | None:
    """The ranks of this machine; None where there are not several, here or elsewhere."""
    host = history.hosts.last
    if host is None:
        return None
    processes = [process for process in host.processes if process.role == "rank" and process.state != "Z"]
    world = world_size(history, host)
    if world < 2:
        # Trainers that form no group have no numbers, and no step in common.
        processes = [process for process in processes if rank_number(history, process) is not None]
    if len(processes) < 2 and world < 2:
        return None
    since = now - WINDOW_SECONDS
    most = max(MOST_STEPS_OF_MANY, min(MOST_STEPS, MOST_STEPS_TOGETHER // max(1, len(processes))))
    recent = {process.pid: _recent(history.hooks.get(process.pid), since, most) for process in processes}
    timed = {
        pid: _recent(history.hooks.get(pid), since, len(records), timed=True) if _any_estimated(records) else records
        for pid, records in recent.items()
    }
    enough = {pid: records for pid, records in timed.items() if len(records) >= LEAST_STEPS}
    aligned = _aligned(enough)
    # Beside ranks elsewhere one by itself waits for others, too.
    measured = aligned or (enough if world > len(processes) else {})
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
    # Of what looks like exchange, the part that is left without the time in which ranks wait for a core.
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
    """The last `most` steps, at most, that ended after `since`; with `timed` none that were only counted.

    The phases of a counted step are estimates, and cannot be compared with those of another rank.
    """
    newest_first = takewhile(lambda record: record.end >= since, reversed(hook.steps if hook else ()))
    return list(islice((record for record in newest_first if not (timed and record.estimated)), most))[::-1]


def _any_estimated(records: Iterable[StepRecord]) -> bool:
    return any(record.estimated for record in records)


def _aligned(recent: Mapping[int, Sequence[StepRecord]]) -> dict[int, list[StepRecord]]:
    """The steps that all these ranks made, by the time of their ends; the same number of each."""
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
    """Seconds that each rank computes in a backward pass without its waits; None where calls tell of the waits.

    DistributedDataParallel times that itself now and then, and waits where no Python call is seen.
    """
    backward: dict[int, float | None] = {}
    for pid, records in aligned.items():
        facts = history.hooks[pid].facts
        ddp = facts.ddp if facts else None
        least = quantile(sorted(record.backward / max(1, record.backwards) for record in records), FAST)
        if ddp is None:
            backward[pid] = None
        else:
            backward[pid] = least if ddp.backward is None else min(least, ddp.backward)
    return backward


def _wait(record: StepRecord, own_backward: float | None) -> float:
    """Seconds of a step in which a rank waited for others, or for the exchange."""
    return min(record.seconds, _inside(record, own_backward) + _in_calls(record, own_backward))


def _inside(record: StepRecord, own_backward: float | None) -> float:
    """Seconds that a rank waited within its backward passes, for exchanges that no call was seen of."""
    return 0.0 if own_backward is None else max(0.0, record.backward - own_backward * max(1, record.backwards))


def _in_calls(record: StepRecord, own_backward: float | None) -> float:
    """Seconds that a rank was in collectives; without those that `_inside` counts."""
    return (record.communication if own_backward is None else record.communication_apart) or 0.0


def _exchange(aligned: Mapping[int, Sequence[StepRecord]], own: Mapping[int, float | None]) -> tuple[float, float]:
    """Mean seconds a step from the last rank's arrival to the end, within backward passes and in calls."""
    inside, calls = 0.0, 0.0
    steps = list(zip(*aligned.values(), strict=True))
    for step in steps:
        each = list(zip(step, (own[pid] for pid in aligned), strict=True))
        inside += min(_inside(record, backward) for record, backward in each)
        calls += _exchanged_in_calls(each)
    return inside / len(steps), calls / len(steps)


def _exchanged_in_calls(step: Sequence[tuple[StepRecord, float | None]]) -> float:
    """Seconds of a step from the last rank's arrival at a collective to its end, summed over its calls.

    They are compared call by call where all ranks made the same ones, as another rank may be last at each.
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
    """Call by call: whoever is in it for the shortest time came last, and the others waited for the rest of theirs."""
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
                exchange=fmean(min(calls) for calls in times),
            )
        )
    return tuple(waits)


class _Compared(msgspec.Struct, frozen=True):
    """The steps that several ranks made together, by pid, and how long each waited in them. `work` and `bounds`, the
    least and the most that any of them worked in a step, are empty for a rank that all others are elsewhere for.
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
    device = _device(history, pid)
    mine = compared.records.get(pid) or ()
    view = RankView(
        rank=rank_number(history, process),
        pid=pid,
        step=recent[-1].index if recent else None,
        p50=median(record.seconds for record in recent) if recent else None,
        cpu=process.cpu,
        rss=process.rss,
        run_delay=cores[pid].delay if pid in cores else None,
        waited=cores[pid].waited if pid in cores else None,
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
    return replace(
        view,
        work=fmean(own),
        lateness=fmean(skew),
        latest=fmean(last),
        samples=fmean(samples) if samples else None,
        tokens=fmean(tokens) if tokens else None,
        skew=skew,
        skew_since=mine[0].end,
    )


def _phases(records: Sequence[StepRecord], waits: Sequence[float] | None) -> RankPhases | None:
    if not records:
        return None
    wait = fmean(waits) if waits else None
    backward = fmean(record.backward for record in records)
    apart = fmean(record.communication_apart or 0.0 for record in records)
    inside = max(0.0, (wait or 0.0) - apart)
    return RankPhases(
        data_wait=fmean(record.data_wait + record.loader_start for record in records),
        forward=fmean(record.forward for record in records),
        backward=max(0.0, backward - inside),
        optimizer=fmean(record.optimizer for record in records),
        outside=fmean(record.outside for record in records),
        wait=wait,
    )


def _clock(history: History, device: GpuDevice | None) -> float | None:
    """The mean clock of a device in MHz over the last seconds."""
    if device is None:
        return None
    samples = islice(reversed(history.gpus), DELAYS)
    same = (then for sample in samples for then in sample.devices if then.index == device.index)
    known = [then.sm_clock for then in same if then.sm_clock]
    return fmean(known) if known else None


def _device(history: History, pid: int) -> GpuDevice | None:
    """The device that a rank is on."""
    gpu = history.gpus.last
    devices = gpu.devices if gpu is not None else ()
    return next((device for device in devices if any(process.pid == pid for process in device.processes or ())), None)
