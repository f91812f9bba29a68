"""The host source: the target's tree and the machine, once an interval."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aitop.model.event import Sample
from aitop.model.host import CgroupSample, HostSample
from aitop.model.source import SourceName
from aitop.sources import procfs
from aitop.sources.host.cgroup import Cgroup
from aitop.sources.host.machine import Machine
from aitop.sources.host.rates import ProcessRates
from aitop.sources.host.roles import WORKER_NAME, Place, ranks_of
from aitop.sources.host.tree import Member, ProcessProbe, ProcessTree, Stepping, places_of
from aitop.sources.source import Source, SourceError

if TYPE_CHECKING:
    from aitop.sources.servers.recognition import Server

# CPU time is counted in steps of 10 ms: rates over less than this say little.
SHORTEST_INTERVAL = 0.3

Recognise = Callable[[Sequence[Member]], "Server | None"]


class LivingProcesses(NamedTuple):
    """The living processes of one read, by what they do.

    `ranks` are in the order of their numbers; `launchers` only started them. `parents` have Python processes below them
    which may do their work. `server` is None where none was recognised; `engines` run the loop of its engine, in the
    order of their pids. Processes `around` these only hand requests to an engine or compute for it: what they do is
    measured in the engine. `fronts` take requests from the network for processes that answer them.
    """

    pids: frozenset[int] = frozenset()
    ranks: tuple[int, ...] = ()
    launchers: frozenset[int] = frozenset()
    parents: frozenset[int] = frozenset()
    server: Server | None = None
    engines: tuple[int, ...] = ()
    around: frozenset[int] = frozenset()
    fronts: tuple[int, ...] = ()


class HostSource(Source):
    """Processes below the given pids, machine and control group. A pid means the process that had it first.

    `seen` is replaced as a whole at each read: any thread may look at it.
    """

    name: SourceName = "host"

    def __init__(
        self,
        pids: Sequence[int],
        *,
        interval: float = 1.0,
        stepping: Stepping = tuple,
        recognise: Recognise = lambda _: None,
    ) -> None:
        """`stepping` has the pids that were seen to step; `recognise` says which server the living processes are."""
        self.interval = interval
        self._recognise = recognise
        self._usual_interval = interval
        self._starts: dict[int, int | None] = dict.fromkeys(pids)
        self._tree = ProcessTree(self._starts.items())
        self._probe = ProcessProbe(stepping=stepping)
        self._rates = ProcessRates()
        self._machine = Machine()
        self._cgroup: tuple[tuple[int, int], Cgroup] | None = None
        self._first: HostSample | None = None
        self.seen = LivingProcesses()
        self._looked = threading.Event()

    def open(self) -> None:
        """Take the first sample, from whose counters rates are made later. Raises SourceError without a process."""
        self._tree = ProcessTree(self._starts.items())
        self._rates, self._machine, self._cgroup = ProcessRates(), Machine(), None
        try:
            self._first = self._sample()
        finally:
            self._looked.set()
        self._starts = self._tree.tops()

    def read(self) -> list[Sample]:
        """One HostSample. The first after opening has no rates yet, and the next may come after 0.3 s already."""
        if self._first is not None:
            first, self._first = self._first, None
            self.interval = min(SHORTEST_INTERVAL, self._usual_interval)
            return [first]
        self.interval = self._usual_interval
        return [self._sample()]

    def wait_for_look(self, seconds: float) -> None:
        """Wait until the processes were looked at for the first time, or could not be. Any thread may ask."""
        self._looked.wait(seconds)

    def _sample(self) -> HostSample:
        now = time.monotonic()
        members = self._tree.update()
        living = [member for member in members if member.stat.state != "Z"]
        if not living:
            self.seen = LivingProcesses()
            asked = ", ".join(str(pid) for pid in self._starts)
            if not members and not all(procfs.gone(pid) for pid in self._starts):
                raise SourceError("failed", f"process {asked} cannot be read just now")
            raise SourceError("absent", f"process {asked} has ended")
        server = self._recognise(living)
        parts = server.parts if server else {}
        places = places_of(members, self._probe)
        for pid, part in parts.items():
            # A server's processes are started as loader workers are, and feed nobody.
            if places[pid].role == "loader-worker":
                places[pid] = Place("other")
            elif part.name == "launcher":
                places[pid] = Place("launcher")
        pids = frozenset(member.stat.pid for member in living)
        engines = server.loops if server else ()
        self.seen = LivingProcesses(
            pids=pids,
            ranks=tuple(pid for pid in ranks_of(places) if pid in pids),
            launchers=frozenset(pid for pid in pids if places[pid].role == "launcher"),
            parents=parents_of_workers(living, places),
            server=server,
            engines=engines,
            around=around_engines(living, engines),
            fronts=server.fronts if server else (),
        )
        speaker = next((member for member in living if member.stat.pid in self.seen.ranks[:1]), living[0])
        cgroup = self._read_cgroup(speaker)
        machine = self._machine.read(speaker.stat.pid)
        mine = allowed_cores(self._working(living, places, parts))
        own = tuple(place for place, core in enumerate(self._machine.numbers) if core in mine)
        return HostSample(
            time=now,
            processes=self._rates.samples(members, places, {pid: part.name for pid, part in parts.items()}),
            machine=machine,
            cgroup=cgroup,
            usable_cores=usable_cores(mine, cgroup),
            # Some containers number their cores anew in /proc, and not in the mask.
            places=own if len(own) == len(mine) < machine.cores else None,
            engine=server.name if server else None,
        )

    @staticmethod
    def _working(living: Sequence[Member], places: Mapping[int, Place], parts: Collection[int]) -> list[int]:
        """The ranks, their workers and the parts of a server; without any, all processes."""
        pids = [member.stat.pid for member in living]
        return [pid for pid in pids if pid in parts or places[pid].role in ("rank", "loader-worker")] or pids

    def _read_cgroup(self, speaker: Member) -> CgroupSample | None:
        """The group of the first rank, which need not be the launcher's."""
        if self._cgroup is None or self._cgroup[0] != speaker.key:
            self._cgroup = speaker.key, Cgroup(speaker.stat.pid)
        return self._cgroup[1].read()


