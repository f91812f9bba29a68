"""Memory: the job's own, the machine's and its limit, and the CUDA caching allocator."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from rich.style import Style

from aitop.model.host import HostSample, ProcessSample
from aitop.model.snapshot import Series, Snapshot
from aitop.model.steps import AllocatorSample
from aitop.model.units import NOT_YET, count, size
from aitop.ui.panes.since_mark import change
from aitop.ui.state import View, labels_of
from aitop.ui.theme.palette import BRIGHT, DEVICE_CHART, DEVICE_SOFT, DIM, FAINT, HOST_CHART, LOSS, TEXT
from aitop.ui.theme.themes import Look
from aitop.ui.widgets.bars import bar, layered_bar, nice_bytes
from aitop.ui.widgets.chart_pane import ChartPane
from aitop.ui.widgets.line import Line, rule, shorten
from aitop.ui.widgets.pane import Drawing
from aitop.ui.widgets.plot import (
    Curve,
    Span,
    ago,
    area,
    curves,
    scale_labels,
    scaled,
    slots,
    span_of,
    time_axis,
    typical_gap,
    value_at,
)
from aitop.ui.words import one_line, plural, share_text, state_line

NEARLY_FULL = 0.95
NEAR_CAPACITY = 0.4
SCALE = 13
NAMED = 14
INDENT = 8
LEAST_ROWS, MOST_ROWS = 2, 30
ROOM_FOR_LIST = 20
ROOM_FOR_WORD = 3
LEAST_WIDTH = 40
LEAST_STRIP = 6
MEMORY_VERDICTS = frozenset({"oom-risk", "memory-leak", "host-memory-pressure"})


class MemoryPane(ChartPane):
    """Host memory first, then a bar and a history for each device's allocator."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        self.moments = ()
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            status = view.source("host")
            return Drawing([state_line("host", status) if status else Line(NOT_YET, DIM)], "Memory")
        gauges, allocators = _host_rows(view, snapshot.host, width), snapshot.allocators
        charts = (2 if _workers_apart(snapshot, height) else 1) + len(allocators)
        listed = _holders(view, snapshot, width, height // 3) if height >= ROOM_FOR_LIST else []
        each = min(MOST_ROWS, (height - 2 - len(gauges) - 2 * len(allocators) - len(listed)) // charts)
        if each < LEAST_ROWS or width < LEAST_WIDTH or not snapshot.series.get("rss", Series()).times:
            lines = _at_once(view, snapshot, gauges, width, height)
        else:
            lines = self._over_time(view, snapshot, gauges, width, height, each) + listed
        return Drawing(lines, "Memory", _note(snapshot, snapshot.host), view.stale("host"))

    def _over_time(  # noqa: PLR0917
        self, view: View, snapshot: Snapshot, gauges: list[Line], width: int, height: int, rows: int
    ) -> list[Line]:
        """Every chart of the pane on one axis of time, each of `rows` rows under its figures."""
        names = ["rss", *(f"alloc{one.device}.allocated" for one in snapshot.allocators)]
        known = [snapshot.series[name] for name in names if name in snapshot.series]
        span = span_of(known, snapshot.time, width - SCALE)
        self.moments = span.moments()
        at = span.cell(self.cursor)
        lines = [*gauges, _job_line(view, snapshot, width), *_resident_chart(snapshot, "rss", "ranks", span, rows, at)]
        if _workers_apart(snapshot, height):
            lines += _resident_chart(snapshot, "workers_rss", "workers", span, rows, at)
        for allocator in snapshot.allocators:
            lines += [
                _allocator_bar(view, snapshot, allocator, width),
                allocator_figures(view, allocator, width),
            ]
            lines += _allocator_chart(snapshot, allocator, span, rows, at)
        if at is None or self.cursor is None:
            return [*lines, time_axis(span, SCALE)]
        return [*lines, _reading(snapshot, span, self.cursor)]


def _at_once(view: View, snapshot: Snapshot, gauges: list[Line], width: int, height: int) -> list[Line]:
    """Figures and bars; histories of one row where they fit."""
    roomy = height >= 1 + len(gauges) + 2 * len(snapshot.allocators)
    lines = [*gauges, _job_row(view, snapshot, width)]
    if height > len(lines) + (2 if roomy else 1) * len(snapshot.allocators):
        lines[-1:] = [_job_line(view, snapshot, width), _one_row(snapshot, "rss", Line().to(SCALE), width, HOST_CHART)]
    for allocator in snapshot.allocators:
        lines.append(_allocator_bar(view, snapshot, allocator, width))
        if roomy:
            figures, name = allocator_figures(view, allocator, width), f"alloc{allocator.device}.allocated"
            lines.append(_one_row(snapshot, name, figures, width, DEVICE_CHART))
    return lines


def _one_row(snapshot: Snapshot, name: str, line: Line, width: int, ink: Style) -> Line:
    """A series in what is left of the line, where that is enough for anything."""
    gap = "" if line.width == SCALE else "  "
    values, chart = snapshot.series.get(name, Series()).values, width - line.width - len(gap)
    top = nice_bytes(max((value for value in values if value is not None), default=1.0))
    return line.add(gap).join(area(values, chart, 1, top, ink)[0]) if values and chart >= LEAST_STRIP else line


def _job_line(view: View, snapshot: Snapshot, width: int) -> Line:
    """Resident memory of the job's processes, and who has it."""
    pids = view.pids()
    processes = [p for p in (snapshot.host.processes if snapshot.host else ()) if pids is None or p.pid in pids]
    sizes = [process.rss for process in processes if process.rss is not None]
    line = Line("job     ", DIM).add(size(sum(sizes) if sizes else None).rjust(7), BRIGHT)
    line.join(change(view, lambda one: _resident(view, one)))
    line.add("  ")
    fitting = (text for text in (_who_has_it(processes), _who_has_it(processes, short=True)) if text)
    return line.add(next((text for text in fitting if line.width + cell_len(text) <= width), ""), DIM)


def _holders(view: View, snapshot: Snapshot, width: int, most: int) -> list[Line]:
    """Who has the job's memory: a bar each, the largest first."""
    pids, processes = view.pids(), snapshot.host.processes if snapshot.host else ()
    sizes = {one.pid: one.rss for one in processes if one.rss and (pids is None or one.pid in pids)}
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])
    shown = largest[: most - 2] if len(largest) > most - 1 else largest
    if not shown:
        return []
    labels, room = labels_of(processes), max(4, width - NAMED - 19)
    lines = [rule("who has it", width)]
    for pid, held in shown:
        line = Line(shorten(one_line(labels[pid]), NAMED - 2).ljust(NAMED), DIM).add(str(pid).rjust(8), FAINT)
        lines.append(line.add(size(held).rjust(9), TEXT).add("  ").join(bar(held / shown[0][1], room, HOST_CHART)))
    rest = sum(held for _, held in largest[len(shown) :])
    if rest:
        lines.append(Line(f"{len(largest) - len(shown)} more".ljust(NAMED + 8), DIM).add(size(rest).rjust(9), TEXT))
    return lines


