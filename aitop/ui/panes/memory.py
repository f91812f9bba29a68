"""Memory: the job's own, the machine's and its limit, and the CUDA caching allocator."""

from __future__ import annotations

from aitop.model.host import HostSample, ProcessSample
from aitop.model.snapshot import Series, Snapshot
from aitop.model.steps import AllocatorSample
from aitop.model.units import NOT_YET, percent, size
from aitop.ui.line import Line
from aitop.ui.palette import BRIGHT, DEVICE_CHART, DEVICE_SOFT, DIM, FAINT, HOST_CHART, LOSS, TEXT
from aitop.ui.view import Look, View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.widgets.timeline import bar, braille, layered_bar, nice_ceiling
from aitop.ui.words import plural, share_text, state_line

NEARLY_FULL = 0.95


class MemoryPane(Pane):
    """Host memory first, then a bar and a history for each device's allocator."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            status = view.source("host")
            return Drawing([state_line("host", status) if status else Line(NOT_YET, DIM)], "Memory")
        spare = max(0, height - 3 - 2 * len(snapshot.allocators))
        each = min(8, spare // (1 + len(snapshot.allocators)))
        under = 1 + each if height >= 4 + 2 * len(snapshot.allocators) else 0
        lines = _job_rows(view, snapshot, width, 1 + (each or min(1, spare)))
        lines += _host_rows(snapshot.host, width)
        for allocator in snapshot.allocators:
            lines += _allocator_rows(snapshot, allocator, width, under, view.look)
        return Drawing(lines, "Memory", _swap_note(snapshot.host), view.stale("host"))


def _job_rows(view: View, snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    """Resident memory of the job's processes, with the history of the ranks'."""
    pids = view.pids()
    processes = [p for p in (snapshot.host.processes if snapshot.host else ()) if pids is None or p.pid in pids]
    sizes = [process.rss for process in processes if process.rss is not None]
    text = _who_has_it(processes)
    line = Line("job     ", DIM).add(size(sum(sizes) if sizes else None).rjust(7), BRIGHT).add("  ").add(text, DIM)
    values = snapshot.series.get("rss", Series()).values
    known = [value for value in values if value is not None]
    top = nice_ceiling(max(known, default=1.0))
    if rows > 1:
        return [line, *(Line().to(13).add(row, HOST_CHART) for row in braille(values, width - 13, rows - 1, top))]
    chart = width - line.width - 2
    return [line.add("  ").add(braille(values, chart, 1, top)[0], HOST_CHART)] if chart >= 6 else [line]


def _who_has_it(processes: list[ProcessSample]) -> str:
    parts = []
    for role, noun in (("rank", "rank"), ("loader-worker", "worker")):
        sizes = [process.rss for process in processes if process.role == role and process.rss is not None]
        if sizes:
            each = "" if len(sizes) == 1 else " each"
            parts.append(f"{plural(len(sizes), noun)} {size(sum(sizes) / len(sizes))}{each}")
    return ", ".join(parts)


def _host_rows(host: HostSample, width: int) -> list[Line]:
    machine, group = host.machine, host.cgroup
    used = None
    if machine.memory_total is not None and machine.memory_available is not None:
        used = machine.memory_total - machine.memory_available
    lines = [_gauge("machine", used, machine.memory_total, width)]
    if group is not None and group.memory_limit is not None:
        lines.append(_gauge("cgroup", group.memory_used, group.memory_limit, width))
    return lines


def _gauge(name: str, used: int | None, total: int | None, width: int) -> Line:
    share = None if used is None or not total else used / total
    line = Line(name.ljust(8), DIM).add(share_text(share), LOSS if (share or 0) >= NEARLY_FULL else TEXT).add(" ")
    text = f" {size(used)} of {size(total)}".rjust(18)
    return line.join(bar(share, max(4, width - line.width - len(text)), HOST_CHART)).add(text, DIM)


def _allocator_rows(snapshot: Snapshot, allocator: AllocatorSample, width: int, rows: int, look: Look) -> list[Line]:
    """Allocated within reserved within capacity; in `rows` more rows its peak, its fragments and its history."""
    capacity = allocator.capacity or _device_memory(snapshot, allocator.device) or allocator.reserved
    text = f" {size(allocator.allocated)} + {size(allocator.reserved - allocator.allocated)} cached".rjust(24)
    line = Line(f"cuda {allocator.device}".ljust(8), DIM)
    line.add(share_text(allocator.reserved / capacity if capacity else None), TEXT).add(" ")
    parts = (
        (allocator.allocated / capacity if capacity else 0.0, DEVICE_CHART, "█"),
        ((allocator.reserved - allocator.allocated) / capacity if capacity else 0.0, DEVICE_SOFT, _soft(look)),
    )
    line.join(layered_bar(parts, max(4, width - line.width - len(text)))).add(text, DIM)
    if not rows:
        return [line]
    second = Line().to(13)
    if allocator.peak_allocated is not None:
        second.add("peak ", DIM).add(size(allocator.peak_allocated).rjust(7), TEXT)
    if allocator.inactive_split and allocator.reserved:
        second.add("  split ", DIM).add(percent(allocator.inactive_split / allocator.reserved), TEXT)
    if allocator.retries:
        second.add(f"  {plural(allocator.retries, 'retry').replace('retrys', 'retries')}", LOSS)
    return [line, *_allocator_history(snapshot, allocator, second, width, rows)]


def _allocator_history(snapshot: Snapshot, allocator: AllocatorSample, line: Line, width: int, rows: int) -> list[Line]:
    """What was allocated over time: behind the figures of `line`, or below them where there are several rows."""
    values = snapshot.series.get(f"alloc{allocator.device}.allocated", Series()).values
    top = nice_ceiling(max((value for value in values if value is not None), default=1.0))
    chart = width - 13 if rows > 1 else width - line.width - 2
    if not values or chart < 6:
        return [line]
    if rows == 1:
        return [line.add("  ").add(braille(values, chart, 1, top)[0], DEVICE_CHART)]
    return [line, *(Line().to(13).add(row, DEVICE_CHART) for row in braille(values, chart, rows - 1, top))]


def _soft(look: Look) -> str:
    return "▒" if look.mono else "█"


def _device_memory(snapshot: Snapshot, device: int) -> int | None:
    devices = snapshot.gpu.devices if snapshot.gpu else ()
    return next((one.memory_total for one in devices if one.index == device), None)


def _swap_note(host: HostSample) -> Line | None:
    swap = host.machine.swap_used
    if swap is None:
        return None
    return Line(f"swap {size(swap)}", DIM if swap else FAINT)
