"""A pane of rows under a heading, with a cursor that stays on its row when rows come, go and change places."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType

from aitop.ui.widgets.pane import Pane

Row = TypeVar("Row")


class RowPane(Pane, Generic[Row]):
    """A subclass says what a row is about, and what choosing it does; its `draw` calls `take` first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "move_page(-1)", "cursor", show=False),
        Binding("pagedown", "move_page(1)", "cursor", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self.rows: Sequence[Row] = ()
        self.cursor = 0
        self.first = 0
        self.page = 1
        self._key: Hashable = None

    def key_of(self, row: Row) -> Hashable:
        """What tells this row from the others: the process or the job that it is about."""
        raise NotImplementedError

    def action_choose(self, stay: bool = False) -> None:
        """Choose the row at the cursor; `stay` keeps the pane as it is."""
        raise NotImplementedError

    def take(self, rows: Sequence[Row], page: int) -> list[tuple[Row, bool]]:
        """Take the rows, of which `page` are in sight; those, and whether each is lit up by the cursor."""
        self.rows, self.page = rows, max(1, page)
        at = next((number for number, row in enumerate(rows) if self.key_of(row) == self._key), self.cursor)
        self.cursor = max(0, min(at, len(rows) - 1))
        self.first = max(0, min(self.first, self.cursor, len(rows) - self.page), self.cursor + 1 - self.page)
        shown = enumerate(rows[self.first : self.first + self.page], self.first)
        return [(row, self.has_focus and number == self.cursor) for number, row in shown]

    def in_sight(self) -> str:
        """Which rows are in sight, in words; empty where all are."""
        if len(self.rows) <= self.page:
            return ""
        return f"{self.first + 1}–{min(len(self.rows), self.first + self.page)} of {len(self.rows)}"

    def row(self) -> Row | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def action_move(self, rows: int) -> None:
        if self.rows:
            self.cursor = max(0, min(len(self.rows) - 1, self.cursor + rows))
            self._key = self.key_of(self.rows[self.cursor])
        self.redraw()

    def action_move_page(self, pages: int) -> None:
        self.action_move(pages * self.page)

    def action_scroll_by(self, lines: int) -> None:
        """Arrows and the wheel move the cursor, which is always in sight."""
        self.action_move(lines)

    async def on_click(self, event: events.Click) -> None:
        """A click puts the cursor on a row, a second one chooses it; a double click on the title zooms."""
        await super().on_click(event)
        row = event.y - (2 if self.framed else 1)
        if 0 <= row < min(len(self.rows) - self.first, self.page):
            self.action_move(self.first + row - self.cursor)
            if event.chain >= 2:
                self.action_choose(True)