def _resident(view: View, snapshot: Snapshot) -> float | None:
    pids = view.pids()
    processes = snapshot.host.processes if snapshot.host else ()
    sizes = [one.rss for one in processes if one.rss is not None and (pids is None or one.pid in pids)]
    return float(sum(sizes)) if sizes else None


def _job_row(view: View, snapshot: Snapshot, width: int) -> Line:
    return _one_row(snapshot, "rss", _job_line(view, snapshot, width), width, HOST_CHART)


def _workers_apart(snapshot: Snapshot, height: int) -> bool:
    """Whether there is room for a chart of the loader workers' memory beside that of the ranks."""
    return height >= ROOM_FOR_LIST and bool(snapshot.series.get("workers_rss", Series()).times)


def _resident_chart(  # noqa: PLR0917
    snapshot: Snapshot, name: str, word: str, span: Span, rows: int, cursor: int | None
) -> list[Line]:
    """Resident memory of the ranks, or of the loader workers, over time."""
    series = snapshot.series.get(name, Series())
    top = nice_bytes(max((value for value in series.values if value is not None), default=1.0))
    area = Curve(slots(series, span, typical_gap(series)), HOST_CHART, filled=True)
    labels = scale_labels(rows, top, size)
    if rows >= ROOM_FOR_WORD:
        labels[1] = word
    return scaled(curves([area], span.cells, rows, top, cursor), labels, SCALE)


