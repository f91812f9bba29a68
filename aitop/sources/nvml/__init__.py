"""GPU facts through NVML. Everything that calls NVML is in this package, and goes through `library.Gate`.

Its modules load pynvml, which takes 8 ms and 3 MB. So this one, which does not, says whether there is any use in that.
"""

from __future__ import annotations

import ctypes

from aitop.model.source import SourceName
from aitop.sources.source import Source, SourceError

LIBRARY = "libnvidia-ml.so.1"
DRIVER_REMEDY = "install the NVIDIA driver, or start the container with the GPU (docker run --gpus all)"
NO_DRIVER = f"no NVIDIA driver here ({LIBRARY} not found)"


def is_installed() -> bool:
    """Whether the driver's library can be loaded."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


class NoDriver(Source):
    """The GPU source of a machine without the driver: says so."""

    name: SourceName = "gpu"

    def open(self) -> None:
        """Raises SourceError."""
        raise SourceError("absent", NO_DRIVER, DRIVER_REMEDY)
