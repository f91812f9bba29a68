"""Makes the Snapshot of a tick from the history. Pure: no clock, no input or output."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec

from aitop.engine.history import LONG_WINDOW_SECONDS, WINDOW_SECONDS, History, HookHistory
from aitop.engine.snapshot.ranks import ranks_view
from aitop.engine.snapshot.series import series, worker_lanes
from aitop.engine.snapshot.serving import request_series, serving
from aitop.engine.snapshot.standstill import numbered, standstill
from aitop.engine.snapshot.steps import steps_view, with_throughput
from aitop.engine.totals import mean_cores
from aitop.model.gpu import GpuSample, bare
from aitop.model.host import HostSample, Role
from aitop.model.ranks import Ranks
from aitop.model.run import SoFar
from aitop.model.snapshot import Cost, Phases, ProcessStacks, Snapshot, Stacks, Steps, Tick
from aitop.model.source import SourceName, SourceStatus
from aitop.model.stacks import StackWindow
from aitop.model.steps import AllocatorSample, Kind, StepKind, StepRecord
from aitop.stacks.position import UPDATES
from aitop.stacks.work import working

ENOUGH_STEPS = 30
# In training, a backward pass of about twice its time follows each forward pass. So from this many forward samples on,
# a run without an update is one of inference.
ENOUGH_FORWARD_SAMPLES = 5


def aggregate(history: History, tick: Tick) -> Snapshot:
    """The Snapshot at `tick`, without ledgers and verdicts."""
    lead = lead_pid(history, tick.time)
    hook = history.hooks.get(lead) if lead is not None else None
    left = hook is not None and _has_left(history, hook)
    since, records = _window(history, hook, tick.time, longer=not left)
    steps = steps_view(lead, records, hook.count, _spread(hook, since, records)) if hook and lead is not None else None
    gpu, facts = history.gpus.last, hook.facts if hook else None
    if steps is not None:
        steps, facts = with_throughput(steps, facts, gpu)
    host = numbered(history)
    roles: dict[int, Role] = {process.pid: process.role for process in host.processes} if host else {}
    roles.setdefault(history.target.pid, "rank")
    windows = _stepping_windows(history)
    since = min(since, _sampled_since(windows, history.reach.sampled))
    callers = {pid: hook.facts.callers for pid, hook in history.hooks.items() if hook.facts is not None}
    stacks = history.stacks.view(windows, roles, since, callers)
    ranks = ranks_view(history, tick.time)
    steps = _with_exchange(steps, ranks)
    workers = working(stacks, _stepping(history, tick.time), history.target.pid)
    by_pid = {each.pid: each for each in stacks.processes} if stacks else {}
    # The first of the working processes stands for the job.
    process = next((by_pid[pid] for pid in workers if pid in by_pid), None)
    steps = _without_callbacks(steps, process)
    engine = host.engine if host else None
    kind = _kind(records, stacks, serves=engine is not None)
    if steps is not None and kind == "training" and records[-1].kind != "train":
        # Gradients that are not made by autograd's backward pass, as those of torch.func, were not measured.
        steps = msgspec.structs.replace(
            steps, phases=msgspec.structs.replace(steps.phases, backward=None, optimizer=None)
        )
    first = history.first_time if history.first_time is not None else tick.time
    return Snapshot(
        tick=history.tick_count,
        time=tick.time,
        wall=tick.wall,
        window=min(tick.time - first, tick.time - since),
        target=history.target,
        kind=kind,
        sources=_sources(history, tick.time, steps),
        host=_with_seen_roles(host, by_pid),
        gpu=gpu,
        steps=steps or _steps_from_stacks(history, process),
        facts=facts,
        allocators=_placed(hook.allocators[-1][1], gpu, lead) if hook and hook.allocators and not left else (),
        stacks=stacks,
        dump=history.dump,
        standstill=standstill(history, tick.time),
        ranks=ranks,
        growth_sites=history.growth.sites if history.growth else (),
        series=series(history, hook)
        | (hook.seconds.series() if hook else {})
        | worker_lanes(history.hosts, history.windows, history.stacks)
        | request_series(history, tick.time),
        cost=_cost(history, None if left else hook, steps),
        working=workers,
        serving=serving(history, tick.time, kind),
        engine=engine,
        past=history.past.past(),
        so_far=_so_far(history, workers[0] if workers else lead, tick.time - first),
    )


def _with_seen_roles(host: HostSample | None, seen: Mapping[int, ProcessStacks]) -> HostSample | None:
    """The host with children of multiprocessing as "other" where their stacks are not those of a loader's worker."""
    if host is None:
        return None
    processes = (
        msgspec.structs.replace(process, role="other", rank=None)
        if process.role == "loader-worker" and process.pid in seen and seen[process.pid].role == "other"
        else process
        for process in host.processes
    )
    return msgspec.structs.replace(host, processes=tuple(processes))


