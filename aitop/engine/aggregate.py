"""History at a tick to one Snapshot. Pure: no clock, no input or output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from aitop.engine.history import History, HookHistory
from aitop.engine.long_view import worker_lanes
from aitop.engine.phases import Phase
from aitop.engine.ranks import ranks_view
from aitop.engine.series import recompiles, series
from aitop.engine.stack_view import activity_over_time, phases_over_time, view
from aitop.engine.standstill import standstill
from aitop.engine.steps_view import steps_view
from aitop.engine.throughput import with_operations, with_throughput
from aitop.model.host import Role
from aitop.model.snapshot import Cost, Phases, ProcessStacks, Series, Snapshot, Stacks, Steps, Tick
from aitop.model.source import SourceName, SourceStatus
from aitop.model.stacks import StackWindow
from aitop.model.steps import Kind, StepRecord

WINDOW_SECONDS = 30.0
LONG_WINDOW_SECONDS = 120.0
ENOUGH_STEPS = 30
STALE_SECONDS = 10.0
ENOUGH_FORWARD_SAMPLES = 5
# Where the code that runs has no word for training, one is enough.
FORWARD_SAMPLES = 1
SETUP_SLACK_SECONDS = 0.5
# Phases that neither compute a step nor move its data, and those that a step of training alone has.
BESIDE: frozenset[Phase] = frozenset({"data_wait", "outside"})
UPDATING: frozenset[Phase] = frozenset({"backward", "optimizer"})


def aggregate(history: History, tick: Tick) -> Snapshot:
    """The picture at `tick`, without verdicts."""
    lead = lead_pid(history)
    hook = history.hooks.get(lead) if lead is not None else None
    since, records = _window(history, hook, tick.time)
    steps = steps_view(lead, records, hook.count) if hook and lead is not None else None
    gpu, facts = history.gpus.last, hook.facts if hook else None
    if steps is not None:
        steps = with_throughput(steps, facts, gpu)
    host = history.hosts.last
    roles: dict[int, Role] = {process.pid: process.role for process in host.processes} if host else {}
    roles.setdefault(history.target.pid, "rank")
    stacks = view(_stepping_windows(history, hook), roles, since)
    first = history.first_time if history.first_time is not None else tick.time
    return Snapshot(
        tick=history.tick_count,
        time=tick.time,
        wall=tick.wall,
        window=min(tick.time - first, tick.time - since),
        target=history.target,
        kind=_kind(records, stacks, history.growth.may_train if history.growth else None),
        sources=_sources(history, tick.time, steps),
        host=host,
        gpu=gpu,
        steps=steps or _steps_from_stacks(stacks, history.target.pid),
        facts=with_operations(facts, steps),
        allocators=hook.allocators if hook else (),
        stacks=stacks,
        dump=history.dump,
        standstill=standstill(history, tick.time),
        ranks=ranks_view(history, tick.time),
        growth_sites=history.growth.sites if history.growth else (),
        series=series(history, tuple(hook.steps) if hook else ())
        | _by_windows(history, hook, stacks)
        | (hook.seconds.series() if hook else {})
        | worker_lanes(history.hosts, history.windows),
        cost=_cost(history, hook, steps),
    )


def _by_windows(history: History, hook: HookHistory | None, stacks: Stacks | None) -> dict[str, Series]:
    """Windows of stacks one by one: what goes beside the steps, and how torch.compile is at work where it is."""
    found = {"recompiles": recompiles(hook.recompiles)} if hook and hook.recompiles else {}
    process = main_process(stacks, history.target.pid)
    if process is None or stacks is None:
        return found
    windows = _stepping_windows(history, hook)
    if hook is None:
        found["beside"] = phases_over_time(windows, process.pid, process.thread, BESIDE)
    if any(line.activity == "compile" for line in stacks.lines):
        all_windows = list(history.windows)
        found["compiling"] = activity_over_time(all_windows, process.pid, process.thread, "compile")
        found["updating"] = phases_over_time(all_windows, process.pid, process.thread, UPDATING)
    return found


def lead_pid(history: History) -> int | None:
    """The process whose steps stand for the job: rank 0, else the target, else whoever steps."""
    if not history.hooks:
        return None
    host = history.hosts.last
    ranks = {process.pid: process.rank for process in host.processes} if host else {}
    stepping = [pid for pid, hook in history.hooks.items() if hook.steps] or list(history.hooks)
    return min(stepping, key=lambda pid: (ranks.get(pid) is None, ranks.get(pid) or 0, pid != history.target.pid, pid))


def _window(history: History, hook: HookHistory | None, now: float) -> tuple[float, list[StepRecord]]:
    """Start of the window and the steps in it; longer where steps are so slow that a short one says little."""
    since = now - WINDOW_SECONDS
    if hook is None:
        return since, []
    records = [record for record in hook.steps if record.end >= since]
    if len(records) < ENOUGH_STEPS:
        since = now - LONG_WINDOW_SECONDS
        records = [record for record in hook.steps if record.end >= since][-ENOUGH_STEPS:]
    training = [record for record in records if record.kind == "train"]
    return since, training or records


def _stepping_windows(history: History, hook: HookHistory | None) -> list[StackWindow]:
    """Stack windows of the time in which the process stepped: importing and setting up say nothing of a step."""
    if hook is None or hook.began is None:
        return list(history.windows)
    began = hook.began - SETUP_SLACK_SECONDS
    return [window for window in history.windows if window.time - window.seconds >= began]


def _kind(records: list[StepRecord], stacks: Stacks | None, may_train: bool | None) -> Kind:
    if records and records[-1].kind == "train":
        return "training"
    shares: dict[str, int] = {}
    for line in stacks.lines if stacks else ():
        shares[line.phase] = shares.get(line.phase, 0) + line.samples
    # Whoever asks for gradients by hand and updates by hand has forward passes alone where steps are counted.
    if "backward" in shares or "optimizer" in shares:
        return "training"
    if records:
        return "inference"
    # A forward pass is followed by a backward pass of about twice its time: its absence takes samples to notice.
    enough = FORWARD_SAMPLES if may_train is False else ENOUGH_FORWARD_SAMPLES
    return "inference" if shares.get("forward", 0) >= enough else "unknown"


def _steps_from_stacks(stacks: Stacks | None, target: int) -> Steps | None:
    """Without the hook: phase shares of the busiest rank's main thread, and nothing that stacks cannot tell."""
    process = main_process(stacks, target)
    if process is None or process.phases == Phases():
        return None
    return Steps(basis="stacks", pid=process.pid, phases=process.phases)


