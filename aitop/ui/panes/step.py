"""The step pane: a bar of the phases, a legend with figures, the last steps as stacked columns, and step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.style import Style

from aitop.model.phases import APART, MEASURED
from aitop.model.snapshot import Phases, Series, Snapshot, Steps
from aitop.model.source import SourceName
from aitop.model.steps import StepRecord, total
from aitop.model.units import NOT_YET, count, duration, plural
from aitop.ui.panes.since_mark import WIDTH, change, field_of
from aitop.ui.panes.step_figures import figure_lines, measured_figures
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, HOST_CHART, HOST_SOFT, OUTSIDE, PHASES, TEXT, Kind, phase_of
from aitop.ui.widgets.bars import Parts, height_of, nice_ceiling, phase_bar, stacked
from aitop.ui.widgets.line import Line, columns
from aitop.ui.widgets.pane import WHOLE_JOB, Drawing
from aitop.ui.widgets.plot import AXIS, ChartPane, Curve, Field, ago, nearest, scale_labels, scaled
from aitop.ui.words import needs_hook, share_text, state_lines, waits_for_target

LEAST_CHART = 3
ROOM_FOR_HISTORY = 12
ROOM_FOR_TWO = 6
LEGEND_GAP = 2
LEGENDS = ((24, True, True), (16, False, True), (10, False, False))
"""Forms of the legend from full to terse: cells of an entry, whether it has its time, whether its full name."""


class StepPane(ChartPane):
    """Shares of a step by phase, figures and history. Without the hook only the shares, estimated from stacks."""

    _captioned = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        steps, whose = steps_for(snapshot, view.pids()) if snapshot else (None, None)
        if snapshot is None or steps is None:
            names: tuple[SourceName, ...] = ("hook", "stacks") if snapshot else ()
            sources = [line for name in names for line in state_lines(name, view.source(name), width)]
            word = f"{NOT_YET} no step was seen yet" if snapshot else NOT_YET
            return Drawing([Line(word, DIM), *sources], "Step", Line(NOT_YET, DIM))
        shares = phase_shares(steps)
        lines = [phase_bar(shares, width, letters=view.appearance.mono)]
        figures = measured_figures(view) if steps is snapshot.steps else []
        least = LEAST_CHART + bool(figures)
        room = max(2 if height >= ROOM_FOR_TWO else 1, min((height - 1) // 2, height - 1 - least))
        lines += _legend(shares, steps.mean, width, room, view)
        lines += figure_lines(figures, width, max(0, height - len(lines) - LEAST_CHART))
        rest = height - len(lines)
        if steps.recent:
            lines += self._charts(view, snapshot, steps, width, rest)
        elif rest > 0 and steps is not snapshot.steps:
            lines.append(Line("step times are measured in one rank only", DIM))
        elif rest > 0:
            lines += needs_hook("step times need the hook", view.source("hook"), width)[-rest:]
        stale = view.stale("hook" if steps.basis == "hook" else "stacks")
        return Drawing(lines, _title(steps, view), self._note(view, snapshot, steps, width), stale, scope=whose)

    def _charts(self, view: View, snapshot: Snapshot, steps: Steps, width: int, height: int) -> list[Line]:
        """The last steps by phase and, if there is room, the step times of the last minutes below them."""
        groups = groups_of(steps.recent, width - AXIS)
        timed = height >= ROOM_FOR_HISTORY and snapshot.series.get("step_p50", Series()).times
        field = self.field(snapshot, ["step_p50"], width, AXIS) if timed else None
        below = max(LEAST_HISTORY, height * 2 // 5) if field is not None else 0
        recent = [group[-1].end for group in groups]
        self.moments = [moment for moment in self.moments if moment < recent[0]] + recent
        self._captioned = height - below >= CAPTIONED
        mark = view.mark.time if view.mark else None
        lines = timeline(
            groups,
            width,
            height - below,
            letters=view.appearance.mono,
            now=snapshot.time,
            cursor=self.cursor,
            mark=mark,
        )
        return lines + (history(field, below, mark) if field is not None else [])

    def _note(self, view: View, snapshot: Snapshot, steps: Steps, width: int) -> Line:
        """The note beside the title: the column at the cursor if no caption shows it, else the basis of the figures."""
        groups = groups_of(steps.recent, width - AXIS) if self.cursor is not None and not self._captioned else []
        at = column_at(groups, self.cursor)
        if at is not None:
            return readout(groups[at], snapshot.time, max(24, width - len(_title(steps, view)) - 7))
        if waits_for_target(view.source("hook")):
            return Line("hook waiting for the target", TEXT)
        if steps.basis == "hook":
            return Line("timed in the process", DIM)
        return Line(f"estimated from {snapshot.stacks.samples if snapshot.stacks else 0} stacks", DIM)


def steps_for(snapshot: Snapshot, pids: frozenset[int] | None) -> tuple[Steps | None, str | None]:
    """The steps of the processes that the screen is narrowed to, and None; or those of the job, and WHOLE_JOB.

    Only one rank has step times. For another rank the shares of the phases are taken from its stacks; if these say
    nothing either, the steps are the job's.
    """
    steps = snapshot.steps
    if pids is None or steps is None or steps.pid in pids:
        return steps, None
    for process in snapshot.stacks.processes if snapshot.stacks else ():
        if process.pid in pids and process.role == "rank" and process.phases != Phases():
            return Steps(basis="stacks", pid=process.pid, phases=process.phases), None
    return steps, WHOLE_JOB


def phase_shares(steps: Steps) -> list[tuple[Kind, float | None]]:
    """Every phase with its share; timed saves and evaluations are counted apart, not as "outside"."""
    shares: dict[Kind, float] = {}
    for key, share in steps.phases.shares().items():
        if share is not None:
            shares[phase_of(key)] = shares.get(phase_of(key), 0.0) + share
    total = sum(record.seconds for record in steps.recent)
    if total > 0 and OUTSIDE in shares:
        apart = {phase.key: (phase.total(steps.recent) or 0.0) / total for phase in APART if phase.fields}
        shares = with_apart(shares, {key: share for key, share in apart.items() if share})
    return [(phase, shares.get(phase)) for phase in PHASES]


def _legend(
    shares: Sequence[tuple[Kind, float | None]], mean: float | None, width: int, most: int, view: View
) -> list[Line]:
    """Every phase with its share and, if there is room, its `mean` time: the fullest form of at most `most` rows.

    With a mark, each share is followed by its change in percentage points.
    """
    listed = [(phase, share) for phase, share in shares if share is not None]
    more = WIDTH if view.mark is not None else 0
    if more:
        # Use no more rows than without a mark, so that the charts keep theirs.
        full = max(1, (width + LEGEND_GAP) // (LEGENDS[0][0] + LEGEND_GAP))
        most = min(most, -(-len(listed) // full))
    for cell, timed, full in ((cell + more, timed, full) for cell, timed, full in LEGENDS):
        per_row = max(1, (width + LEGEND_GAP) // (cell + LEGEND_GAP))
        cells = [(_legend_cell(view, phase, share, mean if timed else None, full), cell) for phase, share in listed]
        rows = [columns(cells[start : start + per_row], LEGEND_GAP) for start in range(0, len(cells), per_row)]
        if len(rows) <= most:
            return rows
    # Even the tersest form is too long: leave out the smallest shares.
    largest = sorted(listed, key=lambda entry: -(entry[1] or 0.0))[: per_row * most]
    shown = [cell for entry, cell in zip(listed, cells, strict=True) if entry in largest]
    return [columns(shown[start : start + per_row], LEGEND_GAP) for start in range(0, len(shown), per_row)]


def _legend_cell(view: View, phase: Kind, share: float | None, mean: float | None, full: bool) -> Line:
    def share_of(snapshot: Snapshot) -> float | None:
        steps, _ = steps_for(snapshot, view.pids())
        return dict(phase_shares(steps)).get(phase) if steps else None

    name = phase.name.ljust(9) if full else phase.short.ljust(4)
    line = (
        Line(f"{phase.letter if view.appearance.mono else '■'} ", phase.ink).add(name, DIM).add(share_text(share), TEXT)
    )
    if share is not None and mean is not None:
        line.add(duration(share * mean).rjust(8), DIM)
    return line.join(change(view, share_of, points=True))


def _title(steps: Steps, view: View) -> str:
    if steps.p50 is None:
        return "Step"
    middle = change(view, field_of("steps.p50")).text
    high = change(view, field_of("steps.p95")).text
    return f"Step · {duration(steps.p50)} p50{middle} · {duration(steps.p95)} p95{high}"


PER_COLUMN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""How many steps a column may stand for. Few values, so that the grouping does not change with every step."""
LEAST_HISTORY = 5
CAPTIONED = 4
ROOM_FOR_NUMBER = 44
EVENTS = (("step_save", "s"), ("step_evaluation", "e"))


