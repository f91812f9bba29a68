"""The memory pane: memory of the machine, of the cgroup and of the job, and the CUDA caching allocator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from rich.style import Style

from aitop.diagnosis.catalogue import FAMILIES
from aitop.model.host import HostSample, ProcessSample
from aitop.model.snapshot import Series, Snapshot
from aitop.model.steps import AllocatorSample
from aitop.model.units import count, plural, size
from aitop.ui.panes.since_mark import change, figure
from aitop.ui.state import View, labels_of, lead_word, serves
from aitop.ui.theme.palette import BRIGHT, DEVICE_CHART, DEVICE_SOFT, DIM, FAINT, HOST_CHART, LOSS, TEXT
from aitop.ui.widgets.bars import bar, gauge, layered_bar, nice_bytes
from aitop.ui.widgets.line import Line, rule, shorten
from aitop.ui.widgets.pane import WHOLE_JOB, Drawing
from aitop.ui.widgets.plot import ChartPane, Curve, Field, area
from aitop.ui.words import one_line, share_text, state_lines

NEARLY_FULL = 0.95
NEAR_CAPACITY = 0.4
SCALE = 13
NAMED = 14
INDENT = 8
LEAST_ROWS, MOST_ROWS = 2, 30
ROOM_FOR_LIST = 20
LEAST_WIDTH = 40
LEAST_STRIP = 6
MEMORY_VERDICTS = frozenset(dict(FAMILIES)["memory"])


class MemoryPane(ChartPane):
    """Host memory, then the bar, figures and history of each device's allocator."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            return Drawing(state_lines("host", view.source("host"), width), "Memory")
        limited = snapshot.host.cgroup is not None and snapshot.host.cgroup.memory_limit is not None
        lines = [_gauge(view, snapshot, name, width) for name in ("machine", *(["cgroup"] if limited else []))]
        allocators = snapshot.allocators
        resident = {"rss": "server" if serves(snapshot) else "ranks"}
        if height >= ROOM_FOR_LIST and snapshot.series.get("workers_rss", Series()).times:
            resident["workers_rss"] = "workers"
        listed = _holders(view, snapshot, width, height // 3) if height >= ROOM_FOR_LIST else []
        room = height - 2 - len(lines) - 2 * len(allocators) - len(listed)
        rows = min(MOST_ROWS, room // (len(resident) + len(allocators)))
        if rows < LEAST_ROWS or width < LEAST_WIDTH or not snapshot.series.get("rss", Series()).times:
            lines += _at_once(view, snapshot, width, height - len(lines))
        else:
            names = ["rss", *(f"alloc{allocator.device}.allocated" for allocator in allocators)]
            field = self.field(snapshot, names, width, SCALE)
            lines.append(_job_line(view, snapshot, width))
            for name, word in resident.items():
                values = field.values(name)
                lines += field.chart([Curve(values, HOST_CHART, filled=True)], rows, _top(values), size, word)
            for allocator in allocators:
                lines += [_allocator_bar(view, allocator, width), allocator_figures(view, allocator, width)]
                lines += _allocator_chart(view, field, allocator, rows)
            lines += [field.axis(lambda line: _reading(line, field, allocators, resident["rss"])), *listed]
        pids = view.pids()
        # The chart is always of the whole job; the allocators belong to the process whose steps are timed.
        narrowed = not allocators or (snapshot.steps is not None and snapshot.steps.pid in (pids or ()))
        scope = None if pids is None else f"{'chart' if narrowed else 'chart, cuda'}: {WHOLE_JOB}"
        return Drawing(lines, "Memory", _note(snapshot, snapshot.host), view.stale("host"), scope=scope)


def _at_once(view: View, snapshot: Snapshot, width: int, height: int) -> list[Line]:
    """Figures and bars, with histories of one row if they fit."""
    roomy = height >= 1 + 2 * len(snapshot.allocators)
    job = _job_line(view, snapshot, width)
    if height > 1 + (2 if roomy else 1) * len(snapshot.allocators):
        lines = [job, _with_history(snapshot, "rss", Line().to(SCALE), width, HOST_CHART)]
    else:
        lines = [_with_history(snapshot, "rss", job, width, HOST_CHART)]
    for allocator in snapshot.allocators:
        lines.append(_allocator_bar(view, allocator, width))
        if roomy:
            figures, name = allocator_figures(view, allocator, width), f"alloc{allocator.device}.allocated"
            lines.append(_with_history(snapshot, name, figures, width, DEVICE_CHART))
    return lines


def _with_history(snapshot: Snapshot, name: str, line: Line, width: int, ink: Style) -> Line:
    """The line with a series drawn as a chart in its free cells, if there are at least LEAST_STRIP."""
    line = line if line.width == SCALE else line.add("  ")
    values, cells = snapshot.series.get(name, Series()).values, width - line.width
    return line.join(area(values, cells, 1, _top(values), ink)[0]) if values and cells >= LEAST_STRIP else line


def _top(values: Sequence[float | None]) -> float:
    return nice_bytes(max((value for value in values if value is not None), default=1.0))


def _processes(view: View, snapshot: Snapshot) -> list[ProcessSample]:
    """The processes that the screen is narrowed to and whose resident memory is known."""
    return [process for process in view.narrowed_to(snapshot) if process.rss]


def _job_line(view: View, snapshot: Snapshot, width: int) -> Line:
    """The resident memory of the job, and the mean per rank and per loader worker."""

    def resident(one: Snapshot) -> int | None:
        return sum(process.rss or 0 for process in _processes(view, one)) or None

    line = Line("job     ", DIM).join(figure(view, resident, lambda held: size(held).rjust(7), BRIGHT)).add("  ")
    long, short = [], []
    for role, noun in (("rank", lead_word(snapshot)), ("loader-worker", "worker")):
        sizes = [process.rss or 0 for process in _processes(view, snapshot) if process.role == role]
        if sizes:
            mean = size(sum(sizes) / len(sizes))
            long.append(f"{plural(len(sizes), noun)}{' of' if len(sizes) > 1 else ''} {mean}")
            short.append(f"{noun} {mean}")
    texts = (", ".join(long), ", ".join(short))
    return line.add(next((text for text in texts if line.width + cell_len(text) <= width), ""), DIM)


def _holders(view: View, snapshot: Snapshot, width: int, most: int) -> list[Line]:
    """The processes by resident memory, the largest first, each with a bar, in at most `most` rows."""
    largest = sorted(_processes(view, snapshot), key=lambda process: -(process.rss or 0))
    shown = largest[: most - 2] if len(largest) > most - 1 else largest
    if not shown or snapshot.host is None:
        return []
    labels, room = labels_of(snapshot), max(4, width - NAMED - 19)
    lines = [rule("who has it", width)]
    for process in shown:
        line = Line(shorten(one_line(labels[process.pid]), NAMED - 2).ljust(NAMED), DIM)
        line.add(str(process.pid).rjust(8), FAINT).add(size(process.rss).rjust(9), TEXT).add("  ")
        lines.append(line.join(bar((process.rss or 0) / (shown[0].rss or 1), room, HOST_CHART)))
    rest = largest[len(shown) :]
    if rest:
        held = size(sum(process.rss or 0 for process in rest))
        lines.append(Line(f"{len(rest)} more".ljust(NAMED + 8), DIM).add(held.rjust(9), TEXT))
    return lines


def _allocator_chart(view: View, field: Field, allocator: AllocatorSample, rows: int) -> list[Line]:
    """Allocated (area) and reserved (line) memory over time, the peak dashed.

    The scale ends at the capacity if the peak is at least NEAR_CAPACITY of it.
    """
    peak, capacity = max(allocator.peak_allocated or 0, allocator.reserved), _capacity(view, allocator)
    top = float(capacity) if peak >= NEAR_CAPACITY * capacity else nice_bytes(1.1 * peak)
    layers = [Curve(field.values(f"alloc{allocator.device}.allocated"), DEVICE_CHART, filled=True)]
    if allocator.peak_allocated is not None:
        layers.append(Curve([allocator.peak_allocated] * (2 * field.span.cells), DIM, dashed=True))
    layers.append(Curve(field.values(f"alloc{allocator.device}.reserved"), TEXT))
    return field.chart(layers, rows, top, size)


def _reading(line: Line, field: Field, allocators: Sequence[AllocatorSample], resident: str) -> Line:
    """Append what the charts show at the cursor. `resident` is the word for who has the resident memory."""
    names = [(resident, "rss"), ("workers", "workers_rss")]
    for device in (allocator.device for allocator in allocators):
        names += [(f"cuda {device}", f"alloc{device}.allocated"), ("of", f"alloc{device}.reserved")]
    for word, name in names:
        value = field.at_cursor(name)
        if value is not None:
            line.add(f"{word} ", DIM).add(size(value).rjust(6), TEXT).add(" ")
    return line


def _filled(snapshot: Snapshot, name: str) -> tuple[int | None, int | None]:
    """Bytes used and bytes available in all, of the machine or of its "cgroup"; None if not known."""
    host = snapshot.host
    if name == "cgroup":
        return (host.cgroup.memory_used, host.cgroup.memory_limit) if host and host.cgroup else (None, None)
    total, left = (host.machine.memory_total, host.machine.memory_available) if host else (None, None)
    return (None if total is None or left is None else total - left), total


def _gauge(view: View, snapshot: Snapshot, name: str, width: int) -> Line:
    def share_of(snapshot: Snapshot) -> float | None:
        used, total = _filled(snapshot, name)
        return None if used is None or not total else used / total

    (used, total), share = _filled(snapshot, name), share_of(snapshot)
    style = LOSS if (share or 0) >= NEARLY_FULL else TEXT
    head = Line(name.ljust(8), DIM).join(figure(view, share_of, share_text, style, points=True)).add(" ")
    return gauge(head, share, Line(f" {size(used)} of {size(total)}".rjust(18), DIM), width, HOST_CHART)


def _capacity(view: View, allocator: AllocatorSample) -> int:
    """Bytes that the allocator can get; what it has reserved if neither the hook nor the driver says more."""
    devices = view.snapshot.gpu.devices if view.snapshot and view.snapshot.gpu else ()
    memory = next((device.memory_total for device in devices if device.index == allocator.gpu), None)
    return allocator.capacity or memory or max(1, allocator.reserved)


def _allocator_bar(view: View, allocator: AllocatorSample, width: int) -> Line:
    """A bar of the capacity with the allocated and the cached (reserved, not allocated) memory."""
    capacity, cached = _capacity(view, allocator), allocator.reserved - allocator.allocated
    text = f" {size(allocator.allocated)} + {size(cached)} cached".rjust(24)
    line = Line(f"cuda {allocator.device}".ljust(8), DIM).add(share_text(allocator.reserved / capacity), TEXT)
    line.join(_allocator_change(view, allocator.device, lambda one: one.reserved / capacity, points=True)).add(" ")
    parts = (
        (allocator.allocated / capacity, DEVICE_CHART, "█"),
        (cached / capacity, DEVICE_SOFT, "▒" if view.appearance.mono else "█"),
    )
    return line.join(layered_bar(parts, max(4, width - line.width - len(text)))).add(text, DIM)


def allocator_figures(view: View, allocator: AllocatorSample, width: int) -> Line:
    """Peak, inactive split share (fragmentation), retries and OOMs: as many as fit."""
    parts: list[Line] = []
    if allocator.peak_allocated is not None:
        by = _allocator_change(view, allocator.device, lambda one: one.peak_allocated)
        parts.append(Line("peak ", DIM).add(size(allocator.peak_allocated).rjust(7), TEXT).join(by))
    if _split(allocator) is not None:
        by = _allocator_change(view, allocator.device, _split, points=True)
        parts.append(Line("split ", DIM).add(share_text(_split(allocator)), TEXT).join(by))
    for name, number in (("retry", allocator.retries), ("OOM", allocator.ooms)):
        if number is not None:
            parts.append(Line(f"{name} ", DIM).add(count(number).rjust(2), LOSS if number else DIM))
    return Line().to(INDENT).join_fitting(parts, width)


def _split(allocator: AllocatorSample) -> float | None:
    if allocator.inactive_split is None or not allocator.reserved:
        return None
    return allocator.inactive_split / allocator.reserved


def _allocator_change(
    view: View, device: int, value_of: Callable[[AllocatorSample], float | None], *, points: bool = False
) -> Line:
    def of_device(snapshot: Snapshot) -> float | None:
        return next((value_of(allocator) for allocator in snapshot.allocators if allocator.device == device), None)

    return change(view, of_device, points=points)


def _note(snapshot: Snapshot, host: HostSample) -> Line | None:
    """The first verdict about memory, and the machine's used swap; None if neither is known."""
    swap, verdicts = host.machine.swap_used, snapshot.diagnosis.verdicts
    verdict = next((verdict.id for verdict in verdicts if verdict.id in MEMORY_VERDICTS), "")
    line = Line(verdict, LOSS)
    if swap is not None:
        line.add(" · " if verdict else "", FAINT).add(f"swap {size(swap)}", DIM if swap else FAINT)
    return line if line.width else None
