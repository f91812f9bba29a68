"""One look at who uses the GPUs, for choosing a process; separate from watching one."""

from __future__ import annotations

import contextlib
import threading

from aitop.sources.nvml import library
from aitop.sources.nvml.gate import DeviceLostError, Gate
from aitop.sources.nvml.processes import running
from aitop.sources.source import SourceError

# By pid, the indices of its devices and the bytes it has on them together, None where NVML does not tell.
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
    users: GpuUsers = {}
    try:
        with library.started(timeout) as nvml:
            gate = Gate(nvml)
            for index, handle in library.handles(nvml).items():
                with contextlib.suppress(DeviceLostError):
                    for pid, memory in ((running(gate, handle) if handle else None) or {}).items():
                        indices, before = users.get(pid, ((), None))
                        users[pid] = (*indices, index), before if memory is None else (before or 0) + memory
    except SourceError:
        return {}
    return users