Group = list[StepRecord]
"""Consecutive steps that are drawn as one column; the end of the last one is the moment of the column."""


def groups_of(recent: Sequence[StepRecord], cells: int) -> list[Group]:
    """The newest steps in at most `cells` groups that start at fixed step numbers, so that columns stay the same.

    The newest group is left out while it has less than half of its steps: a mean of so few would stick out.
    """
    cells = max(1, cells)
    needed = -(-len(recent) // cells)
    per_column = next((number for number in PER_COLUMN if number >= needed), PER_COLUMN[-1])
    groups: dict[int, Group] = {}
    for record in recent[-cells * per_column :]:
        groups.setdefault(record.index // per_column, []).append(record)
    columns = list(groups.values())
    if len(columns) > 1 and 2 * len(columns[-1]) < len(columns[-2]):
        columns.pop()
    return columns[-cells:]


def timeline(
    groups: Sequence[Group],
    width: int,
    height: int,
    *,
    letters: bool = False,
    now: float = 0.0,
    cursor: float | None = None,
    mark: float | None = None,
) -> list[Line]:
    """The last steps as columns stacked by phase, with a scale at the left; from four rows on with a caption.

    The caption says what is shown or, with the `cursor` on a column, what that column contains. It also points to the
    first column after the `mark`.
    """
    if height < 1 or not groups:
        return []
    cells = max(1, width - AXIS)
    drawn = [_column(group) for group in groups][-cells:]
    caption = height >= CAPTIONED
    rows = height - caption
    top = scale_top([height_of(column) for column in drawn], low=rows < 4)
    at = column_at(groups, cursor)
    chart = stacked(drawn, cells, rows, top, letters=letters, cursor=at)
    lines = scaled(chart, scale_labels(rows, top, duration))
    if caption:
        words = _caption(groups, cells, mark) if at is None else readout(groups[at], now, cells)
        lines.append(Line().to(AXIS).join(words))
    return lines


def _caption(groups: Sequence[Group], cells: int, mark: float | None) -> Line:
    """How many steps the columns show, with an arrow below the first column that ends after the mark."""
    records = [record for group in groups for record in group]
    length, most = records[-1].end - records[0].end + records[0].seconds, max(map(len, groups))
    each = "" if most == 1 else f", {most:2} a column"
    words = Line(f"last {plural(len(records), 'step')}{each}, {duration(length).rjust(6)}", FAINT)
    first = next((number for number, group in enumerate(groups) if mark is not None and group[-1].end > mark), None)
    if first is None or mark is None or groups[0][-1].end - groups[0][0].seconds > mark:
        return words
    place = first + max(0, cells - len(groups))
    pointer = Line("▲", BRIGHT).add(" mark", DIM)
    if place > words.width:
        return words.to(place).join(pointer if place + pointer.width <= cells else Line("▲", BRIGHT))
    pointer = Line().to(place).join(pointer).add("  ")
    return pointer.join(words) if pointer.width + words.width <= cells else pointer


def column_at(groups: Sequence[Group], cursor: float | None) -> int | None:
    """The index of the column that a moment belongs to, None for a moment before the first column."""
    if cursor is None or not groups or cursor < groups[0][-1].end - groups[0][-1].seconds:
        return None
    return nearest([group[-1].end for group in groups], cursor)


def readout(group: Group, now: float, width: int) -> Line:
    """A column in words: how long ago, its last step, the mean length of a step and the seconds in each phase.

    If not all phases fit, the largest are shown.
    """
    column = _column(group)
    line = Line(f"{ago(now, group[-1].end).strip()}  ", TEXT)
    if width >= ROOM_FOR_NUMBER:
        line.add(f"step {count(group[-1].index)}  ", DIM)
    line.add(duration(height_of(column)), TEXT)
    room, pieces = width - line.width, []
    for phase, seconds in sorted(column, key=lambda part: -part[1]):
        piece = Line(f"  {phase.short} ", phase.ink).add(duration(seconds), TEXT)
        if seconds > 0.002 * height_of(column) and piece.width <= room:
            room -= piece.width
            pieces.append((PHASES.index(phase), piece))
    for _, piece in sorted(pieces, key=lambda piece: piece[0]):
        line.join(piece)
    return line


def scale_top(totals: Sequence[float], *, low: bool = False) -> float:
    """The value at full height: the maximum, but at most the higher of 3 medians and a little over the 90th percentile.

    So one long step does not flatten the others. A `low` chart has no room to spare: it stops just above the 90th
    percentile.
    """
    if not totals:
        return 1.0
    ordered = sorted(totals)
    most = 1.05 * ordered[int(len(ordered) * 0.9)]
    if low:
        return nice_ceiling(min(ordered[-1], most))
    return nice_ceiling(min(ordered[-1], max(3.0 * ordered[len(ordered) // 2], most)))


def _column(group: Group) -> Parts:
    """The mean step of the group by phase.

    Only some of the steps may have device times: those count by these, the others by host times.
    """
    on_device = [record for record in group if record.device_forward is not None]
    by_host = [record for record in group if record.device_forward is None]
    sums = [_phases(records, on_device=records is on_device) for records in (on_device, by_host) if records]
    count = len(group)
    return [(phase, sum(part.get(phase, 0.0) for part in sums) / count) for phase in PHASES]


def _phases(records: Sequence[StepRecord], *, on_device: bool) -> dict[Kind, float]:
    """Total seconds of these steps in each kind of phase, by the clock of the device or by that of the host."""
    parts = {phase_of(phase.key): phase.total(records) or 0.0 for phase in MEASURED if phase not in APART}
    if on_device:
        parts |= {phase_of(key): total(records, f"device_{key}") or 0.0 for key in ("forward", "backward", "optimizer")}
        data, idle = phase_of("data"), total(records, "device_idle")
        # While the device still computes, waiting for data costs nothing.
        parts[data] = parts[data] if idle is None else min(parts[data], idle)
    parts[OUTSIDE] = max(0.0, (total(records, "seconds") or 0.0) - sum(parts.values()))
    return with_apart(parts, {phase.key: phase.total(records) or 0.0 for phase in APART})


def with_apart(parts: Mapping[Kind, float], apart: Mapping[str, float]) -> dict[Kind, float]:
    """The parts of a step with the phases in `apart` (key to length) moved out of OUTSIDE, which includes them."""
    divided = dict(parts)
    for key, length in apart.items():
        taken = min(divided[OUTSIDE], length)
        divided[phase_of(key)] = divided.get(phase_of(key), 0.0) + taken
        divided[OUTSIDE] -= taken
    return divided


def history(field: Field, height: int, mark: float | None = None) -> list[Line]:
    """A chart of the p50 (area) and p95 (line) of step times, second by second.

    The row above it has letters for saves and evaluations, and an arrow at the mark.
    """
    known = [value / 1e3 for value in field.values("step_p95") if value is not None]
    layers = (Curve(field.values("step_p50"), HOST_SOFT, filled=True), Curve(field.values("step_p95"), HOST_CHART))
    chart = field.chart(layers, height - 2, scale_top(known) * 1e3, lambda value: duration(value / 1e3))

    def reading(line: Line) -> Line:
        for name in ("p50", "p95"):
            value = field.at_cursor(f"step_{name}")
            line.add(f"{name} ", DIM).add(duration(None if value is None else value / 1e3).rjust(7), TEXT).add("  ")
        return line

    return [_marks(field, mark), *chart, field.axis(reading)]


def _marks(field: Field, mark: float | None) -> Line:
    """A row with a letter where checkpoints were saved or the model evaluated, and an arrow at the mark."""
    ink = phase_of("save").ink
    cells: list[tuple[str, Style]] = [(" ", ink)] * field.span.cells
    for name, letter in EVENTS:
        events = field.series.get(name, Series())
        for moment, seconds in zip(events.times, events.values, strict=True):
            # The time of a value is the end of its second, so its middle is half a second earlier.
            cell = field.span.cell(moment - 0.5)
            if seconds and cell is not None:
                cells[cell] = letter, ink
    marked = field.span.cell(mark)
    if marked is not None:
        cells[marked] = "▼", BRIGHT
    line = Line("step".rjust(AXIS - 2), DIM).add("  ")
    if all(letter == " " for letter, _ in cells):
        return line.add("p50 and p95 of each second", FAINT)
    return line.extend(cells)
