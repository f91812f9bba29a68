"""Questions about the devices of a run: whose they are, how busy, and which calls tie the host to them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter

import msgspec

from aitop.diagnosis.evidence import MIN_STEPS, heaviest, judged_pid, records, share_of_steps
from aitop.diagnosis.series import mean_of, rise
from aitop.model.gpu import GpuDevice, bare
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import AllocatorSample, CallKind, CallSite
from aitop.model.units import percent
from aitop.model.verdict import Where

# Bytes per second of one PCIe lane, by generation, without the line code; of these about nine tenths are data.
LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9, 7: 15.1e9}
PAYLOAD = 0.9
# A device that is busy for less than IDLE_DEVICE of the time mostly idles; for less than USED, it is not used at all.
IDLE_DEVICE, USED = 0.5, 0.01
# A device whose memory is this full (0..1) takes no larger batches.
NO_ROOM = 0.8
# If the allocator ran out of memory, or had to free its cache and try again, the device counts as at least this full.
RETRIED = 0.95
COUNTER_SECONDS = 120.0


def own_devices(snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    """The devices that the watched processes use and that still answer."""
    return tuple(device for device in _devices(snapshot) if device.mine and not device.lost)


def lost_devices(snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    """Devices of the run that the driver lost; if it uses CUDA and none is known to be its own, all lost devices."""
    lost = tuple(device for device in _devices(snapshot) if device.lost)
    mine = tuple(device for device in lost if device.mine)
    return mine or (lost if _on_cuda(snapshot) and not own_devices(snapshot) else ())


def on_gpu(snapshot: Snapshot) -> bool:
    """Whether the steps may run on a GPU: what the host does then overlaps with what the device does."""
    return _on_cuda(snapshot) or bool(own_devices(snapshot))


def without_figures(snapshot: Snapshot) -> str | None:
    """Say why nothing is known of the run's GPU; None if something is known, or if the run uses no GPU."""
    if not _on_cuda(snapshot) or own_devices(snapshot) or any(device.lost for device in _devices(snapshot)):
        return None
    if snapshot.gpu is None:
        return "no GPU figures"
    return "which of the GPUs the run is on is not known"


def device_busy(snapshot: Snapshot) -> float | None:
    """Mean share of time in which the devices of the run had work; None where that is not measured.

    Devices on which other processes compute are left out: their work is not the run's own.
    """
    shared = {
        device.index
        for device in own_devices(snapshot)
        if any(process.sm for process in device.processes or () if not process.mine)
    }
    return activity_of_devices(snapshot, "busy", without=shared)


def memory_taken(snapshot: Snapshot) -> float:
    """How full (0..1) the fullest device of the run gets, with what other processes hold on it."""
    return max((held.share for held in held_memory(snapshot)), default=0.0)


class Held(msgspec.Struct, frozen=True):
    """How full one device gets, in bytes. `need` is the most that tensors took at once, plus what others hold.

    `used` is what the driver counts, `others` what it counts beyond the allocator: contexts, libraries, other
    processes. `retries` and `ooms` are of the last two minutes, None where they are not counted; `allocator` is None
    where the hook does not report.
    """

    capacity: int
    used: int | None
    need: float
    others: float | None
    retries: float | None
    ooms: float | None
    allocator: AllocatorSample | None
    device: GpuDevice | None

    @property
    def name(self) -> str:
        """The device by the driver's number; where that is not known, by the process's own."""
        if self.device is not None:
            return f"GPU {self.device.index}"
        return f"cuda:{self.allocator.device}" if self.allocator is not None else "the GPU"

    @property
    def share(self) -> float:
        """How much of the device is needed at the worst moment, 0..1."""
        return min(1.0, self.need / self.capacity)

    @property
    def level(self) -> float:
        """`share`, but at least RETRIED where the allocator ran out of memory."""
        return max(self.share, RETRIED if self.retries or self.ooms else 0.0)


def held_memory(snapshot: Snapshot) -> list[Held]:
    """How full each device of the run is.

    Where the hook reports allocators, only their devices are returned: others belong to other ranks.
    """
    devices: dict[int | None, GpuDevice] = {device.index: device for device in own_devices(snapshot)}
    both: list[tuple[AllocatorSample | None, GpuDevice | None]] = [
        *((allocator, devices.get(allocator.gpu)) for allocator in snapshot.allocators),
        *((None, device) for device in (() if snapshot.allocators else devices.values())),
    ]
    devices_held = []
    for allocator, device in both:
        used, total = _by_driver(device, allocator)
        capacity = (allocator.capacity if allocator else None) or total
        if not capacity:
            continue
        others = None if allocator is None or used is None else max(0.0, float(used - allocator.reserved))
        if allocator is not None and (allocator.peak_allocated is not None or used is None):
            need = (allocator.peak_allocated or allocator.allocated) + (others or 0.0)
        else:
            need = float(used or 0)
        retries, ooms = (
            rise(snapshot, f"alloc{allocator.device}.{name}", COUNTER_SECONDS) if allocator is not None else None
            for name in ("retries", "ooms")
        )
        devices_held.append(Held(capacity, used, need, others, retries, ooms, allocator, device))
    return devices_held


