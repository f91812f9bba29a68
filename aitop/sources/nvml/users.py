"""One look at who uses the GPUs, for choosing a process; separate from watching one."""

from __future__ import annotations

import threading

from aitop.sources.nvml import library
from aitop.sources.nvml.gate import DeviceLostError, Gate
from aitop.sources.nvml.processes import running
from aitop.sources.source import SourceError

# pid to the indices of its devices and the bytes it has on them together, None where NVML does not tell.
GpuUsers = dict[int, tuple[tuple[int, ...], int | None]]


def gpu_users(timeout: float = 1.0) -> GpuUsers:
    """Compute processes of all devices; empty where there is no NVML or where it does not answer in `timeout` seconds.

    NVML is asked in a daemon thread: a driver that hangs keeps the thread, not the caller.
    """
    found: list[GpuUsers] = []
    thread = threading.Thread(target=lambda: found.append(_look(timeout)), name="aitop-gpu-users", daemon=True)
    thread.start()
    thread.join(timeout)
    return found[0] if found else {}


def _look(timeout: float) -> GpuUsers:
    try:
        with library.turn(timeout):
            nvml = library.start()
            try:
                return _users_of(nvml)
            finally:
                library.stop(nvml)
    except SourceError:
        return {}


def _users_of(nvml: object) -> GpuUsers:
    gate = Gate(nvml)
    users: GpuUsers = {}
    for index, handle in library.handles(nvml).items():
        try:
            listed = None if handle is None else running(gate, handle)
        except DeviceLostError:
            listed = None
        for pid, memory in (listed or {}).items():
            indices, before = users.get(pid, ((), None))
            together = before if memory is None else (before or 0) + memory
            users[pid] = ((*indices, index), together)
    return users
