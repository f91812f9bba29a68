"""Where a step goes: one stacked bar, a legend with figures, and the last steps as stacked columns."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.phases import APART
from aitop.model.snapshot import Series, Snapshot, Steps
from aitop.model.units import NOT_YET, duration
from aitop.ui.panes.since_mark import WIDTH, change, steps_change
from aitop.ui.panes.step.charts import (
    CAPTIONED,
    LEAST_HISTORY,
    column_at,
    groups_of,
    history,
    readout,
    timeline,
    with_apart,
)
from aitop.ui.panes.step.figures import figure_lines, measured_figures
from aitop.ui.state import View, steps_for
from aitop.ui.theme.palette import DIM, OUTSIDE, PHASES, TEXT, Kind, phase_of
from aitop.ui.widgets.bars import phase_bar
from aitop.ui.widgets.chart_pane import ChartPane
from aitop.ui.widgets.line import Line, columns, wrap
from aitop.ui.widgets.pane import Drawing
from aitop.ui.widgets.plot import AXIS
from aitop.ui.words import share_text, state_line, waits_for_target

LEAST_CHART = 3
ROOM_FOR_HISTORY = 12
ROOM_FOR_TWO = 6
LEGEND_GAP = 2
LEGENDS = ((24, True, True), (16, False, True), (10, False, False))
"""Forms of the legend from full to terse: cells an entry takes, with its time, with its full name."""


class StepPane(ChartPane):
    """Kind shares of a step, its figures and its history; without the hook the shares alone, from stacks."""

    _captioned = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        self.moments = ()
        snapshot = view.snapshot
        steps = steps_for(snapshot, view.pids())[0] if snapshot else None
        if snapshot is None or steps is None:
            return Drawing(_waiting(view, width), "Step", Line(NOT_YET, DIM))
        shares = phase_shares(steps)
        lines = [phase_bar(shares, width, letters=view.look.mono)]
        figures = measured_figures(view) if steps is snapshot.steps else []
        least = LEAST_CHART + bool(figures)
        room = max(2 if height >= ROOM_FOR_TWO else 1, min((height - 1) // 2, height - 1 - least))
        lines += _legend(shares, steps.mean, width, room, view)
        lines += figure_lines(figures, width, max(0, height - len(lines) - LEAST_CHART))
        rest = height - len(lines)
        if steps.recent:
            lines += self._charts(view, snapshot, steps, width, rest)
        else:
            lines += _without_hook(view, width, other=steps is not snapshot.steps)[-rest:] if rest > 0 else []
        stale = view.stale("hook" if steps.basis == "hook" else "stacks")
        return Drawing(lines, _title(steps, view), self._note(view, snapshot, steps, width), stale)

    def _charts(self, view: View, snapshot: Snapshot, steps: Steps, width: int, height: int) -> list[Line]:
        """The last steps by phase; below them, where there is room, step times over minutes."""
        groups = groups_of(steps.recent, width - AXIS)
        timed = height >= ROOM_FOR_HISTORY and snapshot.series.get("step_p50", Series()).times
        field = self.field(snapshot, ["step_p50"], width, AXIS) if timed else None
        below = max(LEAST_HISTORY, height * 2 // 5) if field is not None else 0
        recent = [group.end for group in groups]
        self.moments = [moment for moment in self.moments if moment < recent[0]] + recent
        self._captioned = height - below >= CAPTIONED
        mark = view.mark.time if view.mark else None
        lines = timeline(
            groups, width, height - below, letters=view.look.mono, now=snapshot.time, cursor=self.cursor, mark=mark
        )
        return lines + (history(field, below, mark) if field is not None else [])

    def _note(self, view: View, snapshot: Snapshot, steps: Steps, width: int) -> Line:
        """What the cursor stands on; without one, where the figures come from."""
        groups = groups_of(steps.recent, width - AXIS) if self.cursor is not None and not self._captioned else []
        at = column_at(groups, self.cursor)
        if at is not None:
            return readout(groups[at], snapshot.time, max(24, width - len(_title(steps, view)) - 7))
        if waits_for_target(view.source("hook")):
            return Line("hook waiting for the target", TEXT)
        if steps.basis == "hook":
            return Line("timed in the process", DIM)
        return Line(f"estimated from {snapshot.stacks.samples if snapshot.stacks else 0} stacks", DIM)


def phase_shares(steps: Steps) -> list[tuple[Kind, float | None]]:
    """Every phase with its share; saving and evaluation are taken out of what is outside, where timed."""
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
    """Every phase with its share and, where there is room, its time: the fullest form that takes `most` rows.

    With a mark each share has its change behind it, in percentage points.
    """
    listed = [(phase, share) for phase, share in shares if share is not None]
    more = WIDTH if view.mark is not None else 0
    if more:
        # What is said in addition does not take rows from the charts.
        full = max(1, (width + LEGEND_GAP) // (LEGENDS[0][0] + LEGEND_GAP))
        most = min(most, -(-len(listed) // full))
    for cell, timed, full in ((cell + more, timed, full) for cell, timed, full in LEGENDS):
        per_row = max(1, (width + LEGEND_GAP) // (cell + LEGEND_GAP))
        cells = [(_legend_cell(view, phase, share, mean if timed else None, full), cell) for phase, share in listed]
        rows = [columns(cells[start : start + per_row], LEGEND_GAP) for start in range(0, len(cells), per_row)]
        if len(rows) <= most:
            return rows
    # Too many for the room there is even so: the smallest ones go.
    largest = sorted(listed, key=lambda entry: -(entry[1] or 0.0))[: per_row * most]
    shown = [cell for entry, cell in zip(listed, cells, strict=True) if entry in largest]
    return [columns(shown[start : start + per_row], LEGEND_GAP) for start in range(0, len(shown), per_row)]


def _legend_cell(view: View, phase: Kind, share: float | None, mean: float | None, full: bool) -> Line:
    def share_of(snapshot: Snapshot) -> float | None:
        return dict(phase_shares(snapshot.steps)).get(phase) if snapshot.steps else None

    name = phase.name.ljust(9) if full else phase.short.ljust(4)
    line = Line(f"{phase.letter if view.look.mono else '■'} ", phase.ink).add(name, DIM).add(share_text(share), TEXT)
    if share is not None and mean is not None:
        line.add(duration(share * mean).rjust(8), DIM)
    return line.join(change(view, share_of, points=True))


def _title(steps: Steps, view: View) -> str:
    if steps.p50 is None:
        return "Step"
    middle = steps_change(view, "p50").text
    high = steps_change(view, "p95").text
    return f"Step · {duration(steps.p50)} p50{middle} · {duration(steps.p95)} p95{high}"


def _without_hook(view: View, width: int, *, other: bool) -> list[Line]:
    """Why there are shares but no times. `other`: these steps are of a rank that is not timed."""
    if other:
        return [Line("step times are measured in one rank only", DIM)]
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
