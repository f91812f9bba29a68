"""Questions about the devices of a run that the rules on memory and hardware share. Pure."""

from __future__ import annotations

from aitop.diagnosis.evidence import own_devices
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Snapshot
from aitop.model.verdict import Abstention

# Bytes per second of one PCIe lane, by generation, after the line code; of these about nine tenths are data.
LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9, 7: 15.1e9}
PAYLOAD = 0.9


def without_figures(snapshot: Snapshot, rule: str) -> Abstention | None:
    """An abstention where the run is on a GPU and nothing is known of it; None where there is, or it is on none."""
    cuda = snapshot.facts is not None and snapshot.facts.cuda
    if not cuda or own_devices(snapshot) or any(device.lost for device in _devices(snapshot)):
        return None
    if snapshot.gpu is None:
        return Abstention(id=rule, reason="no GPU figures")
    return Abstention(id=rule, reason="which of the GPUs the run is on is not known")


def lost_devices(snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    """Devices that the driver lost under the run, or that were gone before and that it may have been on."""
    lost = [device for device in _devices(snapshot) if device.lost]
    mine = tuple(device for device in lost if device.mine)
    cuda = snapshot.facts is not None and snapshot.facts.cuda
    return mine or (tuple(lost) if cuda and not own_devices(snapshot) else ())


def recent(snapshot: Snapshot, name: str, points: int) -> tuple[float, ...] | None:
    """The newest `points` values of a series; None where fewer were measured."""
    one = snapshot.series.get(name)
    values = [value for value in one.values if value is not None][-points:] if one is not None else []
    return tuple(values) if len(values) == points else None


def rise(snapshot: Snapshot, name: str, seconds: float) -> float | None:
    """By how much a counter went up within the last `seconds`; None without two readings of it."""
    one = snapshot.series.get(name)
    if one is None:
        return None
    since = snapshot.time - seconds
    values = [v for time, v in zip(one.times, one.values, strict=True) if v is not None and time >= since]
    return values[-1] - values[0] if len(values) >= 2 else None


def link_rate(device: GpuDevice) -> float | None:
    """Bytes per second of data that the device's PCIe link carries each way as it is now; None where not known."""
    lane = LANE_BYTES.get(device.pcie_generation or 0)
    return PAYLOAD * lane * device.pcie_width if lane and device.pcie_width else None


def _devices(snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    return snapshot.gpu.devices if snapshot.gpu else ()
