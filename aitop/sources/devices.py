"""Chooses the vendor of devices: which Source is "gpu", and which processes use the devices now.

To add a vendor, add a folder beside `nvml/` with a Source that reads GpuSample, and its branch in the functions here.
`export --all` assigns a device to one of many jobs by the device's `processes`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from aitop.model.event import Sample
from aitop.model.gpu import DeviceUsers, GpuDevice, GpuSample
from aitop.model.source import SourceName
from aitop.sources import nvml, procfs
from aitop.sources.source import Source, SourceError

# How long the end waits for a read of the driver that is under way.
CLOSE_SECONDS = 2.0


def device_source(tree: Callable[[], frozenset[int]]) -> Source:
    """The source of device samples. `tree` gives the pids of the watched process tree at this moment."""
    if not nvml.is_installed():
        return nvml.NoDriver()
    from aitop.sources.nvml.source import NvmlSource  # noqa: PLC0415 - pynvml: 8 ms and 3 MB

    return NvmlSource(tree)


def device_users() -> DeviceUsers:
    """Who computes on the devices of this machine; empty where there are none or the driver does not answer."""
    if not nvml.is_installed():
        return {}
    from aitop.sources.nvml.processes import gpu_users  # noqa: PLC0415 - as above

    return gpu_users()


class SharedDevices:
    """The devices of the machine, read once an `interval` however many jobs are watched. Any thread may ask."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._source = device_source(frozenset)
        self._lock = threading.Lock()
        self._open = False
        self._sample: GpuSample | None = None

    def of(self, tree: Callable[[], frozenset[int]]) -> Source:
        """The source of one job, whose devices are those that processes of its `tree` compute on."""
        return _JobDevices(self, tree)

    def sample(self) -> GpuSample | None:
        """The newest sample. Raises SourceError."""
        with self._lock:
            now = time.monotonic()
            # Every job asks once in an interval, so a sample of half that age is new enough.
            if self._sample is None or now - self._sample.time > self.interval / 2:
                try:
                    if not self._open:
                        self._source.open()
                        self._open = True
                    samples = self._source.read()
                except SourceError:
                    # A driver that answers no more, or a lost device, is only found again by opening it anew.
                    self._source.close()
                    self._open = False
                    raise
                self._sample = next((sample for sample in samples if isinstance(sample, GpuSample)), None)
            return self._sample

    def close(self) -> None:
        """Give the driver back. One that hangs in a read is left to the end of the program."""
        if not self._lock.acquire(timeout=CLOSE_SECONDS):
            return
        try:
            if self._open:
                self._source.close()
                self._open = False
        finally:
            self._lock.release()


class _JobDevices(Source):
    """What one job sees of SharedDevices."""

    name: SourceName = "gpu"

    def __init__(self, shared: SharedDevices, tree: Callable[[], frozenset[int]]) -> None:
        self.interval = shared.interval
        self._shared = shared
        self._tree = tree

    def read(self) -> list[Sample]:
        sample, tree = self._shared.sample(), self._tree()
        if sample is None:
            return []
        return [msgspec.structs.replace(sample, devices=tuple(_seen_by(tree, each) for each in sample.devices))]


def _seen_by(tree: frozenset[int], device: GpuDevice) -> GpuDevice:
    """The device, with `mine` set where processes of `tree` use it."""
    listed = device.processes
    processes = tuple(msgspec.structs.replace(each, mine=each.pid in tree) for each in listed or ())
    mine = any(each.mine for each in processes)
    if not mine and (listed is None or any(procfs.gone(each.pid) for each in listed)):
        # To a container NVML lists pids of the host, or none.
        mine = nvml.holds(tree, device.minor)
    return msgspec.structs.replace(device, processes=None if listed is None else processes, mine=mine)
