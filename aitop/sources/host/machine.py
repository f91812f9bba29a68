"""The whole machine: cores, memory, disks, network. Rates are taken between two reads."""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple

import psutil

from aitop.model.host import MachineSample
from aitop.sources import procfs

SECTOR = 512
PAGE = os.sysconf("SC_PAGE_SIZE")
_VIRTUAL_INTERFACE = re.compile(r"(lo$|veth|docker|br-|virbr|ifb|bond|dummy|tun|tap|cni|flannel|cali)")


class CoreTimes(NamedTuple):
    """Seconds of one core since boot."""

    total: float
    idle: float
    iowait: float


class Counters(NamedTuple):
    """Everything that counts up. `disk` is bytes read and written, `net` received and sent, `swapped_in` read back."""

    time: float
    cores: tuple[CoreTimes, ...]
    disk: tuple[int, int] | None
    net: tuple[int, int] | None
    swapped_in: int | None = None


class Machine:
    """Reads the machine; remembers the counters of the read before."""

    def __init__(self) -> None:
        self._before: Counters | None = None
        self._physical: dict[str, bool] = {}
        self._numa = numa_nodes()

    def read(self, pid: int | None = None) -> MachineSample:
        """One sample. Network rates are those of `pid`'s network namespace."""
        now = Counters(time.monotonic(), _core_times(), self._disk(), self._net(pid), _swapped_in())
        before, self._before = self._before, now
        memory = meminfo()
        seconds = now.time - before.time if before else 0.0
        disk = _rates(before.disk if before else None, now.disk, seconds)
        net = _rates(before.net if before else None, now.net, seconds)
        busy, iowait = _shares(before.cores if before else (), now.cores)
        back = (before.swapped_in if before else None, now.swapped_in)
        swap, free = memory.get("SwapTotal"), memory.get("SwapFree")
        return MachineSample(
            cores=len(now.cores) or os.cpu_count() or 1,
            core_busy=busy,
            iowait=iowait,
            load=_load(),
            memory_total=memory.get("MemTotal"),
            memory_available=memory.get("MemAvailable"),
            swap_total=swap,
            swap_used=swap - free if swap is not None and free is not None else None,
            disk_read=disk[0],
            disk_write=disk[1],
            net_received=net[0],
            net_sent=net[1],
            numa_nodes=self._numa,
            swap_in=None if back[0] is None or back[1] is None or seconds <= 0 else max(0, back[1] - back[0]) / seconds,
            memory_stalled=procfs.stalled(f"{procfs.PROC}/pressure/memory"),
        )

    def _disk(self) -> tuple[int, int] | None:
        """Bytes read and written by whole physical disks: not partitions, loops or mappings onto them."""
        data = procfs.text(f"{procfs.PROC}/diskstats")
        if data is None:
            return None
        read = written = 0
        for line in data.splitlines():
            fields = line.split()
            if len(fields) > 9 and fields[5].isdigit() and fields[9].isdigit() and self._is_physical(fields[2]):
                read += int(fields[5]) * SECTOR
                written += int(fields[9]) * SECTOR
        return (read, written) if any(self._physical.values()) else None

    def _is_physical(self, name: str) -> bool:
        if name not in self._physical:
            self._physical[name] = os.path.exists(f"/sys/block/{name.replace('/', '!')}/device")
        return self._physical[name]

    @staticmethod
    def _net(pid: int | None) -> tuple[int, int] | None:
        data = procfs.text(f"{procfs.PROC}/{pid}/net/dev") if pid else None
        return interface_bytes(data or procfs.text(f"{procfs.PROC}/net/dev") or "")


def interface_bytes(data: str) -> tuple[int, int] | None:
    """Bytes received and sent by real interfaces, from the text of /proc/net/dev; None if there is none."""
    totals = [0, 0]
    found = False
    for line in data.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if not colon or len(fields) < 9 or _VIRTUAL_INTERFACE.match(name.strip()):
            continue
        if fields[0].isdigit() and fields[8].isdigit():
            totals[0] += int(fields[0])
            totals[1] += int(fields[8])
            found = True
    return (totals[0], totals[1]) if found else None


def meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = {}
    for line in (procfs.text(f"{procfs.PROC}/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdigit():
            found[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return found


def _swapped_in() -> int | None:
    """Bytes read back from swap since boot."""
    for line in (procfs.text(f"{procfs.PROC}/vmstat") or "").splitlines():
        name, _, pages = line.partition(" ")
        if name == "pswpin" and pages.isdigit():
            return int(pages) * PAGE
    return None


def numa_nodes() -> int | None:
    """How many NUMA nodes there are, None where the kernel does not say."""
    try:
        names = os.listdir("/sys/devices/system/node")
    except OSError:
        return None
    return sum(1 for name in names if re.fullmatch(r"node\d+", name)) or None


def _core_times() -> tuple[CoreTimes, ...]:
    try:
        cores = psutil.cpu_times(percpu=True)
    except (OSError, ValueError):
        return ()
    # The kernel counts guest time in user time as well.
    return tuple(
        CoreTimes(sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0), core.idle, core.iowait)
        for core in cores
    )


def _shares(before: tuple[CoreTimes, ...], now: tuple[CoreTimes, ...]) -> tuple[tuple[float, ...] | None, float | None]:
    """Busy share of each core and waiting-for-disk share of all, None until there are two reads."""
    if not before or len(before) != len(now):
        return None, None
    busy = []
    total = waiting = 0.0
    for old, new in zip(before, now, strict=True):
        spent = new.total - old.total
        idle = new.idle - old.idle + new.iowait - old.iowait
        busy.append(min(1.0, max(0.0, 1.0 - idle / spent)) if spent > 0 else 0.0)
        total += max(0.0, spent)
        waiting += max(0.0, new.iowait - old.iowait)
    return (tuple(busy), min(1.0, waiting / total)) if total > 0 else (None, None)


def _rates(
    before: tuple[int, int] | None, now: tuple[int, int] | None, seconds: float
) -> tuple[float | None, float | None]:
    if before is None or now is None or seconds <= 0:
        return None, None
    return max(0, now[0] - before[0]) / seconds, max(0, now[1] - before[1]) / seconds


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
