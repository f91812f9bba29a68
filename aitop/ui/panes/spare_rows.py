"""What fills the rows that a list or a chart leaves free in its pane: hot lines, or the flame. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.snapshot import Stacks
from aitop.ui.panes.code.call_tree import Node
from aitop.ui.panes.code.flame import flame_lines, icicle
from aitop.ui.panes.code.hot_lines import hot_line, hot_rows, line_change
from aitop.ui.state import EVERYBODY, View, Who, matches
from aitop.ui.widgets.line import Line, rule

LEAST = 5
STEP = 3
"""Rows by which the border moves: a row more or less above it does not move it."""


def room_below(used: int, height: int) -> int:
    """Rows that are free below `used` ones, 0 where they are too few for anything."""
    room = height - -(-(used + 1) // STEP) * STEP
    return room if room >= LEAST else 0


def flame_below(nodes: Sequence[Node], view: View, width: int, room: int) -> list[Line]:
    """The flame in `room` rows, with the key that gives it the whole pane."""
    drawn = flame_lines(icicle(nodes, width), None, None, letters=view.look.mono, wanted=view.filter) if room else []
    return _filled(rule("flame", width, "f"), drawn, room)


def lines_below(
    stacks: Stacks | None,
    view: View,
    title: str,
    width: int,
    room: int,
    *,
    pids: frozenset[int] | None,
    who: Who = EVERYBODY,
) -> list[Line]:
    """The hot lines of some processes and threads under a title, in `room` rows."""
    rows = hot_rows(stacks, pids, who) if stacks is not None and room else []
    wanted = [row for row in rows if matches(view.filter, row.function, row.file, row.text, row.who)]
    lines = [hot_line(row, width, line_change(view, row, pids, who)) for row in wanted]
    return _filled(rule(title, width), lines, room)


def _filled(border: Line, lines: Sequence[Line], room: int) -> list[Line]:
    """A border and the lines below it, cut or filled up to `room` rows; nothing where there are no lines."""
    shown = lines[: room - 1] if room else []
    return [border, *shown, *(Line() for _ in range(room - 1 - len(shown)))] if shown else []
