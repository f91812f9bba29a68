"""The seam for vendors of devices: which of them gives the source "gpu", and who uses the devices now.

Another vendor is a folder beside `nvml/` with a Source that gives GpuSample, and its turn in the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aitop.sources import nvml
from aitop.sources.source import Source

# By pid, the indices of its devices and the bytes it has on them together, None where the driver does not tell.
DeviceUsers = Mapping[int, tuple[tuple[int, ...], int | None]]


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
