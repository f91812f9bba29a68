"""The AI processes of this machine, one row a job, for choosing one to watch."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from aitop.model.gpu import DeviceUsers
from aitop.model.job import Candidate
from aitop.sources import procfs
from aitop.sources.host.job import lineage, top_of
from aitop.sources.host.roles import ranks_of
from aitop.sources.host.tree import Member, ProcessTree, places_of
from aitop.sources.procfs import Stat

# Seconds between two reads. CPU time is counted in steps of 10 ms, so a shorter time would say nothing.
CPU_WINDOW = 0.1
# A process with a framework in it maps far more than this; a shell or a daemon mostly less.
BIG_MAP = 1 << 29
_PYTHON_NAMES = ("python", "pypy", "pt_", "ray::", "torchrun", "accelerate", "deepspeed", "jupyter", "ipython")


def candidates(gpu_users: DeviceUsers) -> list[Candidate]:
    """The AI jobs running now, heaviest first. Takes about CPU_WINDOW seconds.

    `gpu_users` gives, for each process that has a context on a GPU, its devices and its memory there in bytes.
    Processes of other users are seen only if they use a GPU, since their memory maps are closed to us.
    """
    before = time.monotonic()
    stats = {pid: stat for pid in procfs.pids() if (stat := procfs.stat(pid)) and not stat.ended}
    stats.pop(os.getpid(), None)
    frameworks = _frameworks(stats, gpu_users)
    tops = _tops(stats, frameworks)
    time.sleep(max(0.0, before + CPU_WINDOW - time.monotonic()))
    members = ProcessTree(tops.items()).update()
    seconds = time.monotonic() - before
    rows = [_row(job, stats, frameworks, gpu_users, seconds) for job in _jobs(members, tops)]
    return sorted(
        rows, key=lambda row: (bool(row.gpus), row.gpu_memory or 0, row.cpu or 0.0, row.rss or 0), reverse=True
    )


def _frameworks(stats: Mapping[int, Stat], gpu_users: DeviceUsers) -> dict[int, str | None]:
    """The AI processes with their framework; a GPU user may have none. A forked child has its parent's."""
    frameworks: dict[int, str | None] = {}
    for pid, stat in sorted(stats.items(), key=lambda item: item[1].start):
        parent = stats.get(stat.ppid)
        if parent is not None and stat.ppid in frameworks and stat.stack and stat.stack == parent.stack:
            frameworks[pid] = frameworks[stat.ppid]
        elif pid in gpu_users or _may_hold_framework(stat):
            framework = procfs.framework_of(procfs.maps(pid) or b"")
            if framework or pid in gpu_users:
                frameworks[pid] = framework
    return frameworks


def _may_hold_framework(stat: Stat) -> bool:
    if stat.flags & procfs.KERNEL_THREAD:
        return False
    return stat.vsize >= BIG_MAP or stat.comm.lower().startswith(_PYTHON_NAMES)


def _tops(stats: Mapping[int, Stat], frameworks: Collection[int]) -> dict[int, int]:
    """The topmost process of each job with its start in ticks. What runs below one is watched with it."""
    chains = [chain for pid in frameworks if stats[pid].ppid not in frameworks and (chain := lineage(pid))]
    tops = {top_of(chain).stat.pid for chain in chains}
    outermost = (next(known.stat for known in reversed(chain) if known.stat.pid in tops) for chain in chains)
    return {stat.pid: stat.start for stat in outermost}


def _jobs(members: Sequence[Member], tops: Collection[int]) -> Iterable[list[Member]]:
    """The members below each top, the top first. Parents come before their children."""
    jobs: dict[int, list[Member]] = {}
    top_of_pid: dict[int, int] = {}
    for member in members:
        pid = member.stat.pid
        top = pid if pid in tops else top_of_pid.get(member.ppid)
        if top is not None:
            top_of_pid[pid] = top
            jobs.setdefault(top, []).append(member)
    return jobs.values()


def _row(
    job: Sequence[Member],
    stats: Mapping[int, Stat],
    frameworks: Mapping[int, str | None],
    gpu_users: DeviceUsers,
    seconds: float,
) -> Candidate:
    """One job as a row. `stats` are of `seconds` ago.

    It is named by its topmost process of our user: what has started it may be a daemon of root's, such as Slurm's.
    """
    user = os.geteuid()
    top = next((one for one in job if procfs.user_id(one.stat.pid) == user), job[0]) if user else job[0]
    places = places_of(job)
    ranks = ranks_of(places)
    pids = [member.stat.pid for member in job]
    users = [gpu_users[pid] for pid in pids if pid in gpu_users]
    memory = [amount for _, amount in users if amount is not None]
    names = (frameworks.get(pid) for pid in (*ranks, *pids))
    owner = procfs.user_id(top.stat.pid)
    return Candidate(
        pid=top.stat.pid,
        user=procfs.user_name(owner),
        command=top.command,
        framework=next((name for name in names if name), None),
        ranks=len(ranks),
        workers=sum(place.role == "loader-worker" for place in places.values()),
        age=max(0.0, time.time() - procfs.started(top.stat.start)),
        cpu=_cores(job, stats, seconds),
        rss=sum(member.stat.rss for member in job) * procfs.PAGE_SIZE,
        gpus=tuple(sorted({device for devices, _ in users for device in devices})),
        gpu_memory=sum(memory) if memory else None,
        mine=os.geteuid() in (0, owner),
    )


def _cores(job: Sequence[Member], stats: Mapping[int, Stat], seconds: float) -> float | None:
    """Cores used by the processes that were there both times."""
    ticks = [
        member.stat.user + member.stat.system - before.user - before.system
        for member in job
        if (before := stats.get(member.stat.pid)) is not None and before.start == member.stat.start
    ]
    return max(0, sum(ticks)) / procfs.TICKS_PER_SECOND / seconds if seconds > 0 and ticks else None
