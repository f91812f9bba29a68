"""The control group of a process: quota, throttling and memory, the tightest of all levels. cgroup v1, v2, hybrid."""

from __future__ import annotations

import os
from typing import NamedTuple

from aitop.model.host import CgroupSample
from aitop.sources import procfs

# v1 writes "no limit" as the largest number of pages; nothing real comes near.
UNLIMITED = 1 << 60


class Hierarchy(NamedTuple):
    """Where one controller's groups of a process lie, from its own group up to the mount."""

    version: int
    levels: tuple[str, ...]


class _Mount(NamedTuple):
    root: str
    point: str
    version: int
    controllers: frozenset[str]


def _mounts(mountinfo: str) -> list[_Mount]:
    """The cgroup mounts in the text of /proc/self/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if not separator or len(before) < 5 or len(after) < 3:
            continue
        if after[0] == "cgroup2":
            found.append(_Mount(before[3], before[4], 2, frozenset()))
        elif after[0] == "cgroup":
            found.append(_Mount(before[3], before[4], 1, frozenset(after[2].split(","))))
    return found


def _groups(membership: str) -> list[tuple[frozenset[str], str]]:
    """Controllers and path from the text of /proc/PID/cgroup; v2's line has no controllers."""
    parts = (line.split(":", 2) for line in membership.splitlines())
    return [(frozenset(filter(None, part[1].split(","))), part[2]) for part in parts if len(part) == 3]


class Cgroup:
    """The groups of one process. `root` stands for / and exists for tests."""

    def __init__(self, pid: int, root: str = "") -> None:
        self._root = root
        self._membership = procfs.text(f"{root}/proc/{pid}/cgroup") or ""
        mounts = _mounts(procfs.text(f"{root}/proc/self/mountinfo") or "")
        self._cpu = self._find("cpu", mounts)
        self._memory = self._find("memory", mounts)
        self._periods: tuple[int, int] | None = None

    def _find(self, controller: str, mounts: list[_Mount]) -> Hierarchy | None:
        """The hierarchy that holds a controller: a v1 one that names it, else v2."""
        groups = _groups(self._membership)
        for version in (1, 2):
            path = next((path for names, path in groups if (controller in names if version == 1 else not names)), None)
            for mount in mounts:
                wanted = mount.version == version and (version == 2 or controller in mount.controllers)
                if path is not None and wanted:
                    return Hierarchy(version, self._levels(path, mount))
        return None

    def _levels(self, path: str, mount: _Mount) -> tuple[str, ...]:
        """Folders from the group up to the mount. A group outside what is mounted here leaves the mount alone."""
        inside = path.removeprefix(mount.root.rstrip("/")) if path.startswith(mount.root.rstrip("/")) else path
        names = [name for name in inside.split("/") if name]
        top = self._root + mount.point
        folders = ["/".join((top, *names[:length])) for length in range(len(names), 0, -1)]
        if ".." in names or (folders and not os.path.isdir(folders[0])):
            return (top,)
        return (*folders, top)

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
        if folder is None:
            return None
        fields = _fields(f"{folder}/cpu.stat")
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
        levels = [
            (_limit(level, self._memory.version), _used(level, self._memory.version), level)
            for level in self._memory.levels
        ]
        limited = [(limit - (used or 0), limit, used) for limit, used, _ in levels if limit is not None]
        if limited:
            _, limit, used = min(limited, key=lambda level: level[0])
            return limit, used
        return None, levels[0][1]


def _number(path: str) -> int | None:
    value = procfs.text(path)
    try:
        return int(value) if value else None
    except ValueError:
        return None


def _fields(path: str) -> dict[str, int]:
    """A file of `name number` lines."""
    pairs = (line.split() for line in (procfs.text(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isascii() and pair[1].isdigit()}


def _quota(level: str, version: int) -> float | None:
    """A level's CPU quota in cores, None when it sets none."""
    if version == 2:
        words = (procfs.text(f"{level}/cpu.max") or "max").split()
        if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words) or not int(words[1]):
            return None
        return int(words[0]) / int(words[1])
    quota, period = _number(f"{level}/cpu.cfs_quota_us"), _number(f"{level}/cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 and period > 0 else None


def _limit(level: str, version: int) -> int | None:
    """A level's memory limit in bytes, None when it sets none."""
    limit = _number(f"{level}/memory.max" if version == 2 else f"{level}/memory.limit_in_bytes")
    return limit if limit is not None and 0 < limit < UNLIMITED else None


def _used(level: str, version: int) -> int | None:
    """Memory in bytes that the kernel could not simply drop: without the cache of files."""
    used = _number(f"{level}/memory.current" if version == 2 else f"{level}/memory.usage_in_bytes")
    if used is None:
        return None
    fields, prefix = _fields(f"{level}/memory.stat"), "" if version == 2 else "total_"
    return max(0, used - fields.get(f"{prefix}inactive_file", 0) - fields.get(f"{prefix}active_file", 0))
