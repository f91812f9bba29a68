"""GPU facts through NVML. Everything that calls NVML is in this package, and goes through `gate.Gate`."""

from aitop.sources.nvml.processes import gpu_users
from aitop.sources.nvml.source import NvmlSource

__all__ = ["NvmlSource", "gpu_users"]
