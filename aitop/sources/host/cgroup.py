"""The control group of a process: quota, throttling and memory, the tightest of all levels. cgroup v1, v2, hybrid."""

from __future__ import annotations

import os
from typing import NamedTuple

from aitop.model.host import CgroupSample
from aitop.sources import procfs

# v1 writes "no limit" as the largest number of pages; nothing real comes near.
UNLIMITED = 1 << 60


class Hierarchy(NamedTuple):
    """The folders of one controller's groups of a process, from its own group up to the mount."""

    version: int
    levels: tuple[str, ...]


class Cgroup:
    """The groups of one process. `root` stands for / and exists for tests."""

    def __init__(self, pid: int, root: str = "") -> None:
        self._root = root
        membership = procfs.text(f"{root}/proc/{pid}/cgroup") or ""
        mounts = procfs.text(f"{root}/proc/self/mountinfo") or ""
        self._cpu = self._find("cpu", membership, mounts)
        self._memory = self._find("memory", membership, mounts)
        self._periods: tuple[int, int] | None = None

    def _find(self, controller: str, membership: str, mounts: str) -> Hierarchy | None:
        """The hierarchy that holds a controller: a v1 one that names it, else v2, whose line names none."""
        groups = [line.split(":", 2) for line in membership.splitlines() if line.count(":") >= 2]
        first = next((path for _, names, path in groups if controller in names.split(",")), None)
        second = next((path for _, names, path in groups if not names), None)
        for version, kind, path in ((1, "cgroup", first), (2, "cgroup2", second)):
            for line in mounts.splitlines() if path is not None else ():
                # See proc(5): …, the folder that is mounted, where it is mounted, … - type, device, options.
                left, _, right = line.partition(" - ")
                place, system = left.split(), right.split()
                if len(place) < 5 or len(system) < 3 or system[0] != kind:
                    continue
                if version == 2 or controller in system[2].split(","):
                    levels = self._levels(path or "", place[3].rstrip("/"), place[4])
                    return Hierarchy(version, levels) if levels else None
        return None

    def _levels(self, path: str, mounted: str, point: str) -> tuple[str, ...]:
        """Folders from the group up to the mount. Empty for a group outside of what is mounted here, as another
        container's is: the mount has our own limits, and they are not its.
        """
        names = [name for name in path.removeprefix(mounted).split("/") if name]
        top = self._root + point
        folders = ["/".join((top, *names[:length])) for length in range(len(names), 0, -1)]
        inside = ".." not in names and (not folders or os.path.isdir(folders[0]))
        return (*folders, top) if inside else ()

    def read(self) -> CgroupSample | None:
        """Limits and use now; None where the process has no readable control group."""
        if self._cpu is None and self._memory is None:
            return None
        quota, folder = self._tightest_quota()
        limit, used = self._tightest_memory()
        return CgroupSample(
            version=max(hierarchy.version for hierarchy in (self._cpu, self._memory) if hierarchy),
            cpu_quota=quota,
            throttled=self._throttled(folder),
            memory_limit=limit,
            memory_used=used,
            memory_stalled=procfs.stalled(f"{self._memory.levels[0]}/memory.pressure") if self._memory else None,
        )

    def _tightest_quota(self) -> tuple[float | None, str | None]:
        """The smallest quota in cores on the way up, and the folder it is set in."""
        if self._cpu is None:
            return None, None
        quotas = [(quota, level) for level in self._cpu.levels if (quota := _quota(level, self._cpu.version))]
        return min(quotas, default=(None, None))

    def _throttled(self, folder: str | None) -> float | None:
        """The share of the periods since the last call in which the group ran out of its quota."""
        fields = procfs.numbers(f"{folder}/cpu.stat") if folder is not None else {}
        if "nr_periods" not in fields or "nr_throttled" not in fields:
            return None
        now = fields["nr_periods"], fields["nr_throttled"]
        before, self._periods = self._periods, now
        if before is None or now[0] <= before[0]:
            return None
        return min(1.0, max(0.0, (now[1] - before[1]) / (now[0] - before[0])))

    def _tightest_memory(self) -> tuple[int | None, int | None]:
        """Limit and use of the level with the least room left; without a limit, the use of the group itself."""
        if self._memory is None:
            return None, None
        levels = [_memory(level, self._memory.version) for level in self._memory.levels]
        limited = [(limit - (used or 0), limit, used) for limit, used in levels if limit is not None]
        return min(limited, key=lambda level: level[0])[1:] if limited else levels[0]


def _number(path: str) -> int | None:
    value = procfs.text(path) or ""
    return int(value) if value.isascii() and value.isdigit() else None


def _quota(level: str, version: int) -> float | None:
    """A level's CPU quota in cores, None when it sets none."""
    if version == 2:
        words = (procfs.text(f"{level}/cpu.max") or "max").split()
    else:
        words = [procfs.text(f"{level}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _memory(level: str, version: int) -> tuple[int | None, int | None]:
    """A level's limit, None when it sets none, and the bytes in use that the kernel could not simply drop."""
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (_number(f"{level}/{name}") for name in names)
    if used is not None:
        fields, prefix = procfs.numbers(f"{level}/memory.stat"), "" if version == 2 else "total_"
        used = max(0, used - fields.get(f"{prefix}inactive_file", 0) - fields.get(f"{prefix}active_file", 0))
    return limit if limit is not None and 0 < limit < UNLIMITED else None, used
