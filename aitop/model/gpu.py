"""What the driver says of the devices. None is 'not supported here', never zero."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process on a device. `memory` in bytes; `sm` is a share (0..1) of the last sampling interval.

    `mine` is True for a process of the watched tree.
    """

    pid: int
    name: str | None = None
    memory: int | None = None
    sm: float | None = None
    mine: bool = False


class GpmSample(msgspec.Struct, frozen=True, kw_only=True):
    """GPU performance monitoring, Hopper and later: shares (0..1) over the interval between two samples."""

    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None


def bare(uuid: str | None) -> str:
    """A UUID as CUDA writes it, without the "GPU-" or "MIG-" that the driver puts before it; empty for none."""
    return (uuid or "").lower().removeprefix("gpu-").removeprefix("mig-")


class MigDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One MIG slice of a device. Memory in bytes."""

    index: int
    uuid: str | None = None
    name: str | None = None
    memory_total: int | None = None
    memory_used: int | None = None


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Shares are 0..1, memory in bytes, power in watts, clocks in MHz, rates in bytes per second.

    `memory_busy` is the share of time in which its memory was read or written. `power_limit_default` is what the card's
    maker set. `throttle` names the active clock event reasons; an empty tuple means that the clocks are not held back.
    `lost` says that the driver lost the device. `ecc_uncorrected` counts memory errors since the driver was loaded.
    `xid` holds the newest errors that the driver reported while we watched; None where it cannot tell.
    `mig` is None where the device has no such mode. `mine` is True when the watched tree is on this device. `minor` is
    the number of its file in /dev.
    """

    index: int
    minor: int | None = None
    name: str | None = None
    uuid: str | None = None
    busy: float | None = None
    memory_busy: float | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    power: float | None = None
    power_limit: float | None = None
    power_limit_default: float | None = None
    temperature: float | None = None
    sm_clock: int | None = None
    sm_clock_max: int | None = None
    memory_clock: int | None = None
    throttle: tuple[str, ...] | None = None
    pcie_received: float | None = None
    pcie_sent: float | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlink_received: float | None = None
    nvlink_sent: float | None = None
    nvlinks_active: int | None = None
    ecc_uncorrected: int | None = None
    xid: tuple[int, ...] | None = None
    fan: float | None = None
    mig: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    processes: tuple[GpuProcess, ...] | None = None
    gpm: GpmSample | None = None
    lost: bool = False
    mine: bool = False

    def runs(self, pid: int | None) -> bool:
        """Whether the process computes on it, as far as the driver tells."""
        return any(process.pid == pid for process in self.processes or ())


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, tag="gpu"):
    """All devices of the machine at `time` (monotonic seconds)."""

    time: float
    devices: tuple[GpuDevice, ...]


# By pid, the indices of its devices and the bytes it has on them together, None where the driver does not tell.
DeviceUsers = Mapping[int, tuple[tuple[int, ...], int | None]]
