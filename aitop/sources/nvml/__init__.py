"""GPU facts through NVML. Everything that calls NVML is in this package, and goes through `gate.Gate`."""

from aitop.sources.nvml.source import NvmlSource
from aitop.sources.nvml.users import gpu_users

__all__ = ["NvmlSource", "gpu_users"]
