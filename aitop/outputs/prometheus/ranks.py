"""The ranks of a job on this machine as series tell them apart: the labels of each, and the phases of its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from aitop.diagnosis.evidence import shares_by
from aitop.model.gpu import GpuDevice
from aitop.model.ranks import RankPhases
from aitop.model.snapshot import Phases, Snapshot


class Rank(msgspec.Struct, frozen=True):
    """A process that has series of its own. `devices` are the UUIDs of those that it computes on.

    `label` is its number over the whole job, empty for a process that is the only one and has no number.
    """

    pid: int
    label: str
    number: int | None = None
    devices: tuple[str, ...] = ()


def ranks_here(snapshot: Snapshot) -> tuple[Rank, ...]:
    """The ranks of the job on this machine; of a program without ranks the processes that do the work."""
    ranks = (process for process in snapshot.processes if process.role == "rank" and process.state != "Z")
    numbers = {process.pid: process.rank for process in ranks}
    if snapshot.engine is not None or not numbers:
        numbers = {pid: numbers.get(pid) for pid in snapshot.working or tuple(numbers) or (snapshot.target.pid,)}
    if snapshot.ranks is not None:
        numbers |= {view.pid: view.rank for view in snapshot.ranks.ranks if view.pid in numbers}
    taken = Counter(numbers.values())
    return tuple(
        Rank(pid, _label(pid, number, alone=taken[number] == 1), number, _devices(pid, snapshot, len(numbers)))
        for pid, number in numbers.items()
    )


def _label(pid: int, number: int | None, *, alone: bool) -> str:
    """Two series must not have the same labels: several processes with one number, or with none, show their pids."""
    if not alone:
        return f"pid{pid}"
    return "" if number is None else str(number)


def _devices(pid: int, snapshot: Snapshot, ranks: int) -> tuple[str, ...]:
    """Where the driver lists no processes, or those of another pid namespace, a single rank has all that are ours."""
    devices = snapshot.gpu.devices if snapshot.gpu else ()
    used = [device for device in devices if _computes(pid, device)]
    if not used and ranks == 1:
        used = [device for device in devices if device.mine]
    return tuple(device.uuid for device in used if device.uuid)


def _computes(pid: int, device: GpuDevice) -> bool:
    return any(process.pid == pid for process in device.processes or ())


def phases_of(rank: Rank, snapshot: Snapshot) -> dict[str, float]:
    """The share (0..1) of each phase that was measured of a rank's step, or of a server's request or iteration."""
    views = snapshot.ranks.ranks if snapshot.ranks else ()
    compared = next((view.phases for view in views if view.pid == rank.pid), None)
    if compared is not None:
        return _shares(compared)
    ledger = next((ledger for ledger in snapshot.ledgers if ledger.pid == rank.pid), None)
    if ledger is not None and ledger.unit in ("request", "iteration"):
        return shares_by((entry for entry in ledger.entries if entry.lane == "main"), lambda entry: entry.phase)
    processes = snapshot.stacks.processes if snapshot.stacks else ()
    sampled = next((process.phases for process in processes if process.pid == rank.pid), Phases())
    phases = snapshot.steps.phases if snapshot.steps and snapshot.steps.pid == rank.pid else sampled
    return {name: share for name, share in phases.shares().items() if share is not None}


def _shares(phases: RankPhases) -> dict[str, float]:
    """Seconds of a rank's step as shares of it; what it waits for the others is its communication."""
    seconds = {name: value for name, value in msgspec.structs.asdict(phases).items() if value is not None}
    total = sum(seconds.values())
    names = {"wait": "communication"}
    return {names.get(name, name): value / total for name, value in seconds.items()} if total > 0 else {}


def named(ranks: Sequence[Rank], numbers: Sequence[int]) -> Sequence[Rank]:
    """Those of the ranks that have one of these numbers; all of them where none of them has."""
    return [rank for rank in ranks if rank.number in numbers] or ranks
