"""The data pane: loader queue, copies to the device, loader workers, disk and network."""

from __future__ import annotations

from typing import NamedTuple

from rich.style import Style

from aitop.model.host import ProcessSample
from aitop.model.snapshot import Series, Snapshot
from aitop.model.steps import PAGEABLE, LoaderInfo, pageable_share
from aitop.model.units import NOT_SUPPORTED, NOT_YET, count, duration, percent, plural, rate, size
from aitop.ui.panes.code.hot_lines import lines_below, room_below
from aitop.ui.panes.since_mark import WIDTH, change, field_of, figure, recent
from aitop.ui.panes.step_figures import Figure, costliest_call
from aitop.ui.state import View, serves
from aitop.ui.theme.palette import BRIGHT, DATA, DIM, FAINT, LOSS, TEXT, TRANSFER, TROUGH, WAITING, lifted, over
from aitop.ui.widgets.bars import EIGHTHS, layered_bar
from aitop.ui.widgets.line import Line, columns
from aitop.ui.widgets.pane import WHOLE_JOB, Drawing
from aitop.ui.widgets.plot import ChartPane, Curve, Field, area
from aitop.ui.words import PROCESS_STATES, one_line, share_text, state_lines

ROOM_FOR_STRIPS = 9
MOST_STRIPS = 16
ROOM_FOR_LINES = 20
LEAST_WIDTH = 44
SCALE = 13
"""Cells left of a chart: room for a pid and a share."""


