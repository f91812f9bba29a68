"""What the screen is narrowed to, and what of a Snapshot that leaves. Pure."""

from __future__ import annotations

from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.host import ProcessSample
from aitop.model.snapshot import Phases, Snapshot, Steps
from aitop.ui.process_tree import children, descendants, labels_of

WHOLE_JOB = "whole job"


def family(processes: tuple[ProcessSample, ...], pid: int) -> frozenset[int]:
    """A process with all below it; itself alone when it is not among them any more."""
    return frozenset({pid, *descendants(pid, children(processes))})


def process_words(snapshot: Snapshot | None, pid: int) -> str:
    """The process in words: rank 1, worker 2 of rank 0, tensorboard; with what is below it."""
    processes = snapshot.host.processes if snapshot and snapshot.host else ()
    process = next((one for one in processes if one.pid == pid), None)
    if process is None:
        return f"process {pid}"
    words = labels_of(processes)[pid]
    if process.role == "loader-worker" and process.rank is not None:
        words += f" of rank {process.rank}"
    below = len(family(processes, pid)) - 1
    return f"{words} +{below}" if below else words


def steps_for(snapshot: Snapshot, pids: frozenset[int] | None) -> tuple[Steps | None, str | None]:
    """The steps of the processes the screen is narrowed to, and whose they are where they are of others.

    Steps are kept of one rank. Of another one the stacks tell shares of phases; where not even that, the steps are the
    job's.
    """
    steps = snapshot.steps
    if pids is None or steps is None or steps.pid in pids:
        return steps, None
    for process in snapshot.stacks.processes if snapshot.stacks else ():
        if process.pid in pids and process.role == "rank" and process.phases != Phases():
            return Steps(basis="stacks", pid=process.pid, phases=process.phases), None
    return steps, WHOLE_JOB


def devices_for(sample: GpuSample, pids: frozenset[int] | None) -> tuple[tuple[GpuDevice, ...], str | None]:
    """The devices that list one of the processes; all of them, with word of it, where none does."""
    if pids is None:
        return sample.devices, None
    used = tuple(device for device in sample.devices if any(process.pid in pids for process in device.processes or ()))
    return (used, None) if used else (sample.devices, WHOLE_JOB)


def scope_of(pane: str, snapshot: Snapshot | None, pids: frozenset[int] | None) -> str | None:
    """What a pane says of its reach while the screen is narrowed: words where not all it shows is of these processes.

    None where all of it is, and while nothing is narrowed.
    """
    if pids is None or snapshot is None:
        return None
    led = snapshot.steps is not None and snapshot.steps.pid in pids
    if pane == "verdict":
        return WHOLE_JOB
    if pane == "step":
        return steps_for(snapshot, pids)[1]
    if pane == "gpu":
        return devices_for(snapshot.gpu, pids)[1] if snapshot.gpu else None
    if pane == "data":
        return "queue, disk, net: whole job"
    if pane == "memory":
        return "chart: whole job" if led or not snapshot.allocators else "chart, cuda: whole job"
    return None
