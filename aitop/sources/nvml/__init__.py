"""GPU facts through NVML. Everything that calls NVML is in this package, and goes through `library.Gate`.

Its modules load pynvml, which takes 8 ms and 3 MB. This one does not: it tells whether that is worthwhile.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterable

from aitop.model.gpu import DeviceUsers
from aitop.model.source import SourceName
from aitop.sources import procfs
from aitop.sources.source import Source, SourceError

LIBRARY = "libnvidia-ml.so.1"
START_WITH_IT = "start the container with the GPU (docker run --gpus all)"
NVIDIA, DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")


def is_installed() -> bool:
    """Whether the driver's library can be loaded."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


def all_devices(own: Collection[int]) -> Source:
    """The source of all devices of this machine. `own` has the indices of those that matter most."""
    if not is_installed():
        return NoDriver()
    from aitop.sources.nvml.source import NvmlSource  # noqa: PLC0415 - pynvml

    return NvmlSource(own)


def users() -> DeviceUsers:
    """Who computes on the devices of this machine; empty where there are none or the driver does not answer."""
    if not is_installed():
        return {}
    from aitop.sources.nvml.processes import gpu_users  # noqa: PLC0415 - pynvml

    return gpu_users()


def count_cards(root: str = "") -> int:
    """The number of NVIDIA graphics cards on the PCI bus. `root` stands for / and exists for tests."""
    folder = f"{root}/sys/bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    return sum(
        procfs.text(f"{folder}/{name}/vendor") == NVIDIA
        and (procfs.text(f"{folder}/{name}/class") or "").startswith(DISPLAY_CLASSES)
        for name in names
    )


def holds(tree: Iterable[int], minor: int | None) -> bool:
    """Whether a process of the tree has the file of the device with this number open.

    In a container with its own pid namespace NVML may tell the pids of the host, which mean nothing here.
    """
    file = f"/dev/nvidia{minor}"
    return minor is not None and any(file in procfs.open_devices(pid) for pid in tree)


def without_driver(cards: int) -> SourceError:
    """Why no GPU is measured where the driver's library is missing, on a machine with so many NVIDIA cards."""
    if not cards:
        return SourceError("absent", "there is no NVIDIA GPU here")
    reason = f"an NVIDIA GPU is here, but not its driver ({LIBRARY} not found)"
    return SourceError("absent", reason, f"install the NVIDIA driver, or {START_WITH_IT}")


class NoDriver(Source):
    """The GPU source of a machine without the driver: says so."""

    name: SourceName = "gpu"

    def open(self) -> None:
        """Raises SourceError."""
        raise without_driver(count_cards())
