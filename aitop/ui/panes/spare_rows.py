"""What fills the rows that a list or a chart leaves free in its pane: hot lines, or the flame. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.snapshot import Stacks
from aitop.ui.panes.code.call_tree import Node, forest
from aitop.ui.panes.code.flame import flame_lines, icicle
from aitop.ui.panes.code.hot_lines import HotRow, hot_line, hot_rows, line_change
from aitop.ui.state import EVERYBODY, View, Who, matches
from aitop.ui.widgets.line import Line, rule

LEAST = 5
MOST_EACH = 3
STEP = 3
"""Rows by which the border moves: a row more or less above it does not move it."""


def room_below(used: int, height: int) -> int:
    """Rows that are free below `used` ones, 0 where they are too few for anything."""
    room = height - -(-(used + 1) // STEP) * STEP
    return room if room >= LEAST else 0


def tallness(rows: int, room: int) -> int:
    """How many lines each of so many rows of a flame gets in `room`; by steps, so that a leaf more changes nothing."""
    return max(1, min(MOST_EACH, room // (STEP * max(1, -(-rows // STEP)))))


def flame_below(nodes: Sequence[Node], view: View, width: int, room: int, key: str = "f") -> list[Line]:
    """The flame in `room` rows; `key` gives it more room, where one does."""
    cells = icicle(nodes, width)[: room - 1] if room else []
    if not cells:
        return []
    each = tallness(len(cells), room - 1)
    drawn = flame_lines(cells, None, None, letters=view.look.mono, wanted=view.filter, each=each)
    return _filled(rule("flame", width, key), drawn[: room - 1], room)


def lines_below(stacks: Stacks, view: View, width: int, room: int) -> list[Line]:
    """The hot lines of those that the code pane is narrowed to, in `room` rows."""
    rows = hot_rows(stacks, view.pids(), view.who) if room else []
    return _listed(rows, view, rule("hot lines", width), view.pids(), view.who, width, room)


def lines_of(stacks: Stacks | None, pids: frozenset[int], view: View, title: str, width: int, room: int) -> list[Line]:  # noqa: PLR0917
    """The hot lines of some processes under a title, in `room` rows."""
    rows = hot_rows(stacks, pids) if stacks is not None and room else []
    return _listed(rows, view, rule(title, width), pids, EVERYBODY, width, room)


def runs_below(  # noqa: PLR0917
    stacks: Stacks | None, pids: frozenset[int], view: View, title: str, width: int, room: int
) -> list[Line]:
    """The hot lines of some processes under a title, and where there is room for it their flame, in `room` rows."""
    if stacks is None or not room:
        return []
    rows = len(hot_rows(stacks, pids))
    listed = -(-(rows + 2) // STEP) * STEP
    left = room - listed
    if left < LEAST + STEP:
        return lines_of(stacks, pids, view, title, width, room)
    flame = flame_below(forest(stacks, pids), view, width, left, key="")
    return [*lines_of(stacks, pids, view, title, width, listed if flame else room), *flame]


def _listed(  # noqa: PLR0917
    rows: Sequence[HotRow], view: View, border: Line, pids: frozenset[int] | None, who: Who, width: int, room: int
) -> list[Line]:
    wanted = [row for row in rows if matches(view.filter, row.function, row.file, row.text, row.who)]
    lines = [hot_line(row, width, line_change(view, row, pids, who)) for row in wanted[: room - 1]]
    return _filled(border, lines, room) if lines else []


def _filled(border: Line, lines: Sequence[Line], room: int) -> list[Line]:
    return [border, *lines, *(Line() for _ in range(room - 1 - len(lines)))]