def _placed(
    allocators: Sequence[AllocatorSample], gpus: GpuSample | None, pid: int | None
) -> tuple[AllocatorSample, ...]:
    """The allocators of a process with the driver's number of their device.

    A device is known by its UUID, or a MIG slice of it by that of the slice. Without that (before torch 2.4) it is the
    only device that the process is on, or else that of the same number, unless the process is known to be on others.
    """
    devices = gpus.devices if gpus is not None else ()
    of_slices = ((one.uuid, device.index) for device in devices for one in device.mig_devices)
    uuids = (*((device.uuid, device.index) for device in devices), *of_slices)
    by_uuid = {bare(uuid): index for uuid, index in uuids if uuid}
    own = {device.index for device in devices if device.runs(pid)}

    def number(allocator: AllocatorSample) -> int | None:
        if allocator.uuid is not None:
            return by_uuid.get(bare(allocator.uuid))
        if len(own) == len(allocators) == 1:
            return next(iter(own))
        same = any(device.index == allocator.device for device in devices)
        return allocator.device if same and (not own or allocator.device in own) else None

    return tuple(msgspec.structs.replace(allocator, gpu=number(allocator)) for allocator in allocators)


def _so_far(history: History, pid: int | None, seconds: float) -> SoFar:
    """Everything since watching began; the units of work are those of process `pid`."""
    hook = history.hooks.get(pid) if pid is not None else None
    return SoFar(
        seconds=seconds,
        units=hook.totals.units() if hook is not None else (),
        concurrency=hook.totals.concurrency() if hook is not None else None,
        cores=mean_cores(history.cores),
    )


def _with_exchange(steps: Steps | None, ranks: Ranks | None) -> Steps | None:
    """Move a rank's wait for the other ranks from backward and forward to communication, the same share of every step.

    DistributedDataParallel exchanges gradients inside the backward pass; only a comparison of the ranks tells how long
    a rank waits there.
    """
    own = next((view.phases for view in ranks.ranks if steps and view.pid == steps.pid), None) if ranks else None
    if steps is None or own is None or own.wait is None or not steps.mean:
        return steps
    phases = steps.phases
    apart = phases.communication or 0.0
    inside = max(0.0, own.wait / steps.mean - apart)
    of_backward = min(inside, phases.backward or 0.0)
    of_forward = min(inside - of_backward, phases.forward or 0.0)
    changed = msgspec.structs.replace(
        phases,
        communication=apart + of_backward + of_forward,
        backward=None if phases.backward is None else phases.backward - of_backward,
        forward=None if phases.forward is None else phases.forward - of_forward,
    )
    if not inside:
        return msgspec.structs.replace(steps, phases=changed)
    return _rewritten(steps, changed, lambda record: _exchanging(record, of_backward, of_forward))