def parents_of_workers(members: Sequence[Member], places: Mapping[int, Place]) -> frozenset[int]:
    """The processes above Python processes that are neither ranks nor helpers, nor workers of a torch DataLoader."""
    above = {member.stat.pid: member.ppid for member in members}
    workers = [
        member.stat.pid
        for member in members
        if places[member.stat.pid].role in ("loader-worker", "other")
        and member.python
        and not member.stat.comm.startswith(WORKER_NAME)
    ]
    return frozenset(pid for worker in workers for pid in _line(above, worker))


def around_engines(members: Sequence[Member], engines: Sequence[int]) -> frozenset[int]:
    """The processes above and below the engines."""
    above = {member.stat.pid: member.ppid for member in members}
    around = {pid for engine in engines for pid in _line(above, engine)}
    around.update(pid for pid in above if not set(engines).isdisjoint(_line(above, pid)))
    return frozenset(around.difference(engines))


def _line(above: Mapping[int, int], pid: int) -> Iterator[int]:
    """The ancestors of a process; `above` has each one's parent. Ends at a loop: one may be reparented below itself."""
    seen = {pid}
    while (pid := above.get(pid, 0)) in above and pid not in seen:
        seen.add(pid)
        yield pid


def allowed_cores(working: Iterable[int]) -> set[int]:
    """The numbers of the cores that are in the affinity mask of any thread of these processes; empty if none tells.

    Each thread has a mask of its own: vLLM and OpenMP bind those that compute, the main one among them.
    """
    cores: set[int] = set()
    for pid in working:
        for thread in (pid, *procfs.numbered(f"{procfs.PROC}/{pid}/task")):
            if len(cores) >= (os.cpu_count() or 1):
                break
            # It may have ended since.
            with contextlib.suppress(OSError):
                cores |= os.sched_getaffinity(thread)
    return cores


def usable_cores(cores: Collection[int], cgroup: CgroupSample | None) -> float | None:
    """How many of the cores of an affinity mask may be used, given the quota; None if the mask is not known."""
    if not cores:
        return None
    quota = cgroup.cpu_quota if cgroup else None
    return min(float(len(cores)), quota) if quota is not None else float(len(cores))
