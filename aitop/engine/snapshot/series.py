"""Makes the time series that charts and trend rules use from the history. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from aitop.engine.history import History, HookHistory
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.host import HostSample, ProcessSample, Role
from aitop.model.snapshot import Series, series_of
from aitop.model.stacks import StackWindow
from aitop.model.steps import AllocatorSample
from aitop.stacks.view import StackView

CHART_STEPS = 300
# Eight ranks with eight workers each.
MOST_LANES = 64
LANE_SAMPLES = 120
COMPUTING: tuple[Role, ...] = ("rank",)
LOADING: tuple[Role, ...] = ("loader-worker",)

Thing = TypeVar("Thing")
_Row = tuple[Any, ...]
"""A time, and the values of a sample at that time."""
Values = dict[str, Callable[[Thing], float | None]]

OF_HOSTS: Values[HostSample] = {
    "rss": lambda host: _total(host, lambda process: process.rss, COMPUTING),
    "workers_rss": lambda host: _total(host, lambda process: process.rss, LOADING),
    "mapped": lambda host: _total(host, lambda process: process.mapped, COMPUTING),
    "workers_mapped": lambda host: _total(host, lambda process: process.mapped, LOADING),
    "memory_left": lambda host: host.memory_room[0] if host.memory_room else None,
    "swap_in": lambda host: host.machine.swap_in,
    "run_delay": lambda host: _most(host, lambda process: process.run_delay),
    "main_thread": lambda host: _most(host, lambda process: process.main_cpu),
    "cores_wanted": lambda host: _total(host, lambda process: process.wanted),
    "cores_waited": lambda host: _total(host, lambda process: process.waited),
    "cores_used": lambda host: host.cores_used,
    "cores_idle": lambda host: host.idle_cores,
    "throttled": lambda host: host.cgroup.throttled if host.cgroup else None,
    "workers_delay": lambda host: _total(host, lambda process: process.run_delay, LOADING),
    "workers_cpu": lambda host: _total(host, lambda process: process.cpu, LOADING),
}
OF_DEVICES: Values[GpuDevice] = {
    "busy": lambda device: device.busy,
    "memory": lambda device: device.memory_used,
    "power": lambda device: device.power,
    "ecc_uncorrected": lambda device: device.ecc_uncorrected,
    "pcie_received": lambda device: device.pcie_received,
    "sm": lambda device: device.gpm.sm_active if device.gpm else None,
    "tensor": lambda device: device.gpm.tensor_active if device.gpm else None,
    "dram": lambda device: device.gpm.dram_active if device.gpm else None,
    "fp64": lambda device: device.gpm.fp64_active if device.gpm else None,
    "fp32": lambda device: device.gpm.fp32_active if device.gpm else None,
}
OF_ALLOCATORS: Values[AllocatorSample] = {
    "allocated": lambda allocator: allocator.allocated,
    "reserved": lambda allocator: allocator.reserved,
    "retries": lambda allocator: allocator.retries,
    "ooms": lambda allocator: allocator.ooms,
}


def series(history: History, hook: HookHistory | None) -> dict[str, Series]:
    """Every series that has at least one value; names as documented at Snapshot.

    Steps, allocators and recompilations are those of `hook`.
    """
    last = history.gpus.last
    devices: dict[int, list[_Row]] = {device.index: [] for device in last.devices} if last else {}
    for sample in history.gpus.rows(_of_devices) if devices else ():
        for index, row in sample.items():
            if index in devices:
                devices[index].append(row)
    allocators: dict[int, list[tuple[float, AllocatorSample]]] = {}
    for time, samples in hook.allocators if hook else ():
        for allocator in samples:
            allocators.setdefault(allocator.device, []).append((time, allocator))
    steps = list(hook.steps)[-CHART_STEPS:] if hook else ()
    made = series_of(("queue_ready",), [(step.end, step.queue_ready) for step in steps if step.seconds > 0])
    made |= series_of(("recompiles",), hook.recompiles if hook else ())
    made |= series_of(OF_HOSTS, history.hosts.rows(_of_host))
    for index, of_device in devices.items():
        made |= series_of((f"gpu{index}.{name}" for name in OF_DEVICES), of_device)
    for index, taken in sorted(allocators.items()):
        rows = [_row(OF_ALLOCATORS, time, each) for time, each in taken]
        made |= series_of((f"alloc{index}.{name}" for name in OF_ALLOCATORS), rows)
    return made


def worker_lanes(hosts: Iterable[HostSample], windows: Sequence[StackWindow], stacks: StackView) -> dict[str, Series]:
    """Series of each loader worker (the first 64): the cores it used, and where stacks tell its idle share."""
    samples = list(hosts)[-LANE_SAMPLES:]
    workers = (process.pid for process in samples[-1].processes if process.role == "loader-worker") if samples else ()
    pids = dict.fromkeys(islice(workers, MOST_LANES))
    used = [{process.pid: process.cpu for process in host.processes if process.pid in pids} for host in samples]
    times = tuple(host.time for host in samples)
    lanes = {f"worker{pid}.cpu": Series(times=times, values=tuple(each.get(pid) for each in used)) for pid in pids}
    idle_by_pid = stacks.idle_over_time(windows, pids)
    return lanes | {f"worker{pid}.idle": idle for pid, idle in idle_by_pid.items()}


def _row(values: Values[Thing], time: float, thing: Thing) -> _Row:
    return (time, *(value(thing) for value in values.values()))


def _of_host(host: HostSample) -> _Row:
    return _row(OF_HOSTS, host.time, host)


def _of_devices(sample: GpuSample) -> dict[int, _Row]:
    return {device.index: _row(OF_DEVICES, sample.time, device) for device in sample.devices}


def _most(host: HostSample, value: Callable[[ProcessSample], float | None]) -> float | None:
    """The largest value of a rank; None where no rank has one."""
    return max(_values(host, value, COMPUTING), default=None)


def _total(
    host: HostSample, value: Callable[[ProcessSample], float | None], roles: Collection[Role] | None = None
) -> float | None:
    """The sum over the processes of these roles (None: all) that have a value; None where none has one."""
    known = _values(host, value, roles)
    return sum(known) if known else None


def _values(
    host: HostSample, value: Callable[[ProcessSample], float | None], roles: Collection[Role] | None
) -> list[float]:
    processes = (process for process in host.processes if roles is None or process.role in roles)
    return [known for process in processes if (known := value(process)) is not None]
