"""What the operating system says of the target's process tree and the machine. Source: /proc, cgroup."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Role = Literal["launcher", "rank", "loader-worker", "helper", "other"]
# A recording with other values is damaged.
RankNumber = Annotated[int, msgspec.Meta(ge=0, lt=10**6)]


class ProcessId(msgspec.Struct, frozen=True):
    """Names a process for good: a later process with the same pid has a later `started` (seconds since the epoch)."""

    pid: int
    started: float


class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One process at one moment. Rates are per second since the previous sample; None until there are two.

    `started` (seconds since the epoch) together with `pid` names a process for good.
    `cpu` is in cores (1.0 = one core fully used). `run_delay` is the share of the interval
    in which the main thread could have run but waited for a core. `state` is the kernel's letter (R S D T Z).
    `read_bytes`/`write_bytes` reached the storage.
    `rank` of a loader worker is the rank it feeds. `main_cpu` is the share of a core that the main thread used.
    `wanting` counts the threads that ran or waited for a core in more than a fiftieth of the interval, `wanted` the
    cores that all threads together ran on or waited for, `waited` the part of them that they only waited for.
    `local_world_size` is how many of the `world_size` ranks were started on this machine.
    `channel` is what the main thread waits in, in the kernel's words; None if it ran since the last sample.
    `part` is what the process does in a server ("API server", "engine", "worker"); None outside of servers.
    `mapped` is its address space in bytes, with private writable memory counted twice. It grows when memory is asked
    for, but not when memory that was asked for before is used for the first time (an array of zeros that is filled).
    """

    pid: Annotated[int, msgspec.Meta(gt=0)]
    ppid: int
    started: float
    role: Role
    name: str
    command: str
    rank: RankNumber | None = None
    local_rank: RankNumber | None = None
    world_size: RankNumber | None = None
    cpu: float | None = None
    rss: int | None = None
    mapped: int | None = None
    threads: int | None = None
    state: str | None = None
    run_delay: float | None = None
    voluntary_switches: float | None = None
    read_bytes: float | None = None
    write_bytes: float | None = None
    main_cpu: float | None = None
    wanting: int | None = None
    wanted: float | None = None
    waited: float | None = None
    local_world_size: RankNumber | None = None
    channel: str | None = None
    part: str | None = None

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.started)


class MachineSample(msgspec.Struct, frozen=True, kw_only=True):
    """The whole machine. `core_busy` and `iowait` are shares (0..1); rates are bytes per second.

    `swap_in` is what was read back from swap. `memory_stalled` is the share (0..1) of the last 10 s in which some
    thread waited for memory to be freed or read back. `model` is what its processor is called. `slow_denormals` says
    whether that takes clearly longer to compute with denormal numbers (below 2.2e-308 in float64).
    """

    cores: Annotated[int, msgspec.Meta(gt=0)]
    core_busy: tuple[float, ...] | None = None
    iowait: float | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    swap_used: int | None = None
    disk_read: float | None = None
    disk_write: float | None = None
    net_received: float | None = None
    net_sent: float | None = None
    swap_in: float | None = None
    memory_stalled: float | None = None
    model: str | None = None
    slow_denormals: bool | None = None


class CgroupSample(msgspec.Struct, frozen=True, kw_only=True):
    """The target's control group. `cpu_quota` in cores and `memory_limit` in bytes are None when unlimited.

    `throttled` is the share of enforcement periods in which the group was throttled since the last sample,
    `memory_stalled` that of the last 10 s in which some thread of it waited for memory.
    """

    version: int
    cpu_quota: float | None = None
    throttled: float | None = None
    memory_limit: int | None = None
    memory_used: int | None = None
    memory_stalled: float | None = None


class HostSample(msgspec.Struct, frozen=True, kw_only=True, tag="host"):
    """The target's tree and the machine at `time` (monotonic seconds).

    `usable_cores` is what the target may use: its affinity mask and its quota taken together. `places` are the places
    in `machine.core_busy` of the cores in that mask, None if that is all of them, or not known.
    `engine` names the serving software of the tree with its version, None where none was recognised.
    """

    time: float
    processes: tuple[ProcessSample, ...]
    machine: MachineSample
    cgroup: CgroupSample | None = None
    usable_cores: float | None = None
    places: tuple[int, ...] | None = None
    engine: str | None = None

    def id_of(self, pid: int) -> ProcessId | None:
        """The process that has this pid in the sample, which another one may get later; None where there is none."""
        return next((process.id for process in self.processes if process.pid == pid), None)

    @property
    def living_ranks(self) -> tuple[ProcessSample, ...]:
        """The ranks that have not ended."""
        return tuple(process for process in self.processes if process.role == "rank" and process.state != "Z")

    @property
    def cores_used(self) -> float | None:
        """Cores that its processes use together; None where that is known of none of them."""
        known = [process.cpu for process in self.processes if process.cpu is not None]
        return sum(known) if known else None

    @property
    def idle_cores(self) -> float | None:
        """How many of the cores that the target may run on are idle, whatever its quota; None where not known."""
        busy = self.machine.core_busy
        if busy is None:
            return None
        mine = busy if self.places is None else [busy[place] for place in self.places if 0 <= place < len(busy)]
        return sum(max(0.0, 1.0 - one) for one in mine)

    @property
    def cores_of_others(self) -> float | None:
        """Cores that other programs use, this monitor among them; None where that is not known."""
        busy, used = self.machine.core_busy, self.cores_used
        return None if busy is None or used is None else max(0.0, sum(busy) - used)

    @property
    def cores_taken(self) -> float | None:
        """How many of the cores that the target may use other programs take, this monitor among them.

        Cores outside of its mask do not count. With a quota, idle cores first cover what the quota leaves unused. None
        where that is not known.
        """
        idle, used = self.idle_cores, self.cores_used
        if idle is None or used is None:
            return None
        usable = float(len(self.machine.core_busy or ())) if self.usable_cores is None else self.usable_cores
        return max(0.0, usable - used - idle)

    @property
    def memory_room(self) -> tuple[int, int] | None:
        """Bytes that the target can still take, and out of how many, by the group's limit or the machine's memory.

        Of the two limits the one with less room counts. None where neither is known.
        """
        rooms = []
        machine, group = self.machine, self.cgroup
        if machine.memory_available is not None and machine.memory_total:
            rooms.append((machine.memory_available, machine.memory_total))
        if group is not None and group.memory_limit and group.memory_used is not None:
            rooms.append((max(0, group.memory_limit - group.memory_used), group.memory_limit))
        return min(rooms, default=None)
