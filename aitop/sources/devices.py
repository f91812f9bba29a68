"""Chooses the vendor of devices: which Source is "gpu", and which processes use the devices now.

To add a vendor, add a module or folder beside `nvml/` that has what `Vendor` lists, and name it in `VENDORS`.
`export --all` assigns a device to one of many jobs by the device's `processes`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from msgspec.structs import replace

from aitop.model.event import Sample
from aitop.model.gpu import DeviceUsers, GpuDevice, GpuSample
from aitop.model.source import SourceName
from aitop.sources import nvml, procfs
from aitop.sources.source import Source, SourceError

# How long the end waits for a read of the driver that is under way.
CLOSE_SECONDS = 2.0


class Vendor(Protocol):
    """What the module of a vendor's devices has."""

    def is_installed(self) -> bool:
        """Whether the vendor's driver is here."""

    def all_devices(self, own: Collection[int]) -> Source:
        """The source of all its devices. `own` has the indices of those that matter most."""

    def users(self) -> DeviceUsers:
        """Who computes on its devices; empty where there are none or the driver does not answer."""

    def holds(self, tree: Iterable[int], minor: int | None) -> bool:
        """Whether a process of the tree has the file of the device with this number open."""


VENDORS: tuple[Vendor, ...] = (nvml,)


def _vendor() -> Vendor:
    """The first vendor whose driver is here; without any the first, which says that there is none."""
    return next((vendor for vendor in VENDORS if vendor.is_installed()), VENDORS[0])


def device_source(tree: Callable[[], frozenset[int]]) -> Source:
    """The source of device samples. `tree` gives the pids of the watched process tree at this moment."""
    own: set[int] = set()
    return _JobDevices(all_devices(own), tree, own)


def all_devices(own: Collection[int] = ()) -> Source:
    """The source of device samples without `mine`. `own` has the indices of the devices that matter most."""
    return _vendor().all_devices(own)


def device_users() -> DeviceUsers:
    """Who computes on the devices of this machine; empty where there are none or the driver does not answer."""
    return _vendor().users()


class SharedDevices(Source):
    """The devices of the machine, read once an `interval` however many jobs are watched. Any thread may ask.

    `read` opens the driver where needed; it stays open until `end`.
    """

    name: SourceName = "gpu"

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._source = all_devices()
        self._lock = threading.Lock()
        self._open = False
        self._samples: list[Sample] = []
        self._read_at = float("-inf")

    def of(self, tree: Callable[[], frozenset[int]]) -> Source:
        """The source of one job, whose devices are those that processes of its `tree` compute on."""
        return _JobDevices(self, tree, set())

    def read(self) -> list[Sample]:
        """The newest sample. Raises SourceError, also where the driver hangs in the read of another job."""
        if not self._lock.acquire(timeout=self.patience):
            raise SourceError("stale", "an earlier call into the driver has not come back")
        try:
            # Every job asks once in an interval, so a sample of half that age is new enough.
            if time.monotonic() - self._read_at > self.interval / 2:
                try:
                    if not self._open:
                        self._source.open()
                        self._open = True
                    self._samples = self._source.read()
                except SourceError:
                    # A driver that answers no more, or a lost device, is only found again by opening it anew.
                    self._source.close()
                    self._open = False
                    raise
                self._read_at = time.monotonic()
            return self._samples
        finally:
            self._lock.release()

    def end(self) -> None:
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
    """What one job sees of the samples of `devices`: which of them are its own.

    `tree` gives the pids of its processes. The indices of its devices are in `own` after each read. A lost device has
    no processes: it is the job's if it was before.
    """

    name: SourceName = "gpu"

    def __init__(self, devices: Source, tree: Callable[[], frozenset[int]], own: set[int]) -> None:
        self.interval, self.patience = devices.interval, devices.patience
        self._devices = devices
        self._tree = tree
        self._own = own

    def open(self) -> None:
        self._devices.open()

    def read(self) -> list[Sample]:
        samples, tree = self._devices.read(), self._tree()
        return [self._seen(sample, tree) for sample in samples if isinstance(sample, GpuSample)]

    def close(self) -> None:
        self._devices.close()

    def _seen(self, sample: GpuSample, tree: frozenset[int]) -> GpuSample:
        devices = [
            replace(device, mine=device.index in self._own) if device.lost else _seen_by(tree, device)
            for device in sample.devices
        ]
        self._own.clear()
        self._own.update(device.index for device in devices if device.mine)
        return replace(sample, devices=tuple(devices))


def _seen_by(tree: frozenset[int], device: GpuDevice) -> GpuDevice:
    """The device, with `mine` set where processes of `tree` use it."""
    listed = device.processes
    mine = tree.intersection(each.pid for each in listed or ())
    # Pids that do not exist here: to a container NVML may list those of the host, or none. If the tree has the device
    # open, a single such process is taken to be the tree's.
    strangers = [] if mine else [each.pid for each in listed or () if procfs.gone(each.pid)]
    held = (listed is None or bool(strangers)) and _vendor().holds(tree, device.minor)
    if held and len(strangers) == 1:
        mine = frozenset(strangers)
    processes = None if listed is None else tuple(replace(each, mine=each.pid in mine) for each in listed)
    return replace(device, processes=processes, mine=bool(mine) or held)
