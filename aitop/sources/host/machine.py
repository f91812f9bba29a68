"""The whole machine: cores, memory, disks, network. Rates are taken between two reads."""

from __future__ import annotations

import os
import re
import time
import timeit
from collections.abc import Iterable
from functools import cache

from aitop.model.host import MachineSample
from aitop.model.text import printable
from aitop.sources import procfs

SECTOR = 512
DENORMAL = 5e-310
# A product that is denormal takes processors of Intel some 150 cycles more, by their manuals: a Xeon took 44 ns with
# the loop, and 10 for others. In a slower loop an AMD EPYC took 22.2 ns for these and 21.6 for others.
SLOW = 1.5
ROUNDS, PRODUCTS = 5, 1000
# What passes through these passes through another interface as well; `eth0.100` is a VLAN on `eth0`.
_VIRTUAL_INTERFACE = re.compile(
    r"(lo$|veth|docker|br-|br\d|virbr|vmbr|ifb|bond|team|dummy|tun|tap|wg|tailscale|cni|flannel|cali|[^.]+\.)"
)


class Machine:
    """Reads the machine; remembers the counters of the read before."""

    def __init__(self) -> None:
        self._time = 0.0
        self._cores: dict[int, procfs.CoreTicks] = {}
        # Bytes since boot, by their names in MachineSample; None where they cannot be read.
        self._counters: dict[str, int | None] = {}
        self._model = _processor()

    def read(self, pid: int | None = None) -> MachineSample:
        """One sample. Network rates are those of `pid`'s network namespace."""
        now, cores, counters = time.monotonic(), procfs.core_ticks(), self._read_counters(pid)
        busy, iowait = _shares(self._cores, cores)
        seconds, before = now - self._time, self._counters
        rates = {
            name: max(0, value - old) / seconds if value is not None and old is not None and seconds > 0 else None
            for name, value in counters.items()
            for old in [before.get(name)]
        }
        self._time, self._cores, self._counters = now, cores, counters
        memory = procfs.numbers(f"{procfs.PROC}/meminfo")
        swap, free = memory.get("SwapTotal"), memory.get("SwapFree")
        return MachineSample(
            cores=len(cores) or os.cpu_count() or 1,
            core_busy=busy,
            iowait=iowait,
            memory_total=memory.get("MemTotal"),
            memory_available=memory.get("MemAvailable"),
            swap_used=swap - free if swap is not None and free is not None else None,
            memory_stalled=procfs.stalled(f"{procfs.PROC}/pressure/memory"),
            model=self._model,
            slow_denormals=_slow_denormals(),
            **rates,
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the cores of the last sample, in the order of its `core_busy`."""
        return tuple(self._cores)

    def _read_counters(self, pid: int | None) -> dict[str, int | None]:
        data = procfs.text(f"{procfs.PROC}/{pid}/net/dev") if pid else None
        received, sent = interface_bytes(data or procfs.text(f"{procfs.PROC}/net/dev") or "") or (None, None)
        read, written = self._disk_sectors() or (None, None)
        pages = procfs.numbers(f"{procfs.PROC}/vmstat").get("pswpin")
        return {
            "net_received": received,
            "net_sent": sent,
            "disk_read": None if read is None else read * SECTOR,
            "disk_write": None if written is None else written * SECTOR,
            "swap_in": None if pages is None else pages * procfs.PAGE_SIZE,
        }

    def _disk_sectors(self) -> tuple[int, int] | None:
        """Sectors read and written by whole physical disks: not partitions, loops or mappings onto them."""
        lines = [line.split() for line in (procfs.text(f"{procfs.PROC}/diskstats") or "").splitlines()]
        disks = [line for line in lines if len(line) > 9 and _is_physical(line[2])]
        return _summed((disk[5], disk[9]) for disk in disks)


@cache
def _slow_denormals() -> bool:
    """Measure whether the processor computes with denormal numbers clearly more slowly. Takes 0.3 ms, once."""
    return _product_seconds(DENORMAL) > SLOW * _product_seconds(1.0)


def _product_seconds(factor: float) -> float:
    """The time of PRODUCTS multiplications, with the loop around them, in the fastest of ROUNDS rounds."""
    return min(timeit.repeat("x * 0.5", f"x = {factor!r}", number=PRODUCTS, repeat=ROUNDS))


def _is_physical(name: str) -> bool:
    return os.path.exists(f"/sys/block/{name.replace('/', '!')}/device")


def interface_bytes(data: str) -> tuple[int, int] | None:
    """Bytes received and sent by real interfaces, from the text of /proc/net/dev; None if there is none."""
    counted = []
    for line in data.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) > 8 and not _VIRTUAL_INTERFACE.match(name.strip()):
            counted.append((fields[0], fields[8]))
    return _summed(counted)


def _summed(counts: Iterable[tuple[str, str]]) -> tuple[int, int] | None:
    """The sums of both columns over the rows with numbers in both; None without such a row."""
    rows = [(int(first), int(second)) for first, second in counts if first.isdigit() and second.isdigit()]
    return (sum(row[0] for row in rows), sum(row[1] for row in rows)) if rows else None


def _shares(
    before: dict[int, procfs.CoreTicks], now: dict[int, procfs.CoreTicks]
) -> tuple[tuple[float, ...] | None, float | None]:
    """Busy share of each core and waiting-for-disk share of all, None until there are two reads."""
    if before.keys() != now.keys():
        return None, None
    busy = []
    total = waiting = 0
    for core, new in now.items():
        old = before[core]
        spent = new.total - old.total
        idle = new.idle - old.idle + new.iowait - old.iowait
        busy.append(min(1.0, max(0.0, 1.0 - idle / spent)) if spent > 0 else 0.0)
        total += max(0, spent)
        waiting += max(0, new.iowait - old.iowait)
    return (tuple(busy), min(1.0, waiting / total)) if total > 0 else (None, None)


def _processor() -> str | None:
    """What the kernel calls the processor; None where it has no name for it, as on many ARM machines."""
    # Only the first core's part is read: for the whole file the kernel has to ask every core.
    head = procfs.read(f"{procfs.PROC}/cpuinfo", 1) or b""
    named = re.search(r"^model name\s*:\s*(.+)$", head.decode("utf-8", "replace"), re.MULTILINE)
    return printable(named[1].strip()) if named else None