def _allocator_chart(
    snapshot: Snapshot, allocator: AllocatorSample, span: Span, rows: int, cursor: int | None
) -> list[Line]:
    """Allocated (area) within reserved (line) over time, the peak dashed; up to the capacity where that is near."""
    allocated, reserved = (_series(snapshot, allocator, name) for name in ("allocated", "reserved"))
    peak = max(allocator.peak_allocated or 0, allocator.reserved)
    capacity = _capacity(snapshot, allocator)
    top = float(capacity) if peak >= NEAR_CAPACITY * capacity else nice_bytes(1.1 * peak)
    layers = [Curve(slots(allocated, span, typical_gap(allocated)), DEVICE_CHART, filled=True)]
    if allocator.peak_allocated is not None:
        layers.append(Curve([allocator.peak_allocated] * (2 * span.cells), DIM, dashed=True))
    layers.append(Curve(slots(reserved, span, typical_gap(reserved)), TEXT))
    return scaled(curves(layers, span.cells, rows, top, cursor), scale_labels(rows, top, size), SCALE)


def _series(snapshot: Snapshot, allocator: AllocatorSample, name: str) -> Series:
    return snapshot.series.get(f"alloc{allocator.device}.{name}", Series())


def _reading(snapshot: Snapshot, span: Span, cursor: float) -> Line:
    """What was held at the cursor."""
    line = Line(ago(snapshot.time, cursor), TEXT).add("  ")
    names = [("ranks", "rss"), ("workers", "workers_rss")]
    for one in snapshot.allocators:
        names += [(f"cuda {one.device}", f"alloc{one.device}.allocated"), ("of", f"alloc{one.device}.reserved")]
    for word, name in names:
        series = snapshot.series.get(name, Series())
        value = value_at(slots(series, span, typical_gap(series)), span, cursor)
        if value is not None:
            line.add(f"{word} ", DIM).add(size(value).rjust(6), TEXT).add(" ")
    return line


def _who_has_it(processes: list[ProcessSample], *, short: bool = False) -> str:
    """How much a rank and a loader worker have; `short` leaves out how many there are."""
    parts = []
    for role, noun in (("rank", "rank"), ("loader-worker", "worker")):
        sizes = [process.rss for process in processes if process.role == role and process.rss is not None]
        if sizes:
            of = "" if len(sizes) == 1 else "of "
            name = noun if short else f"{plural(len(sizes), noun)} {of}".rstrip()
            parts.append(f"{name} {size(sum(sizes) / len(sizes))}")
    return ", ".join(parts)


Filled = tuple["int | None", "int | None"]
"""Bytes used, and of how many."""


def _host_rows(view: View, host: HostSample, width: int) -> list[Line]:
    lines = [_gauge(view, "machine", _machine, _machine(host), width)]
    if host.cgroup is not None and host.cgroup.memory_limit is not None:
        lines.append(_gauge(view, "cgroup", _group, _group(host), width))
    return lines


def _machine(host: HostSample) -> Filled:
    total, left = host.machine.memory_total, host.machine.memory_available
    return (None if total is None or left is None else total - left), total


def _group(host: HostSample) -> Filled:
    return (host.cgroup.memory_used, host.cgroup.memory_limit) if host.cgroup else (None, None)


