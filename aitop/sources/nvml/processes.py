"""Which processes use a device: read while a tree is watched, or once for all devices, to choose a process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import pynvml

from aitop.model.gpu import DeviceUsers, GpuProcess
from aitop.sources import plausible, procfs
from aitop.sources.nvml import library
from aitop.sources.nvml.library import SYSTEM, DeviceLostError, Gate, Handle
from aitop.sources.source import SourceError

RUNNING = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
FIRST_LOOK_BACK_SECONDS = 2.0


def running(gate: Gate, handle: Handle) -> dict[int, int | None] | None:
    """Compute processes of a device: pid to bytes of device memory. None where NVML does not tell."""
    listed = gate.first(handle, RUNNING)
    if listed is None:
        return None
    memory_by_pid: dict[int, int | None] = {}
    for entry in listed:
        if 0 < entry.pid < plausible.HIGHEST_PID:
            memory = plausible.whole(entry.usedGpuMemory, 0, plausible.HIGHEST_BYTES)
            known = memory_by_pid.get(entry.pid)
            # A process with contexts on several MIG slices is listed once for each.
            memory_by_pid[entry.pid] = memory if known is None else known + (memory or 0)
    return memory_by_pid


class ProcessMeter:
    """The processes of one device with their shares of it."""

    def __init__(self, gate: Gate, handle: Handle) -> None:
        self._gate = gate
        self._handle = handle
        self._names: dict[int, str | None] = {}
        # NVML's clock here is the wall clock in microseconds.
        self._seen_until = int((time.time() - FIRST_LOOK_BACK_SECONDS) * 1e6)
        self.minor = gate.ask(handle, "nvmlDeviceGetMinorNumber")

    def read(self, busy: float | None) -> tuple[GpuProcess, ...] | None:
        """The processes, None where NVML does not list them."""
        listed = running(self._gate, self._handle)
        if listed is None:
            return None
        self._names = {pid: self._names[pid] if pid in self._names else self._name(pid) for pid in listed}
        share_of = self._shares(busy, bool(listed))
        return tuple(
            GpuProcess(pid=pid, name=self._names[pid], memory=memory, sm=share_of(pid))
            for pid, memory in sorted(listed.items())
        )

    def _shares(self, busy: float | None, anybody: bool) -> Callable[[int], float | None]:
        """A function from pid to its share of the SMs.

        NVML lists only processes that have used the device since we last asked.
        """
        samples = (
            self._gate.ask(self._handle, "nvmlDeviceGetProcessUtilization", self._seen_until, variant="shares")
            if anybody
            else None
        )
        if not samples:
            # No sample at all: nobody worked if the device says so too, else there is no new figure yet.
            nothing = 0.0 if busy == 0 else None
            return lambda pid: nothing
        newest = {sample.pid: sample for sample in sorted(samples, key=lambda sample: int(sample.timeStamp))}
        stamp = max(int(sample.timeStamp) for sample in samples)
        if self._seen_until < stamp < (time.time() + 60) * 1e6:
            self._seen_until = stamp

        return lambda pid: plausible.share(newest[pid].smUtil) if pid in newest else 0.0

    def _name(self, pid: int) -> str | None:
        name = procfs.text(f"{procfs.PROC}/{pid}/comm")
        if name is None:
            name = self._gate.ask(SYSTEM, "nvmlSystemGetProcessName", pid, variant="name")
        return plausible.clean(name)


def gpu_users(timeout: float = 1.0) -> DeviceUsers:
    """Compute processes of all devices; empty where there is no NVML or where it does not answer in `timeout` seconds.

    NVML is asked in a daemon thread: a driver that hangs keeps the thread, not the caller.
    """
    answers: list[DeviceUsers] = []
    thread = threading.Thread(target=lambda: answers.append(_look(timeout)), name="aitop-gpu-users", daemon=True)
    thread.start()
    thread.join(timeout)
    return answers[0] if answers else {}


def _look(timeout: float) -> DeviceUsers:
    users: dict[int, tuple[tuple[int, ...], int | None]] = {}
    try:
        with library.started(timeout):
            gate = Gate(pynvml)
            for index, handle in library.handles().items():
                with contextlib.suppress(DeviceLostError):
                    for pid, memory in ((running(gate, handle) if handle else None) or {}).items():
                        indices, before = users.get(pid, ((), None))
                        users[pid] = (*indices, index), before if memory is None else (before or 0) + memory
    except SourceError:
        return {}
    return users