class DataPane(ChartPane):
    """Shows whether a batch is ready when a step asks for it, and what the loader workers do."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        if snapshot is None or snapshot.host is None:
            return Drawing(state_lines("host", view.source("host"), width), "Data")
        workers = _workers(view, snapshot)
        room = len(workers) <= MOST_STRIPS and height >= len(workers) + ROOM_FOR_STRIPS
        draw = self._over_time if room and width >= LEAST_WIDTH else _at_once
        lines = draw(view, snapshot, workers, width, height)
        used, by = _cores(view, snapshot), change(view, lambda one: _cores(view, one))
        note = None if used is None else Line(f"workers use {used:.1f} cores", DIM).join(by)
        scope = None if view.pids() is None else f"queue, disk, net: {WHOLE_JOB}"
        return Drawing(lines, "Data", note, view.stale("host"), scope=scope)

    def _over_time(
        self, view: View, snapshot: Snapshot, workers: list[ProcessSample], width: int, height: int
    ) -> list[Line]:
        """The facts, and below them charts of the queue and the workers on one time axis."""
        lines = _facts(view, snapshot, workers, width, 4)
        names = [name for name in snapshot.series if name.startswith(("worker", "queue_"))]
        field = self.field(snapshot, names, width, SCALE + (WIDTH if view.mark is not None else 0))
        free = height - len(lines) - len(workers) - 2
        rows = max(2, free if free < ROOM_FOR_LINES else free * 3 // 5)
        head, top = _queue_head(view, snapshot)
        lines.append(head)
        if top is not None:
            ready = Curve(field.values("queue_ready", mean=True), DATA.ink, filled=True)
            lines += field.chart([ready], rows, top, "{:.0f}".format)
        lines += [_strip(view, process, field) for process in workers]
        legend = Line("█", DATA.ink).add(" busy  ", FAINT).add("█", WAITING).add(" waits  ", FAINT)
        legend.add("█", TROUGH).add(" idle", FAINT)
        lines.append(field.axis(lambda line: _reading(line, field, workers), legend if workers else None))
        pids, room = frozenset(process.pid for process in workers), room_below(len(lines), height)
        return [*lines, *lines_below(view, "what the workers run", width, room, pids=pids)]


def _at_once(view: View, snapshot: Snapshot, workers: list[ProcessSample], width: int, height: int) -> list[Line]:
    """The queue, the facts, and a bar per worker with its current use; several bars to a row if rows are few."""
    lane = LANE + (WIDTH if view.mark is not None else 0)
    per_row = 1 if len(workers) <= height - 6 else max(1, (width + 2) // (lane + 2))
    cell = (width - 2 * (per_row - 1)) // per_row
    # By pid, the share of a worker's samples in which it had no work.
    idle = {process.pid: process.idle for process in (snapshot.stacks.processes if snapshot.stacks else ())}
    bars = [(_lane(view, process, idle.get(process.pid), cell), cell) for process in workers]
    lanes = [columns(bars[at : at + per_row]) for at in range(0, len(bars), per_row)]
    facts = _facts(view, snapshot, workers, width, height - 1 - len(lanes))
    rows = max(1, min(7, height - len(facts) - len(lanes)))
    return [*queue_lines(view, snapshot, width, rows), *facts, *lanes]


def _facts(view: View, snapshot: Snapshot, workers: list[ProcessSample], width: int, rows: int) -> list[Line]:
    """The set-up of the loader, copies to the device, disk and network: at most `rows` lines, but at least one."""
    loader = loader_line(snapshot.facts.main_loader if snapshot.facts else None, len(workers), width)
    lines = [loader, copies(view, snapshot, width), _traffic(view, width)]
    known = [line for line in lines if line is not None]
    while len(known) > max(1, rows):
        # Drop the copies first, then the loader, whose set-up seldom changes; keep disk and network.
        known.pop(1 if len(known) > 2 else 0)
    return known


def _known_ready(snapshot: Snapshot) -> list[float]:
    return [value for value in snapshot.series.get("queue_ready", Series()).values if value is not None]


def _ready(snapshot: Snapshot) -> float | None:
    """The number of batches that were ready at the last step."""
    known = _known_ready(snapshot)
    return known[-1] if known else None


def _queue_head(view: View, snapshot: Snapshot) -> tuple[Line, float | None]:
    """The line about the batches that were ready at the last step, and the top of the chart's scale in batches.

    The top is None if nothing is known of the queue.
    """
    line, loader = Line("queue   ", DIM), snapshot.facts.main_loader if snapshot.facts else None
    known = _known_ready(snapshot)
    if not known:
        missing, why = _no_queue(snapshot, loader)
        return line.add(missing, DIM).add("  " + why, FAINT), None
    # How many batches the workers prefetch together; torch prefetches 2 per worker by default.
    capacity = loader.workers * (loader.prefetch or 2) if loader and loader.workers else None
    line.add(f"{known[-1]:2.0f}", TEXT).join(change(view, _ready, points=True, unit=1.0))
    return line.add(f" of {capacity} ready" if capacity else " ready", DIM), capacity or max(known) or 1


def queue_lines(view: View, snapshot: Snapshot, width: int, rows: int) -> list[Line]:
    """The queue in `rows` lines: its figures with the history to the right of them."""
    head, top = _queue_head(view, snapshot)
    if top is None:
        return [head]
    cells = max(4, width - head.add("  ").width)
    drawn = area(snapshot.series["queue_ready"].values, cells, rows, top, DATA.ink)
    return [head.join(drawn[0]), *(Line().to(width - cells).join(row) for row in drawn[1:])]


def _reading(line: Line, field: Field, workers: list[ProcessSample]) -> Line:
    ready = field.at_cursor("queue_ready", mean=True)
    line.add("ready ", DIM).add(NOT_SUPPORTED if ready is None else f"{ready:.1f}", TEXT)
    used = [field.at_cursor(f"worker{process.pid}.cpu") for process in workers]
    known = [value for value in used if value is not None]
    return line.add("  workers ", DIM).add(f"{sum(known):.1f} cores" if known else NOT_SUPPORTED, TEXT)


def loader_line(loader: LoaderInfo | None, workers: int, width: int) -> Line:
    """The set-up of the loader: as many facts as fit, none cut off."""
    if loader is None:
        seen = f"{plural(workers, 'worker')} seen" if workers else NOT_SUPPORTED
        return Line("loader  ", DIM).add(seen, TEXT if workers else DIM)
    facts = [
        f"batch {count(loader.batch_size)}" if loader.batch_size is not None else "",
        f"prefetch {loader.prefetch}" if loader.prefetch is not None else "",
        "pinned" if loader.pin_memory else "",
        "persistent" if loader.persistent else "",
        one_line(loader.dataset or ""),
    ]
    workers_of = Line(plural(loader.workers, "worker") if loader.workers else "in the main process")
    return Line("loader  ", DIM).join_fitting([workers_of, *(Line(fact, DIM) for fact in facts if fact)], width, " · ")


def _no_queue(snapshot: Snapshot, loader: LoaderInfo | None) -> tuple[str, str]:
    """The sign for the missing figure (NOT_SUPPORTED or NOT_YET), and why nothing is known of the queue."""
    if loader is not None and loader.workers == 0:
        return NOT_SUPPORTED, "no queue: batches are made in the main process"
    if serves(snapshot):
        return NOT_SUPPORTED, "no loader: requests bring the data"
    hook = snapshot.sources.get("hook")
    if snapshot.facts is not None or hook is None or hook.state not in ("absent", "denied", "failed"):
        return NOT_YET, "not measured yet"
    return NOT_SUPPORTED, "needs the hook"


def _traffic(view: View, width: int) -> Line:
    net = Line("net ", DIM).join(_rate(view, "in", "net_received")).add(" ").join(_rate(view, "out", "net_sent"))
    waits = figure(view, field_of("host.machine.iowait"), lambda share: percent(share).rjust(5), points=True)
    wait = Line("iowait ", DIM).join(waits)
    disk = Line("disk    ", DIM).join(_rate(view, "in", "disk_read")).add(" ").join(_rate(view, "out", "disk_write"))
    both = net.width + wait.width + 4 + disk.width <= width
    return disk.add("  ").join(net).add("  ").join(wait) if both else disk.add("  ").join_fitting([wait], width)


def _rate(view: View, way: str, field: str) -> Line:
    value_of = field_of(f"host.machine.{field}")
    return Line(f"{way} ", DIM).join(figure(view, value_of, lambda value: rate(value).rjust(8), DIM))


def _workers(view: View, snapshot: Snapshot) -> list[ProcessSample]:
    return [process for process in view.narrowed_to(snapshot) if process.role == "loader-worker"]


def _cores(view: View, snapshot: Snapshot) -> float | None:
    used = [process.cpu for process in _workers(view, snapshot) if process.cpu is not None]
    return sum(used) if used else None


def copies(view: View, snapshot: Snapshot, width: int) -> Line | None:
    """Host-to-device copies: rate, bytes per step, share from pageable memory, time, and the costliest call site.

    None if no step has measured copies.
    """
    steps, seconds, moved, taken = _copied(snapshot)
    if seconds <= 0:
        return None
    parts = [
        figure(view, _copy_rate, lambda value: rate(value).rjust(8)),
        Line(size(moved / steps).rjust(7), TEXT).add("/step", DIM),
    ]
    share = pageable_share(snapshot.facts.calls) if snapshot.facts else None
    if share is not None:
        parts.append(Line(share_text(share), LOSS if share >= PAGEABLE else TEXT).add(" pageable", DIM))
    time = Line(duration(taken / steps).rjust(7), TEXT).add(" ").add(share_text(taken / seconds), TRANSFER.ink)
    return Figure("copies", [*parts, time, *costliest_call(snapshot.facts, "transfer")]).line(width)


def _copied(snapshot: Snapshot) -> tuple[int, float, float, float]:
    """Of the recent steps with measured copies: their number, total seconds, bytes copied, and seconds of copying."""
    recent = snapshot.steps.recent if snapshot.steps else ()
    steps = [step for step in recent if step.transfer_bytes is not None]
    moved, taken = sum(step.transfer_bytes or 0 for step in steps), sum(step.transfer or 0.0 for step in steps)
    return len(steps), sum(step.seconds for step in steps), moved, taken


def _copy_rate(snapshot: Snapshot) -> float | None:
    _, seconds, moved, _ = _copied(snapshot)
    return moved / seconds if seconds > 0 else None


LANE = 22
ROOMY = 30
LEAST_BUSY = 0.02


class Use(NamedTuple):
    """Shares (0..1) of a worker's time, which add up to 1.

    Without stacks, idle and waiting cannot be told apart: `idle` is then None and `waiting` 0.
    """

    busy: float
    waiting: float
    idle: float | None


def use_of(cpu: float | None, idle: float | None) -> Use | None:
    """How a worker uses its time; None without a `cpu` figure.

    `cpu` (cores, cut to 1) is busy. `idle`, the share of its stack samples without work, is idle. The rest is waiting.
    """
    if cpu is None:
        return None
    busy = min(1.0, max(0.0, cpu))
    if idle is None:
        return Use(busy, 0.0, None)
    without_work = min(1.0 - busy, idle)
    return Use(busy, max(0.0, 1.0 - busy - without_work), without_work)


def _lane(view: View, process: ProcessSample, idle: float | None, width: int) -> Line:
    state = PROCESS_STATES.get(process.state or "", process.state or NOT_SUPPORTED)
    state = state if width < ROOMY else state.ljust(7)
    line = Line(str(process.pid).ljust(7 if width < ROOMY else 8), DIM).add(share_text(process.cpu), BRIGHT)
    line.join(_cpu_change(view, process.pid)).add(" ")
    use, cells = use_of(process.cpu, idle), max(3, width - line.width - 8)
    if use is None:
        line.add("·" * cells, TROUGH)
    else:
        waits = (use.waiting, WAITING, "▒" if view.appearance.mono else "█")
        line.join(layered_bar(((use.busy, DATA.ink, "█"), waits), cells))
    return line.add(f" {state}", DIM)


def _cpu_change(view: View, pid: int) -> Line:
    """The change of a process's CPU use since the mark, in percentage points of a core."""
    return change(view, lambda one: recent(one, f"worker{pid}.cpu"), points=True)


def _strip(view: View, process: ProcessSample, field: Field) -> Line:
    """A worker over time: each cell is filled from below as far as it was busy, over the hue for waiting or idle."""
    by = _cpu_change(view, process.pid)
    line = Line(str(process.pid).ljust(field.scale - 5 - by.width), DIM)
    line.add(share_text(process.cpu), BRIGHT).join(by).add(" ")
    used, idle = (field.values(f"worker{process.pid}.{name}") for name in ("cpu", "idle"))
    cells = [_cell(use_of(*uses)) for uses in zip(used[1::2], idle[1::2], strict=True)]
    if field.cell is not None:
        cells[field.cell] = cells[field.cell][0], lifted(cells[field.cell][1])
    return line.extend(cells)


def _cell(use: Use | None) -> tuple[str, Style]:
    """A cell of a strip: the height is the busy share, the background says whether it mostly waited or idled else."""
    if use is None:
        return " ", FAINT
    waits = use.waiting > (use.idle or 0.0)
    glyph = EIGHTHS[max(1 if use.busy > LEAST_BUSY else 0, round(use.busy * 8))]
    return glyph, over(DATA.ink, WAITING if waits else TROUGH)
