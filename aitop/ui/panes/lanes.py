"""What each loader worker does, now and over time: busy, waiting on something else than work, or idle. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.style import Style

from aitop.model.host import ProcessSample
from aitop.model.snapshot import Series, Snapshot
from aitop.model.units import NOT_SUPPORTED
from aitop.ui.changes import WIDTH, change, recent
from aitop.ui.line import Line, columns
from aitop.ui.palette import BRIGHT, DATA, DIM, FAINT, TROUGH, WAITING, lifted, over
from aitop.ui.view import View
from aitop.ui.widgets.plot import Span, slots, typical_gap
from aitop.ui.widgets.timeline import layered_bar
from aitop.ui.words import share_text

LANE = 22
ROOMY = 30
LEAST_BUSY = 0.02
STATE_WORDS = {"R": "runs", "S": "sleeps", "D": "disk", "T": "stopped", "t": "traced", "Z": "zombie", "I": "idle"}
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Use(NamedTuple):
    """Shares of a worker's time; they add up to one. `idle` is None where no stacks tell it from waiting."""

    busy: float
    waiting: float
    idle: float | None


def use_of(cpu: float | None, idle: float | None) -> Use | None:
    """Busy is what it used of a core; of the rest, `idle` (share of its stacks without work) is no wait."""
    if cpu is None:
        return None
    busy = min(1.0, max(0.0, cpu))
    if idle is None:
        return Use(busy, 0.0, None)
    without_work = min(1.0 - busy, idle)
    return Use(busy, max(0.0, 1.0 - busy - without_work), without_work)


def idle_shares(snapshot: Snapshot) -> dict[int, float]:
    """By process, the share of its samples in which it had nothing to do."""
    processes = snapshot.stacks.processes if snapshot.stacks else ()
    return {process.pid: process.idle for process in processes if process.idle is not None}


def lane_lines(
    view: View, workers: Sequence[ProcessSample], idle: Mapping[int, float], width: int, height: int
) -> list[Line]:
    """A bar for each worker as it is now, side by side where rows are few."""
    lane = LANE + (WIDTH if view.mark is not None else 0)
    per_row = 1 if len(workers) <= height else max(1, (width + 2) // (lane + 2))
    cell = (width - 2 * (per_row - 1)) // per_row
    lanes = [_lane(view, process, idle.get(process.pid), cell) for process in workers]
    return [columns([(lane, cell) for lane in lanes[at : at + per_row]]) for at in range(0, len(lanes), per_row)]


def _lane(view: View, process: ProcessSample, idle: float | None, width: int) -> Line:
    state = STATE_WORDS.get(process.state or "", process.state or NOT_SUPPORTED)
    state = state if width < ROOMY else state.ljust(7)
    line = Line(str(process.pid).ljust(7 if width < ROOMY else 8), DIM).add(share_text(process.cpu), BRIGHT)
    line.join(_cpu_change(view, process.pid)).add(" ")
    return line.join(_bar(use_of(process.cpu, idle), max(3, width - line.width - 8), view.look.mono)).add(
        f" {state}", DIM
    )


def _bar(use: Use | None, width: int, mono: bool) -> Line:
    if use is None:
        return Line("·" * width, TROUGH)
    return layered_bar(((use.busy, DATA.ink, "█"), (use.waiting, WAITING, "▒" if mono else "█")), width)


def _cpu_change(view: View, pid: int) -> Line:
    """The change of what a process uses of a core since the mark, in percentage points."""

    def cpu_of(snapshot: Snapshot) -> float | None:
        return recent(snapshot, f"worker{pid}.cpu")

    return change(view, cpu_of, points=True)


def strip_lines(  # noqa: PLR0917
    view: View,
    snapshot: Snapshot,
    workers: Sequence[ProcessSample],
    span: Span,
    axis: int,
    cursor: int | None = None,
) -> list[Line]:
    """A row for each worker over the time of `span`: the lower part of a cell is busy, what is above waits or idles."""
    return [_strip(view, snapshot, process, span, axis, cursor) for process in workers]


def _strip(  # noqa: PLR0917
    view: View, snapshot: Snapshot, process: ProcessSample, span: Span, axis: int, cursor: int | None
) -> Line:
    by = _cpu_change(view, process.pid)
    line = Line(str(process.pid).ljust(axis - 5 - by.width), DIM).add(share_text(process.cpu), BRIGHT).join(by).add(" ")
    cpu = snapshot.series.get(f"worker{process.pid}.cpu", Series())
    idle = snapshot.series.get(f"worker{process.pid}.idle", Series())
    used, without = slots(cpu, span, typical_gap(cpu)), slots(idle, span, typical_gap(idle))
    run, ink = "", FAINT
    for cell in range(span.cells):
        glyph, style = _cell(use_of(used[2 * cell + 1], without[2 * cell + 1]))
        style = lifted(style) if cell == cursor else style
        if style is not ink and run:
            line.add(run, ink)
            run = ""
        run, ink = run + glyph, style
    return line.add(run, ink)


def _cell(use: Use | None) -> tuple[str, Style]:
    """Busy as high as it was, on the hue of what the worker did for the rest of the time."""
    if use is None:
        return " ", FAINT
    waits = use.waiting > (use.idle or 0.0)
    glyph = _EIGHTHS[max(1 if use.busy > LEAST_BUSY else 0, round(use.busy * 8))]
    return glyph, over(DATA.ink, WAITING if waits else TROUGH)


def legend() -> Line:
    """What the hues of the lanes mean."""
    line = Line("█", DATA.ink).add(" busy  ", FAINT).add("█", WAITING).add(" waits  ", FAINT)
    return line.add("█", TROUGH).add(" idle", FAINT)
