"""Which processes a job consists of, told from any one of them: a launcher, a rank, a loader worker.

A job is what one launcher started (torchrun, accelerate, deepspeed, mpirun, a script with `multiprocessing.spawn`), and
beside it the processes that meet at the same address, however they were started: Slurm tasks, ranks in separate
terminals. Ray's training workers find each other below their raylet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from aitop.sources import procfs
from aitop.sources.host.command_lines import LOOPBACK, RankNumbers, invocation, kind_of, rank_numbers, spawned
from aitop.sources.procfs import Stat

MOST_ABOVE = 32
RAY_WORKER = "ray::"
RAY_IDLE = "ray::IDLE"
RAYLET = "raylet"
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "env", "numactl", "taskset"})
# Environment variables that tell where the ranks of a job meet. All ranks of one run have the same values.
MEETING = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")


class JobFacts(NamedTuple):
    """The facts about a process that show its job. `environment` is None where it may not be read."""

    stat: Stat
    argv: tuple[str, ...]
    environment: Mapping[str, str] | None

    @property
    def numbers(self) -> RankNumbers:
        """The numbers that a launcher gave to it."""
        return rank_numbers(self.environment or {})


def whole_jobs(pids: Sequence[int]) -> tuple[int, ...]:
    """The tops of the jobs that these processes belong to, each once; a process that is gone stands for itself."""
    tops: dict[int, None] = {}
    for pid in pids:
        for top in _whole_job(pid):
            tops[top] = None
    return tuple(tops)


def _whole_job(pid: int) -> tuple[int, ...]:
    chain = lineage(pid)
    if not chain:
        return (pid,)
    top = top_of(chain)
    return (top.stat.pid, *sorted(_beside(chain[0], top) - {top.stat.pid}))


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None when it is gone."""
    stat = procfs.stat(pid)
    return None if stat is None else stat.start


def may_still_run(pid: int, start: int | None) -> bool:
    """Whether the process with this pid and start lives; also True where the pid exists but cannot be read."""
    stat = procfs.stat(pid)
    if stat is None:
        return not procfs.gone(pid)
    return stat.start == start and not stat.ended


def look_at(pid: int) -> JobFacts | None:
    """Read the facts about a process; None when it is gone."""
    stat = procfs.stat(pid)
    return None if stat is None else JobFacts(stat, procfs.argv(pid), procfs.environ(pid))


def lineage(pid: int) -> list[JobFacts]:
    """The process and its ancestors, the nearest first; empty where it is gone.

    A parent that is younger than its child is another process with a reused pid. The monitor is nobody's ancestor.
    """
    chain: list[JobFacts] = []
    while len(chain) <= MOST_ABOVE and pid > 0 and (known := look_at(pid)) is not None:
        if chain and (known.stat.start > chain[-1].stat.start or pid == os.getpid()):
            break
        chain.append(known)
        pid = known.stat.ppid
    return chain


def top_of(chain: Sequence[JobFacts]) -> JobFacts:
    """The topmost process of the job of `chain[0]`, the rest being its ancestors in order."""
    top = chain[0]
    numbered = (top.numbers.world_size or 1) > 1
    for below, above in pairwise(chain):
        if kind_of(above.argv, python=False) == "launcher" or _started(above, below):
            top = above
        elif not (numbered and _is_shell(above)) and kind_of(below.argv, python=False) != "helper":
            break
    return top


def _is_shell(known: JobFacts) -> bool:
    """Whether the process is a shell; launchers may start ranks through one."""
    return bool(known.argv) and os.path.basename(known.argv[0]).lstrip("-") in SHELLS


def _started(parent: JobFacts, child: JobFacts) -> bool:
    """Whether a Python process started this one as a part of its own run: as a worker, a helper, or a rank."""
    if not procfs.named_python(parent.argv[0] if parent.argv else None):
        return False
    server = invocation(child.argv).what.startswith("from multiprocessing.forkserver")
    forked = child.stat.stack == parent.stat.stack and child.argv == parent.argv
    if spawned(child.argv) or server or forked or kind_of(child.argv, python=False) == "helper":
        return True
    numbers = child.numbers
    ranked = numbers.rank is not None and (numbers.world_size or 1) > 1 and numbers != parent.numbers
    # The first process of a container may have started several jobs.
    return ranked and parent.stat.pid > 1


def _beside(known: JobFacts, top: JobFacts) -> set[int]:
    """The tops of other trees that belong to the same job as `top`."""
    if known.argv and known.argv[0].startswith(RAY_WORKER):
        return _ray_peers(known)
    meeting = meeting_of(known)
    if meeting is None:
        return set()
    tops = set()
    for pid in procfs.pids():
        peer = look_at(pid) if pid not in (known.stat.pid, os.getpid()) else None
        if peer is None or peer.stat.ended or meeting_of(peer) != meeting:
            continue
        if (chain := lineage(pid)) and (above := top_of(chain).stat.pid) != top.stat.pid:
            tops.add(above)
    return tops


def meeting_of(known: JobFacts) -> tuple[str | None, ...] | None:
    """Where the ranks of its job meet: an address and, for a loopback address, the network that it is in.

    None for a process that is not one of several ranks.
    """
    environment, numbers = known.environment or {}, known.numbers
    if numbers.rank is None or (numbers.world_size or 1) < 2 or not environment.get("MASTER_PORT"):
        return None
    # Whoever may read the environment may also read the network.
    network = procfs.network(known.stat.pid) if environment.get("MASTER_ADDR") in LOOPBACK else None
    return (*(environment.get(name, "") for name in MEETING), network)


def _ray_peers(known: JobFacts) -> set[int]:
    """The workers of the same class below the same raylet."""
    raylet = look_at(known.stat.ppid)
    if raylet is None or not raylet.argv or os.path.basename(raylet.argv[0]) != RAYLET:
        return set()
    kind = ray_class(known.argv[0])
    peers = (look_at(pid) for pid in procfs.pids())
    return {
        peer.stat.pid
        for peer in peers
        if peer is not None and peer.stat.ppid == raylet.stat.pid and peer.argv and ray_class(peer.argv[0]) == kind
    }


def ray_class(title: str) -> str | None:
    """The actor's class in the title that Ray gives to a worker; None where it is no worker or an idle one."""
    if not title.startswith(RAY_WORKER) or title.startswith(RAY_IDLE):
        return None
    return title.removeprefix(RAY_WORKER).partition(".")[0].partition("(")[0].strip()