def _by_driver(device: GpuDevice | None, allocator: AllocatorSample | None) -> tuple[int | None, int | None]:
    """Bytes used and in all, of the device or of the process's slice of it; None where the driver does not tell.

    Of a card in slices (MIG) only the own slice counts, which is known by its UUID.
    """
    if device is None or not device.mig:
        return (device.memory_used, device.memory_total) if device is not None else (None, None)
    uuid = bare(allocator.uuid) if allocator is not None else ""
    own = next((one for one in device.mig_devices if uuid and bare(one.uuid) == uuid), None)
    return (own.memory_used, own.memory_total) if own is not None else (None, None)


def starved(snapshot: Snapshot) -> bool:
    """Whether the devices of the run are used but mostly idle, so that it is the host that holds them up.

    False for a program that has a device and never uses it: nothing can be said of that.
    """
    busy = device_busy(snapshot)
    return busy is not None and USED <= busy < IDLE_DEVICE


def activity_of_devices(snapshot: Snapshot, name: str, without: Collection[int] = ()) -> float | None:
    """Mean over the devices of the run of one of NVML's performance counters (sm, tensor, dram, …), 0..1."""
    indices = [device.index for device in own_devices(snapshot) if device.index not in without]
    known = [value for index in indices if (value := mean_of(snapshot, f"gpu{index}.{name}")) is not None]
    return sum(known) / len(known) if known else None


def timed_on_device(snapshot: Snapshot) -> bool:
    """Whether phases were timed by the device clock, in at least MIN_STEPS steps."""
    timed = list(map(attrgetter("device_forward"), records(snapshot)))
    return len(timed) - timed.count(None) >= MIN_STEPS


def idle_share(snapshot: Snapshot) -> float | None:
    """Share of time (0..1) in which the devices of the run had nothing to do; None where nobody measured it.

    NVML misses gaps that are too short for it; the device clock sees only gaps between phases. The larger share counts.
    """
    busy, gaps = device_busy(snapshot), _gaps(snapshot)
    known = [idle for idle in (None if busy is None else max(0.0, 1.0 - busy), gaps) if idle is not None]
    return max(known) if known else None


def idle_words(snapshot: Snapshot) -> list[str]:
    """Evidence of how much the device idles; empty where nobody measured it."""
    busy, gaps = device_busy(snapshot), _gaps(snapshot)
    words = [] if busy is None else [f"GPU busy {percent(busy)} of the time"]
    return words if gaps is None else [*words, f"{percent(gaps)} of each step are gaps on the device clock"]


def host_limit(snapshot: Snapshot, *, in_phases: bool = False) -> float:
    """The largest share (0..1) of a step that host work can hold up: 1 on a CPU, the idle share of the device on a GPU.

    On a GPU, host times are launch times, and a wait for the device may fall on any line. Work outside of the phases
    holds up no more than the gaps between phases on the device clock; `in_phases`: the work is not outside of them.
    """
    busy = device_busy(snapshot) if on_gpu(snapshot) else None
    idle = 1.0 if busy is None else max(0.0, 1.0 - busy)
    outside = snapshot.phases.outside
    return idle if in_phases or outside is None or not timed_on_device(snapshot) else min(idle, outside)


def host_unproven(snapshot: Snapshot, *, in_phases: bool = False) -> bool:
    """Whether steps run on a GPU and nothing tells how much of its time it idles.

    The device's clock sees that only between phases. `in_phases`: the work is not outside of them.
    """
    return on_gpu(snapshot) and device_busy(snapshot) is None and (in_phases or not timed_on_device(snapshot))


def link_rate(device: GpuDevice) -> float | None:
    """Bytes per second of data that the device's PCIe link carries each way as it is now; None where not known."""
    lane = LANE_BYTES.get(device.pcie_generation or 0)
    return PAYLOAD * lane * device.pcie_width if lane and device.pcie_width else None


def calls_of(snapshot: Snapshot, kind: CallKind) -> tuple[CallSite, ...]:
    """Call sites of one kind, the costliest first."""
    calls = [call for call in snapshot.facts.calls if call.kind == kind] if snapshot.facts else []
    return tuple(sorted(calls, key=lambda call: (-(call.seconds or 0.0), -call.calls)))


def per_step(snapshot: Snapshot, call: CallSite) -> float | None:
    """Calls per step of one call site, None without steps. Both are counted from when the hook came in."""
    steps = snapshot.steps
    count = max(steps.count or 0, steps.recent[-1].index if steps.recent else 0) if steps else 0
    return call.calls / count if count else None


def call_places(snapshot: Snapshot, calls: Sequence[CallSite], lines: Sequence[Entry]) -> tuple[Where, ...]:
    """Call sites as places, the costliest first, with the source text where the line was sampled, too."""
    texts = {entry.at: entry.where.text for entry in lines if entry.where is not None}
    pid = judged_pid(snapshot)
    places = {
        (call.file, call.line, call.function): Where(
            pid=pid, file=call.file, line=call.line, function=call.function, text=texts.get((call.file, call.line))
        )
        for call in calls
    }
    seconds = dict.fromkeys(places, 0.0)
    for call in calls:
        seconds[call.file, call.line, call.function] += call.seconds or 0.0
    return heaviest(seconds, places)


def _gaps(snapshot: Snapshot) -> float | None:
    return share_of_steps(records(snapshot), attrgetter("device_idle"), MIN_STEPS)


def _on_cuda(snapshot: Snapshot) -> bool:
    return snapshot.facts is not None and snapshot.facts.cuda


def _devices(snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    return snapshot.gpu.devices if snapshot.gpu else ()
