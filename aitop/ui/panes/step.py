"""Where a step goes: one stacked bar, a legend with figures, and the last steps as stacked columns."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.snapshot import Snapshot, Steps
from aitop.model.steps import StepRecord
from aitop.model.units import NOT_YET, duration
from aitop.ui.line import Line, columns, wrap
from aitop.ui.palette import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    DIM,
    FAINT,
    FORWARD,
    OPTIMIZER,
    OUTSIDE,
    SAVE,
    TEXT,
    TRANSFER,
    Phase,
)
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.widgets.timeline import Column, nice_ceiling, stacked
from aitop.ui.words import plural, share_text, state_line

AXIS = 8
PER_COLUMN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Steps that one column may stand for: few values, so that the chart does not change its scale with every step."""
LEGEND_GAP = 3
LEGENDS = ((24, True, True), (16, False, True), (11, False, False))
"""Forms of the legend from full to terse: cells an entry takes, with its time, with its full name."""


class StepPane(Pane):
    """Phase shares of a step and its history; without the hook the shares alone, estimated from stacks."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        steps = snapshot.steps if snapshot else None
        if snapshot is None or steps is None:
            return Drawing(_waiting(view, width), "Step", Line(NOT_YET, DIM))
        shares = phase_shares(steps)
        lines = [phase_bar(shares, width, letters=view.look.mono)]
        lines += _legend(shares, steps.mean, width, height)
        rest = height - len(lines)
        if steps.recent:
            lines += timeline(steps.recent, width, rest, letters=view.look.mono)
        else:
            lines += _without_hook(view, width)[-rest:] if rest > 0 else []
        stale = view.stale("hook" if steps.basis == "hook" else "stacks")
        return Drawing(lines, _title(steps), _basis(steps, snapshot), stale)


def phase_shares(steps: Steps) -> list[tuple[Phase, float | None]]:
    """Every phase with its share; saving and evaluating are taken out of what is outside, where they were timed."""
    phases = steps.phases
    save, outside = None, phases.outside
    total = sum(record.seconds for record in steps.recent)
    if total > 0 and outside is not None:
        save = min(outside, sum(record.save + record.evaluation for record in steps.recent) / total)
        outside -= save
    return [
        (DATA, phases.data_wait),
        (TRANSFER, phases.transfer),
        (FORWARD, phases.forward),
        (BACKWARD, phases.backward),
        (OPTIMIZER, phases.optimizer),
        (COMMUNICATION, phases.communication),
        (SAVE, save or None),
        (OUTSIDE, outside),
    ]


def phase_bar(shares: Sequence[tuple[Phase, float | None]], width: int, *, letters: bool = False) -> Line:
    """One bar of `width` cells: a field a phase, with its name and share in it where they fit."""
    line = Line()
    present = [(phase, share) for phase, share in shares if share and share > 0.002]
    total = sum(share for _, share in present)
    reached = 0.0
    for phase, share in present:
        reached += share
        cells = max(1, round(width * reached / total) - line.width)
        cells = min(cells, width - line.width)
        texts = (f" {phase.name} {share * 100:.0f}%", f" {phase.short} {share * 100:.0f}%", f" {phase.short}", "")
        text = next(text for text in texts if len(text) < cells or not text)
        fill = phase.letter if letters else " "
        line.add((text + " " if text and letters else text).ljust(cells, fill)[:cells], phase.fill)
    return line.to(width, "·", FAINT)


def timeline(recent: Sequence[StepRecord], width: int, height: int, *, letters: bool = False) -> list[Line]:
    """The last steps as columns stacked by phase, a scale at the left; several steps a column where they are many."""
    if height < 1:
        return []
    cells = width - AXIS
    needed = -(-len(recent) // max(1, cells))
    per_column = next((number for number in PER_COLUMN if number >= needed), PER_COLUMN[-1])
    drawn = _columns(recent[-cells * per_column :], per_column)[-cells:]
    caption = height >= 4
    rows = height - caption
    top = scale_top([column.total for column in drawn], low=rows < 4)
    chart = stacked(drawn, cells, rows, top, letters=letters)
    lines = [_axis(row, rows, top).join(chart[row]) for row in range(rows)]
    if caption:
        shown = recent[-len(drawn) * per_column :]
        span = shown[-1].end - shown[0].end + shown[0].seconds
        each = "" if per_column == 1 else f", {per_column} a column"
        lines.append(Line().to(AXIS).add(f"last {plural(len(shown), 'step')}{each}, {duration(span)}", FAINT))
    return lines


def scale_top(totals: Sequence[float], *, low: bool = False) -> float:
    """Full height of the chart: a few times the median at most, so that one long step does not flatten the others.

    A `low` chart has no room to spare: it cuts off whatever is above most steps.
    """
    if not totals:
        return 1.0
    ordered = sorted(totals)
    most = 1.05 * ordered[int(len(ordered) * 0.9)]
    if low:
        return nice_ceiling(min(ordered[-1], most))
    return nice_ceiling(min(ordered[-1], max(3.0 * ordered[len(ordered) // 2], most)))


def _columns(records: Sequence[StepRecord], per_column: int) -> list[Column]:
    """Means of `per_column` neighbouring steps; groups start at fixed step numbers, so columns keep their place."""
    groups: dict[int, list[StepRecord]] = {}
    for record in records:
        groups.setdefault(record.index // per_column, []).append(record)
    return [_column(group) for group in groups.values()]


def _column(group: Sequence[StepRecord]) -> Column:
    sums: dict[Phase, float] = {}
    for record in group:
        for phase, seconds in _parts(record):
            sums[phase] = sums.get(phase, 0.0) + seconds
    return Column(tuple((phase, seconds / len(group)) for phase, seconds in sums.items()))


def _parts(record: StepRecord) -> tuple[tuple[Phase, float], ...]:
    """The phases of one step in seconds, on the device's clock where there is one."""
    wait = record.data_wait + record.loader_start
    if record.device_forward is None:
        forward, backward, optimizer = record.forward, record.backward, record.optimizer
    else:
        wait = wait if record.device_idle is None else min(wait, record.device_idle)
        forward = record.device_forward
        backward, optimizer = record.device_backward or 0.0, record.device_optimizer or 0.0
    transfer = record.transfer or 0.0
    rest = max(0.0, record.seconds - wait - transfer - forward - backward - optimizer)
    save = min(rest, record.save + record.evaluation)
    return (
        (DATA, wait),
        (TRANSFER, transfer),
        (FORWARD, forward),
        (BACKWARD, backward),
        (OPTIMIZER, optimizer),
        (SAVE, save),
        (OUTSIDE, rest - save),
    )


