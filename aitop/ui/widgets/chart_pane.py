"""A pane with charts over which a cursor can be moved, to read off what was when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.actions import SkipAction
from textual.binding import Binding, BindingType

from aitop.model.snapshot import Snapshot
from aitop.ui.state import View
from aitop.ui.widgets.pane import Pane
from aitop.ui.widgets.plot import Field, span_of


class ChartPane(Pane):
    """`cursor` is a moment (monotonic seconds), None when nothing is pointed at: it stays with what it points at.

    `draw` of a subclass calls `field`, or sets `moments` to those that its columns stand for, oldest first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move_cursor(-1)", "cursor", show=False),
        Binding("right,l", "move_cursor(1)", "cursor", show=False),
        Binding("shift+left", "move_cursor(-10)", "cursor", show=False),
        Binding("shift+right", "move_cursor(10)", "cursor", show=False),
        Binding("escape", "drop_cursor", "cursor", show=False),
    ]

    cursor: float | None = None
    moments: Sequence[float] = ()

    def field(self, snapshot: Snapshot, names: Iterable[str], width: int, scale: int) -> Field:
        """One axis of time for charts of these series, at which the cursor points."""
        known = [snapshot.series[name] for name in names if name in snapshot.series]
        span = span_of(known, snapshot.time, width - scale)
        self.moments = span.moments() if known else ()
        return Field(snapshot.series, snapshot.time, span, scale, self.cursor)

    def action_move_cursor(self, columns: int) -> None:
        """To an earlier or a later column; past the newest one the cursor goes away."""
        if not self.moments:
            return
        at = len(self.moments) if self.cursor is None else nearest(self.moments, self.cursor)
        at += columns
        self.cursor = None if at >= len(self.moments) else self.moments[max(0, at)]
        self.redraw()

    def action_drop_cursor(self) -> None:
        """Remove the cursor; without one the key does what it does elsewhere."""
        if self.cursor is None:
            raise SkipAction
        self.cursor = None
        self.redraw()

    def show(self, view: View) -> None:
        """Take a new view. A cursor on a moment that has left the chart goes away."""
        super().show(view)
        if self.cursor is not None and self.moments and self.cursor < self.moments[0]:
            self.cursor = None
            self.redraw()


def nearest(moments: Sequence[float], moment: float) -> int:
    """The index of the moment that is closest, the earlier one of two; `moments` is not empty and in order."""
    return min(range(len(moments)), key=lambda at: abs(moments[at] - moment))