def main_process(stacks: Stacks | None, target: int) -> ProcessStacks | None:
    """The rank whose stacks stand for the job: the target itself if it is one, else the most sampled rank."""
    ranks = [process for process in stacks.processes if process.role == "rank"] if stacks else []
    return min(ranks, key=lambda process: (process.pid != target, -process.samples), default=None)


def _sources(history: History, now: float, steps: Steps | None) -> dict[SourceName, SourceStatus]:
    found: dict[SourceName, SourceStatus] = {}
    for name, status in history.statuses.items():
        newest = history.newest.get(name)
        age = None if newest is None else max(0.0, now - newest)
        changed = msgspec.structs.replace(status, age=age)
        patience = STALE_SECONDS
        if name == "hook" and steps is not None and steps.p95 is not None:
            patience = max(patience, 5 * steps.p95)  # a hook speaks once a step
        if status.state == "ok" and age is not None and age > patience:
            changed = msgspec.structs.replace(
                changed, state="stale", reason=f"nothing new for {age:.0f} s", code="nothing-new"
            )
        found[name] = changed
    return found


def _cost(history: History, hook: HookHistory | None, steps: Steps | None) -> Cost:
    cost_us = hook.facts.cost_us if hook and hook.facts else None
    mean = steps.mean if steps else None
    return Cost(
        monitor_cpu=_recent_cpu(history.ticks),
        hook_us_per_step=cost_us,
        target_slowdown=cost_us / 1e6 / mean if cost_us is not None and mean else None,
    )


def _recent_cpu(ticks: Sequence[Tick]) -> float | None:
    """Mean cores of the last ticks, each by its length: the first ones are short and busy with starting."""
    spent = [
        (tick.monitor_cpu, tick.time - before.time)
        for before, tick in pairwise(ticks)
        if tick.monitor_cpu is not None and tick.time > before.time
    ]
    seconds = sum(length for _, length in spent)
    if seconds > 0:
        return sum(cores * length for cores, length in spent) / seconds
    return ticks[-1].monitor_cpu if ticks else None