def _axis(row: int, rows: int, top: float) -> Line:
    text = duration(top) if row == 0 else "0" if row == rows - 1 and rows > 1 else ""
    return Line(text.rjust(AXIS - 2), DIM).add("▕" if rows > 1 else " ", FAINT).add(" ")


def _legend(shares: Sequence[tuple[Phase, float | None]], mean: float | None, width: int, height: int) -> list[Line]:
    """Every phase with its share and, where there is room, its time: the fullest form that leaves room for the rest."""
    listed = [(phase, share) for phase, share in shares if share is not None or (phase is TRANSFER and height > 8)]
    most = max(1, (height - 1) // 2)
    for cell, timed, full in LEGENDS:
        per_row = max(1, (width + LEGEND_GAP) // (cell + LEGEND_GAP))
        cells = [(_legend_cell(phase, share, mean if timed else None, full), cell) for phase, share in listed]
        rows = [columns(cells[start : start + per_row], LEGEND_GAP) for start in range(0, len(cells), per_row)]
        if len(rows) <= most:
            return rows
    return rows[:most]


def _legend_cell(phase: Phase, share: float | None, mean: float | None, full: bool) -> Line:
    name = phase.name.ljust(9) if full else phase.short.ljust(4)
    line = Line("■ ", phase.ink).add(name, DIM).add(share_text(share), TEXT)
    if share is not None and mean is not None:
        line.add(duration(share * mean).rjust(8), DIM)
    return line


def _title(steps: Steps) -> str:
    if steps.p50 is None:
        return "Step"
    return f"Step · {duration(steps.p50)} p50 · {duration(steps.p95)} p95"


def _basis(steps: Steps, snapshot: Snapshot) -> Line:
    if steps.basis == "hook":
        return Line("timed in the process", DIM)
    samples = snapshot.stacks.samples if snapshot.stacks else 0
    return Line(f"estimated from {samples} stacks", DIM)


def _without_hook(view: View, width: int) -> list[Line]:
    """Why there are shares but no times."""
    lines = [Line("step times need the hook", DIM)]
    status = view.source("hook")
    if status is not None and status.state != "ok":
        lines += [Line(text, DIM) for text in wrap(state_line("hook", status).text, width)]
    return lines


def _waiting(view: View, width: int) -> list[Line]:
    """Nothing known of steps: what each of the two sources for them is doing."""
    if view.snapshot is None:
        return [Line(NOT_YET, DIM)]
    lines = [Line(f"{NOT_YET} no step was seen yet", DIM)]
    return lines + [state_line(name, view.source(name)) for name in ("hook", "stacks")]
