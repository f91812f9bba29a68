"""The GPU source: every second, all devices of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import pynvml

from aitop.model.event import Sample
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.source import SourceName
from aitop.sources import plausible
from aitop.sources.nvml import library
from aitop.sources.nvml.device import Device
from aitop.sources.nvml.events import XidWatch
from aitop.sources.nvml.gate import SYSTEM, DeviceLostError, Gate
from aitop.sources.source import Source, SourceError

WAIT_FOR_TURN_SECONDS = 2.0


class NvmlSource(Source):
    """All devices of the driver. `tree` gives the pids of the watched process tree at this moment."""

    name: SourceName = "gpu"

    def __init__(self, tree: Callable[[], frozenset[int]]) -> None:
        self._tree = tree
        self._started = False
        self._gate: Gate | None = None
        self._devices: list[Device] = []
        self._lost_at_start: list[int] = []
        self._xids: XidWatch | None = None
        self._turn = 0
        self._driver: str | None = None

    def open(self) -> None:
        """Start NVML and look at the devices. Raises SourceError."""
        with library.turn(WAIT_FOR_TURN_SECONDS):
            library.start()
            self._started = True
            handles = library.handles()
            gate = self._gate = Gate(pynvml)
            self._driver = plausible.clean(gate.ask(SYSTEM, "nvmlSystemGetDriverVersion"))
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
        tree = self._tree()
        with library.turn(WAIT_FOR_TURN_SECONDS):
            gate.answered, gate.last_error = 0, None
            self._measure_one_pcie()
            now = time.monotonic()
            xids.poll()
            devices = [device.read(now, tree, xids.of(device.index)) for device in self._devices]
        if gate.answered == 0 and any(not device.lost for device in self._devices):
            raise SourceError("failed", f"NVML no longer answers: {gate.last_error or 'nothing is supported'}")
        devices += [GpuDevice(index=index, lost=True) for index in self._lost_at_start]
        devices.sort(key=lambda device: device.index)
        return [GpuSample(time=now, devices=tuple(devices), driver=self._driver)]

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
        """Ask one device for its PCIe traffic, those of the watched tree first; the others keep their last figure.

        Each direction takes the 20 ms over which the driver counts: eight devices would cost a third of a second.
        """
        waiting = [device for device in self._devices if device.needs_pcie and not device.lost]
        ours = [device for device in waiting if device.mine] or waiting
        if ours:
            ours[self._turn % len(ours)].measure_pcie()
            self._turn += 1