def _gauge(view: View, name: str, filled_of: Callable[[HostSample], Filled], filled: Filled, width: int) -> Line:
    """How full something is, its change since the mark, a bar and the amounts."""
    (used, total), share = filled, _share(filled)
    line = Line(name.ljust(8), DIM).add(share_text(share), LOSS if (share or 0) >= NEARLY_FULL else TEXT)
    line.join(change(view, lambda one: _share(filled_of(one.host)) if one.host else None, points=True)).add(" ")
    text = f" {size(used)} of {size(total)}".rjust(18)
    return line.join(bar(share, max(4, width - line.width - len(text)), HOST_CHART)).add(text, DIM)


def _share(filled: Filled) -> float | None:
    used, total = filled
    return None if used is None or not total else used / total


def _capacity(snapshot: Snapshot, allocator: AllocatorSample) -> int:
    return allocator.capacity or _device_memory(snapshot, allocator.device) or max(1, allocator.reserved)


def _allocator_bar(view: View, snapshot: Snapshot, allocator: AllocatorSample, width: int) -> Line:
    """Allocated within reserved within capacity."""
    capacity = _capacity(snapshot, allocator)
    text = f" {size(allocator.allocated)} + {size(allocator.reserved - allocator.allocated)} cached".rjust(24)
    line = Line(f"cuda {allocator.device}".ljust(8), DIM).add(share_text(allocator.reserved / capacity), TEXT)
    line.join(_allocator_change(view, allocator.device, lambda one: one.reserved / capacity, points=True)).add(" ")
    parts = (
        (allocator.allocated / capacity, DEVICE_CHART, "█"),
        ((allocator.reserved - allocator.allocated) / capacity, DEVICE_SOFT, _soft(view.look)),
    )
    return line.join(layered_bar(parts, max(4, width - line.width - len(text)))).add(text, DIM)


def allocator_figures(view: View, allocator: AllocatorSample, width: int) -> Line:
    """Peak, share split, retries and OOMs: as many of them as fit."""
    parts: list[Line] = []
    if allocator.peak_allocated is not None:
        by = _allocator_change(view, allocator.device, lambda one: one.peak_allocated)
        parts.append(Line("peak ", DIM).add(size(allocator.peak_allocated).rjust(7), TEXT).join(by))
    if allocator.inactive_split is not None and allocator.reserved:
        by = _allocator_change(view, allocator.device, _split, points=True)
        parts.append(Line("split ", DIM).add(share_text(_split(allocator)), TEXT).join(by))
    for name, number in (("retry", allocator.retries), ("OOM", allocator.ooms)):
        if number is not None:
            parts.append(Line(f"{name} ", DIM).add(count(number).rjust(2), LOSS if number else DIM))
    line = Line().to(INDENT)
    for part in parts:
        gap = 0 if line.width == INDENT else 2
        if line.width + gap + part.width <= width:
            line.add(" " * gap).join(part)
    return line


def _split(allocator: AllocatorSample) -> float | None:
    if allocator.inactive_split is None or not allocator.reserved:
        return None
    return allocator.inactive_split / allocator.reserved


def _allocator_change(
    view: View, device: int, value_of: Callable[[AllocatorSample], float | None], *, points: bool = False
) -> Line:
    """The change of a figure of a device's allocator since the mark."""

    def of_device(snapshot: Snapshot) -> float | None:
        return next((value_of(one) for one in snapshot.allocators if one.device == device), None)

    return change(view, of_device, points=points)


def _soft(look: Look) -> str:
    return "▒" if look.mono else "█"


def _device_memory(snapshot: Snapshot, device: int) -> int | None:
    devices = snapshot.gpu.devices if snapshot.gpu else ()
    return next((one.memory_total for one in devices if one.index == device), None)


def _note(snapshot: Snapshot, host: HostSample) -> Line | None:
    """The first verdict about memory, and how much lies in swap."""
    swap, verdicts = host.machine.swap_used, snapshot.diagnosis.verdicts
    line = Line()
    verdict = next((verdict for verdict in verdicts if verdict.id in MEMORY_VERDICTS), None)
    if verdict is not None:
        line.add(verdict.id, LOSS)
    if swap is not None:
        line.add(" · " if line.width else "", FAINT).add(f"swap {size(swap)}", DIM if swap else FAINT)
    return line if line.width else None
