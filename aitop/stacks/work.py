"""Finds the processes of a tree that do the work: make steps or answer requests. Pure.

It goes by measurements: steps that the hook counted, phases on the stacks, and the kernel's figure of how long a thread
runs. How a process was started says little: one that starts trainers and joins them looks like a trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from aitop.model.ledger import HANDED_WAITS, Activity
from aitop.model.snapshot import HotLine, ProcessStacks, Stacks
from aitop.model.steps import StepKind
from aitop.stacks.pool import OWN_WAITS, RUNS

# What part a process has in steps: 0 none; 1 it runs a model, or is a rank that waits for data; 2 it updates a model.
Level = Literal[0, 1, 2]
# Fewer samples of a part of a step, or a smaller share of all samples, are no evidence that a process makes steps.
LEAST_SAMPLES, LEAST_SHARE = 2, 0.02
# A thread that runs for less than this share of its time only hands out work and waits for it.
LEAST_ACTIVE = 0.1
# Processes that do at least this share of the busiest one's work are its peers, which are ordered by pid.
PEER = 0.5
_FOR_OTHERS: tuple[Activity, ...] = (*HANDED_WAITS, "wait-network")


def step_levels(stacks: Stacks | None, stepping: Mapping[int, StepKind]) -> dict[int, Level]:
    """Return the level of each process. `stepping` has, by pid, the kind of the steps that the hook counted lately."""
    levels: dict[int, Level] = {}
    for process in stacks.processes if stacks else ():
        phases = process.phases
        updating = process.samples * ((phases.backward or 0.0) + (phases.optimizer or 0.0))
        waiting = phases.data_wait or 0.0 if process.role == "rank" else 0.0
        running = updating + process.samples * ((phases.forward or 0.0) + waiting)
        levels[process.pid] = 2 if _seen(updating, process) else 1 if _seen(running, process) else 0
    for pid, kind in stepping.items():
        levels[pid] = 2 if kind == "train" else max(1, levels.get(pid, 0))
    return levels


def _seen(samples: float, process: ProcessStacks) -> bool:
    return samples >= max(LEAST_SAMPLES - 0.5, LEAST_SHARE * process.samples)


def working(stacks: Stacks | None, stepping: Mapping[int, StepKind], target: int) -> tuple[int, ...]:
    """The processes that do the work, the one to show first in front; empty where nothing was sampled.

    They are those that update a model; else those that run one or wait for their data; else those that run at all;
    else those whose requests wait. A rank also belongs to them if its stacks show any part of a step. Stacks of a
    loader's worker never do: it feeds a rank. The order of `stepping` counts: its first process comes first.
    """
    if stacks is None:
        return ()
    processes = [process for process in stacks.processes if process.role != "helper"]
    processes = [process for process in processes if process.role != "launcher"] or processes
    levels = step_levels(stacks, stepping)
    most = max((levels[process.pid] for process in processes), default=0)
    first = next(iter(stepping), None)
    ranks = [process for process in processes if process.role == "rank"]
    if most:
        chosen = [each for each in processes if levels[each.pid] == most or (each.role == "rank" and _steps(each) > 0)]
    else:
        chosen = _running(stacks, processes) or _holding(processes) or ranks or processes
    amounts = {process.pid: _amount(stacks, process) for process in chosen}
    busiest = max(amounts.values(), default=0.0)

    def order(process: ProcessStacks) -> tuple[bool, bool, bool, bool, bool, float, int]:
        peer = amounts[process.pid] >= PEER * busiest
        return (
            process.pid != first,
            levels[process.pid] != most,
            process.pid != target,
            process.role != "rank",
            not peer,
            0.0 if peer else -amounts[process.pid],
            process.pid,
        )

    return tuple(process.pid for process in sorted(chosen, key=order))


def _steps(process: ProcessStacks) -> float:
    """The share of its samples in which it made a step or waited for data."""
    phases = process.phases
    return sum(share or 0.0 for share in (phases.data_wait, phases.forward, phases.backward, phases.optimizer))


def _amount(stacks: Stacks, process: ProcessStacks) -> float:
    """The share (0..1) of the lead thread's time in which it steps; or, without steps, runs or waits for a disk.

    Waits in a backward pass or an exchange are left out: there a rank waits for the other ranks, the late one least.
    """
    steps = _steps(process)
    if steps == 0.0:
        return _active(stacks, process)
    exchanges = [line for line in _lines(stacks, process) if line.phase in ("backward", "communication")]
    return max(0.0, steps - sum(line.share * line.part(*_FOR_OTHERS) for line in exchanges))


def _lines(stacks: Stacks, process: ProcessStacks) -> list[HotLine]:
    mine = process.pid, process.thread
    return [line for line in stacks.lines if (line.pid, line.thread) == mine]


def _running(stacks: Stacks, processes: Sequence[ProcessStacks]) -> list[ProcessStacks]:
    """The processes whose lead thread does something itself; if any are ranks, only those: the others feed them."""
    running = [process for process in processes if _active(stacks, process) > LEAST_ACTIVE]
    return [process for process in running if process.role == "rank"] or running


def _holding(processes: Sequence[ProcessStacks]) -> list[ProcessStacks]:
    """The processes in which requests wait nearly always: for a service, or behind each other."""
    pools = [(process, process.pool) for process in processes if process.pool is not None]
    return [process for process, pool in pools if pool.asking + pool.standing > 1.0 - LEAST_ACTIVE]


def _active(stacks: Stacks, process: ProcessStacks) -> float:
    """The share of the time in which its lead thread, or one of the pool's, runs or waits for a disk or a device."""
    if process.pool is not None:
        return min(1.0, process.pool.working)
    mine = process.pid, process.thread
    runs = next((share.active for share in stacks.threads if (share.pid, share.thread) == mine), None)
    # The kernel's figure of how long a thread runs is the best, but it is not read for every thread.
    own = OWN_WAITS if runs is not None else (*RUNS, *OWN_WAITS)
    lines = _lines(stacks, process)
    # One that hands things over works for whoever makes or takes them.
    handing = sum(line.share * line.part(*RUNS) for line in lines if line.work == "hand-over")
    return (runs or 0.0) - handing + sum(line.share * line.part(*own) for line in lines if line.work != "hand-over")
