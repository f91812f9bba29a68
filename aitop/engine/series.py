"""History to the time series that charts and trend rules use. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aitop.engine.history import History
from aitop.model.gpu import GpmSample
from aitop.model.host import HostSample, ProcessSample, Role
from aitop.model.snapshot import Series
from aitop.model.stacks import StackWindow
from aitop.model.steps import StepRecord
from aitop.stacks.view import StackView

CHART_STEPS = 300
MOST_LANES = 16
LANE_SAMPLES = 120


def series(history: History, steps: Sequence[StepRecord]) -> dict[str, Series]:
    """Every series that has at least one value; names as documented at Snapshot."""
    found = {
        "step_ms": _of_steps(steps, lambda step: step.seconds * 1e3),
        "data_wait": _of_steps(steps, lambda step: min(1.0, (step.data_wait + step.loader_start) / step.seconds)),
        "queue_ready": _of_steps(steps, lambda step: step.queue_ready),
        "rss": _of_hosts(history.hosts, lambda host: _resident(host, "rank")),
        "workers_rss": _of_hosts(history.hosts, lambda host: _resident(host, "loader-worker")),
        "memory_left": _of_hosts(history.hosts, lambda host: host.memory_room[0] if host.memory_room else None),
        "swap_in": _of_hosts(history.hosts, lambda host: host.machine.swap_in),
        "main_cpu": _of_hosts(history.hosts, lambda host: _cpu(host, ("rank",))),
        "run_delay": _of_hosts(history.hosts, _run_delay),
        "main_thread": _of_hosts(history.hosts, lambda host: _most(host, lambda process: process.main_cpu)),
        "cores_wanted": _of_hosts(history.hosts, lambda host: _total(host, lambda process: process.wanted)),
        "cores_waited": _of_hosts(history.hosts, lambda host: _total(host, lambda process: process.waited)),
        "written": _of_hosts(history.hosts, lambda host: _most(host, lambda process: process.write_bytes)),
        "throttled": _of_hosts(history.hosts, lambda host: host.cgroup.throttled if host.cgroup else None),
        "workers_delay": _of_hosts(history.hosts, _workers_delay),
        "workers_cpu": _of_hosts(history.hosts, lambda host: _cpu(host, ("loader-worker",))),
        **_devices(history),
        **_allocators(history),
    }
    return {name: one for name, one in found.items() if any(value is not None for value in one.values)}


def _of_steps(steps: Sequence[StepRecord], value: Callable[[StepRecord], float | None]) -> Series:
    last = [step for step in steps[-CHART_STEPS:] if step.seconds > 0]
    return Series(times=tuple(step.end for step in last), values=tuple(value(step) for step in last))


def _of_hosts(hosts: Iterable[HostSample], value: Callable[[HostSample], float | None]) -> Series:
    kept = list(hosts)
    return Series(times=tuple(host.time for host in kept), values=tuple(value(host) for host in kept))


def _resident(host: HostSample, role: Role) -> float | None:
    sizes = [process.rss for process in host.processes if process.role == role and process.rss is not None]
    return float(sum(sizes)) if sizes else None


def _run_delay(host: HostSample) -> float | None:
    return _most(host, lambda process: process.run_delay)


def _most(host: HostSample, value: Callable[[ProcessSample], float | None]) -> float | None:
    """The largest of the ranks."""
    found = [one for process in host.processes if process.role == "rank" and (one := value(process)) is not None]
    return max(found, default=None)


def _total(host: HostSample, value: Callable[[ProcessSample], float | None]) -> float | None:
    """The sum over all processes that compute: those that tell."""
    found = [one for process in host.processes if (one := value(process)) is not None]
    return sum(found) if found else None


def _workers_delay(host: HostSample) -> float | None:
    delays = [
        process.run_delay
        for process in host.processes
        if process.role == "loader-worker" and process.run_delay is not None
    ]
    return sum(delays) if delays else None


def _cpu(host: HostSample, roles: tuple[str, ...]) -> float | None:
    used = [process.cpu for process in host.processes if process.role in roles and process.cpu is not None]
    return sum(used) if used else None


def _devices(history: History) -> dict[str, Series]:
    found: dict[str, Series] = {}
    last = history.gpus.last
    for index in [device.index for device in last.devices] if last is not None else ():
        of_device = [
            (sample.time, device) for sample in history.gpus for device in sample.devices if device.index == index
        ]
        times = tuple(time for time, _ in of_device)
        found[f"gpu{index}.busy"] = Series(times=times, values=tuple(device.busy for _, device in of_device))
        found[f"gpu{index}.memory"] = Series(times=times, values=tuple(device.memory_used for _, device in of_device))
        found[f"gpu{index}.power"] = Series(times=times, values=tuple(device.power for _, device in of_device))
        errors = tuple(device.ecc_uncorrected for _, device in of_device)
        found[f"gpu{index}.ecc_uncorrected"] = Series(times=times, values=errors)
        received = tuple(device.pcie_received for _, device in of_device)
        found[f"gpu{index}.pcie_received"] = Series(times=times, values=received)
        for name in ("sm", "tensor", "dram", "fp64", "fp32"):
            active = tuple(_active(device.gpm, name) for _, device in of_device)
            found[f"gpu{index}.{name}"] = Series(times=times, values=active)
    return found


def _active(gpm: GpmSample | None, name: str) -> float | None:
    active: float | None = getattr(gpm, f"{name}_active", None)
    return active


def recompiles(counts: Iterable[tuple[float, int]]) -> Series:
    """torch.compile's counter of one process, as it was told."""
    kept = list(counts)
    return Series(times=tuple(time for time, _ in kept), values=tuple(float(number) for _, number in kept))


def _allocators(history: History) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for device in sorted({allocator.device for _, allocators in history.allocators for allocator in allocators}):
        of_device = [
            (time, allocator)
            for time, allocators in history.allocators
            for allocator in allocators
            if allocator.device == device
        ]
        times = tuple(time for time, _ in of_device)
        found[f"alloc{device}.allocated"] = Series(times=times, values=tuple(one.allocated for _, one in of_device))
        found[f"alloc{device}.reserved"] = Series(times=times, values=tuple(one.reserved for _, one in of_device))
        found[f"alloc{device}.retries"] = Series(times=times, values=tuple(one.retries for _, one in of_device))
        found[f"alloc{device}.ooms"] = Series(times=times, values=tuple(one.ooms for _, one in of_device))
    return found


def worker_lanes(hosts: Iterable[HostSample], windows: Sequence[StackWindow], stacks: StackView) -> dict[str, Series]:
    """Of each loader worker (the first sixteen) the cores it used and, where stacks tell, how far it had no work."""
    kept = list(hosts)[-LANE_SAMPLES:]
    if not kept:
        return {}
    pids = [process.pid for process in kept[-1].processes if process.role == "loader-worker"][:MOST_LANES]
    wanted = set(pids)
    used: dict[int, list[float | None]] = {pid: [None] * len(kept) for pid in pids}
    for number, host in enumerate(kept):
        for process in host.processes:
            if process.pid in wanted:
                used[process.pid][number] = process.cpu
    times = tuple(host.time for host in kept)
    found = {f"worker{pid}.cpu": Series(times=times, values=tuple(values)) for pid, values in used.items()}
    for pid, idle in stacks.idle_over_time(windows, wanted).items():
        found[f"worker{pid}.idle"] = idle
    return found