def _exchanging(record: StepRecord, of_backward: float, of_forward: float) -> StepRecord:
    """The step with these shares of its time moved from its backward and forward pass to the exchange."""
    backward = min(record.backward, of_backward * record.seconds)
    forward = min(record.forward, of_forward * record.seconds)
    return msgspec.structs.replace(
        record,
        backward=record.backward - backward,
        forward=record.forward - forward,
        communication_apart=(record.communication_apart or 0.0) + backward + forward,
    )


def _without_callbacks(steps: Steps | None, process: ProcessStacks | None) -> Steps | None:
    """Take the user's own code out of the forward pass of `generate` calls, the same share of every call.

    The hook times the whole call, in which the user's logits processors and stopping criteria run as well. Only stacks
    tell these from the model.
    """
    if steps is None or process is None or process.pid != steps.pid:
        return steps
    measured, sampled = steps.phases, process.phases
    if measured.forward is None or measured.outside is None or sampled.forward is None or sampled.outside is None:
        return steps
    generating = sum(record.forward for record in steps.recent if record.kind == "generate")
    total = sum(record.seconds for record in steps.recent)
    beyond = min(sampled.outside - measured.outside, measured.forward - sampled.forward)
    moved = min(beyond, generating / total) if generating else 0.0
    if moved <= 0.0:
        return steps
    kept = 1.0 - moved * total / generating

    def without(record: StepRecord) -> StepRecord:
        return msgspec.structs.replace(record, forward=record.forward * kept) if record.kind == "generate" else record

    phases = msgspec.structs.replace(measured, forward=measured.forward - moved, outside=measured.outside + moved)
    return _rewritten(steps, phases, without)


def _rewritten(steps: Steps, phases: Phases, change: Callable[[StepRecord], StepRecord]) -> Steps:
    """The steps with these `phases`, and each record changed."""
    recent, spread = (tuple(map(change, records)) for records in (steps.recent, steps.spread))
    return msgspec.structs.replace(steps, phases=phases, recent=recent, spread=spread)


def lead_pid(history: History, now: float) -> int | None:
    """The process whose measured steps stand for the job.

    One that trains comes before others, then the lowest rank, the target, the lowest pid. Where nothing made steps
    lately, the lowest pid with a hook; None without a hook.
    """
    return next(iter(_stepping(history, now)), min(history.hooks, default=None))


def _stepping(history: History, now: float) -> dict[int, StepKind]:
    """The kind of the newest step by pid, for processes that stepped lately; the one to show first comes first."""
    host = history.hosts.last
    ranks = {process.pid: process.rank for process in host.processes} if host else {}
    made = {pid: hook.steps[-1] for pid, hook in history.hooks.items() if hook.steps}
    lately = {pid: last for pid, last in made.items() if last.end >= now - WINDOW_SECONDS}
    # Steps may be longer than the window.
    lately = lately or {pid: last for pid, last in made.items() if last.end >= now - LONG_WINDOW_SECONDS}

    def order(pid: int) -> tuple[bool, bool, int, bool, int]:
        rank = ranks.get(pid)
        return lately[pid].kind != "train", rank is None, rank or 0, pid != history.target.pid, pid

    return {pid: lately[pid].kind for pid in sorted(lately, key=order)}


def _has_left(history: History, hook: HookHistory) -> bool:
    """Whether the hook was taken out of a process that goes on: what it told last is not so any more."""
    status = history.statuses.get("hook")
    return status is not None and status.state == "absent" and status.time >= hook.time and history.target.ended is None


def _window(history: History, hook: HookHistory | None, now: float, *, longer: bool) -> tuple[float, list[StepRecord]]:
    """The start of the window, and the steps in it. With `longer`, it is longer where a short one would hold few."""
    since = now - WINDOW_SECONDS
    if hook is None:
        return since, []
    records = [record for record in hook.steps if record.end >= since]
    if len(records) < ENOUGH_STEPS and longer:
        since = now - LONG_WINDOW_SECONDS
        records = [record for record in hook.steps if record.end >= since][-ENOUGH_STEPS:]
    training = [record for record in records if record.kind == "train"]
    return since, training or records


