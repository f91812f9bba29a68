"""The GPU source: every second, all devices of the machine."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Collection, Mapping
from typing import Any

import pynvml

from aitop.model.event import Sample
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.source import SourceName
from aitop.sources.nvml import library
from aitop.sources.nvml.device import Device
from aitop.sources.nvml.library import SYSTEM, DeviceLostError, Gate, Handle
from aitop.sources.source import Source, SourceError

WAIT_FOR_TURN_SECONDS = 2.0


class NvmlSource(Source):
    """All devices of the driver, none of them marked as `mine`. `own` has the indices of those that matter most."""

    name: SourceName = "gpu"

    def __init__(self, own: Collection[int] = ()) -> None:
        self._own = own
        self._started = False
        self._gate: Gate | None = None
        self._devices: list[Device] = []
        self._lost_at_start: list[int] = []
        self._xids: XidWatch | None = None
        self._turn = 0

    def open(self) -> None:
        """Start NVML and look at the devices. Raises SourceError."""
        with library.turn(WAIT_FOR_TURN_SECONDS):
            library.start()
            self._started = True
            handles = library.handles()
            gate = self._gate = Gate(pynvml)
            self._devices, self._lost_at_start = [], []
            for index, handle in handles.items():
                try:
                    if handle is None:
                        raise DeviceLostError(f"gpu{index}")
                    self._devices.append(Device(gate, index, handle))
                except DeviceLostError:
                    self._lost_at_start.append(index)
            self._xids = XidWatch(gate, {device.index: device.handle for device in self._devices})

    def read(self) -> list[Sample]:
        """One sample of all devices. Raises SourceError when NVML has stopped answering for every one of them."""
        gate, xids = self._gate, self._xids
        if gate is None or xids is None:
            raise SourceError("failed", "the GPU source is not open")
        with library.turn(WAIT_FOR_TURN_SECONDS):
            gate.answered, gate.last_error = 0, None
            self._measure_one_pcie()
            now = time.monotonic()
            xids.poll()
            devices = [device.read(now, xids.of(device.index)) for device in self._devices]
        if gate.answered == 0 and any(not device.lost for device in self._devices):
            raise SourceError("failed", f"NVML no longer answers: {gate.last_error or 'nothing is supported'}")
        devices += [GpuDevice(index=index, lost=True) for index in self._lost_at_start]
        devices.sort(key=lambda device: device.index)
        return [GpuSample(time=now, devices=tuple(devices))]

    def close(self) -> None:
        """Give everything back to NVML; harmless if it was never opened."""
        if not self._started:
            return
        with library.turn(WAIT_FOR_TURN_SECONDS):
            for device in self._devices:
                device.close()
            if self._xids is not None:
                self._xids.close()
            library.stop()
        self._devices, self._xids, self._gate, self._started = [], None, None, False

    def _measure_one_pcie(self) -> None:
        """Ask one device for its PCIe traffic, one of `own` first; the others keep their last figure.

        Each direction takes the 20 ms over which the driver counts: eight devices would cost a third of a second.
        """
        waiting = [device for device in self._devices if device.needs_pcie and not device.lost]
        ours = [device for device in waiting if device.index in self._own] or waiting
        if ours:
            ours[self._turn % len(ours)].measure_pcie()
            self._turn += 1


# --- Xid errors -------------------------------------------------------------------------------------------------------


XID_EVENT = 0x8
MOST_KEPT = 16
MOST_A_TICK = 64


class XidWatch:
    """Collects the Xids of the devices that report them, without ever waiting for one."""

    def __init__(self, gate: Gate, devices: Mapping[int, Handle]) -> None:
        self._gate = gate
        self._seen: dict[int, list[int]] = {}
        self._index_of: dict[int, int] = {}
        self._set: Any = gate.ask(SYSTEM, "nvmlEventSetCreate")
        if self._set is None:
            return
        for index, handle in devices.items():
            if self._register(handle):
                self._seen[index] = []
                self._index_of[_address(handle.pointer)] = index

    def _register(self, handle: Handle) -> bool:
        types = self._gate.ask(handle, "nvmlDeviceGetSupportedEventTypes")
        if types is None or not int(types) & XID_EVENT:
            return False
        answered = self._gate.answered
        self._gate.ask(handle, "nvmlDeviceRegisterEvents", XID_EVENT, self._set, variant="xid")
        return self._gate.answered > answered  # it returns nothing when it works

    def poll(self) -> None:
        """Take what has been reported since the last call."""
        if not self._seen:
            return
        for _ in range(MOST_A_TICK):
            event = self._gate.ask(SYSTEM, "nvmlEventSetWait_v2", self._set, 0, variant="xid")
            if event is None:
                return
            index = self._index_of.get(_address(event.device))
            if index is not None and int(event.eventType) == XID_EVENT:
                self._seen[index] = [*self._seen[index], int(event.eventData)][-MOST_KEPT:]

    def of(self, index: int) -> tuple[int, ...] | None:
        """The newest Xids of the device since the source was opened, oldest first; None where it reports none."""
        seen = self._seen.get(index)
        return None if seen is None else tuple(seen)

    def close(self) -> None:
        """Give the event set back."""
        if self._set is not None:
            self._gate.ask(SYSTEM, "nvmlEventSetFree", self._set, variant="xid")
            self._set = None


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