def _spread(hook: HookHistory, since: float, records: Sequence[StepRecord]) -> list[StepRecord]:
    """Steps of the same kind over the whole window, of which `records` may be only the newest."""
    kinds = {record.kind for record in records}
    return [record for record in hook.spread if record.end >= since and record.kind in kinds]


def _stepping_windows(history: History) -> list[StackWindow]:
    """The stack windows from the first one on that shows a step; all of them where none does.

    Those before show importing and setting up.
    """
    first = min(history.stepped.values(), default=0.0)
    return [window for window in history.windows if window.time >= first]


def _sampled_since(windows: Sequence[StackWindow], seconds: float) -> float:
    """The start of the newest windows that together make up `seconds`; infinity for 0 seconds."""
    since = math.inf
    for window in reversed(windows):
        if seconds <= 0:
            break
        seconds -= window.seconds
        since = window.time - window.seconds
    return since


def _kind(records: list[StepRecord], stacks: Stacks | None, *, serves: bool) -> Kind:
    """The kind of the job. `serves`: serving software was recognised, which does inference unless something trains."""
    if records and records[-1].kind == "train":
        return "training"
    lines = stacks.lines if stacks else ()
    # Where a loop asks for gradients and updates by hand, the hook sees only forward passes; stacks show the update.
    if any(line.phase in UPDATES for line in lines):
        return "training"
    forwards = sum(line.samples for line in lines if line.phase == "forward")
    return "inference" if records or serves or forwards >= ENOUGH_FORWARD_SAMPLES else "unknown"


def _steps_from_stacks(history: History, process: ProcessStacks | None) -> Steps | None:
    """The steps without the hook: only the phase shares of the process's lead thread, and when they began.

    They began at the end of the first window that shows a step: until then the process may have been setting up.
    """
    if process is None or process.phases == Phases():
        return None
    return Steps(basis="stacks", pid=process.pid, phases=process.phases, began=history.stepped.get(process.pid))


def _sources(history: History, now: float, steps: Steps | None) -> dict[SourceName, SourceStatus]:
    statuses: dict[SourceName, SourceStatus] = {}
    for name, status in history.statuses.items():
        newest = history.newest.get(name)
        age = None if newest is None else max(0.0, now - newest)
        statuses[name] = msgspec.structs.replace(status, age=age)
        # The hook reports once a step, so a run with long steps gets more time.
        stale = history.reach.stale
        limit = max(stale, 5 * steps.p95) if name == "hook" and steps and steps.p95 else stale
        if status.state == "ok" and age is not None and age > limit:
            statuses[name] = msgspec.structs.replace(
                statuses[name], state="stale", reason=f"nothing new for {age:.0f} s", code="nothing-new"
            )
    return statuses


def _cost(history: History, hook: HookHistory | None, steps: Steps | None) -> Cost:
    cost_us = hook.facts.cost_us if hook and hook.facts else None
    mean = steps.mean if steps else None
    return Cost(
        monitor_cpu=_recent_cpu(history.ticks),
        hook_us_per_step=cost_us,
        target_slowdown=cost_us / 1e6 / mean if cost_us is not None and mean else None,
        seldom=history.ticks[-1].seldom if history.ticks else None,
    )


def _recent_cpu(ticks: Sequence[Tick]) -> float | None:
    """aitop's CPU use in cores over the last ticks, weighted by their length: the first ones are short and busy."""
    spent = [
        (tick.monitor_cpu, tick.time - before.time)
        for before, tick in pairwise(ticks)
        if tick.monitor_cpu is not None and tick.time > before.time
    ]
    seconds = sum(length for _, length in spent)
    if seconds > 0:
        return sum(cores * length for cores, length in spent) / seconds
    return ticks[-1].monitor_cpu if ticks else None
