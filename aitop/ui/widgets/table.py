"""Tables: which columns fit and how wide they are, the order of rows, and a pane of rows with a cursor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.model.units import NOT_SUPPORTED
from aitop.ui.theme.palette import BRIGHT, FAINT, TEXT
from aitop.ui.widgets.line import Line, columns, lit, shorten
from aitop.ui.widgets.pane import Pane

MARK, GAP = 2, 2
Row = TypeVar("Row")


class Column(NamedTuple):
    """A column of a table. `value` reads from a row what it shows and is sorted by (None: not measured).

    `text_of` turns a value into text; `draw`, if set, draws the row's cell instead. `cells` is its least width; it may
    grow to `most` cells, and shows the `long` heading if that fits. In a narrow table the columns with the largest
    `keep` are dropped first. `right` aligns it to the right. `rising` says whether sorting by it starts with the
    smallest value; None: only if values are texts.
    """

    heading: str
    cells: int
    keep: int
    value: Callable[[Any], Any]
    text_of: Callable[[Any], str] = str
    style: Callable[[Any], Style] = lambda _: TEXT
    right: bool = True
    most: int = 0
    draw: Callable[[Any, int], Line] | None = None
    long: str = ""
    rising: bool | None = None


class Order(NamedTuple):
    """The heading of the column to sort by, "" for the table's own order; `inverted` reverses the order."""

    by: str = ""
    inverted: bool = False


Fit = Sequence[tuple[Column, int]]
"""The columns that fit, each with its width in cells."""


def fit(table: Sequence[Column], width: int, gap: int = GAP) -> Fit:
    """The columns for a table of `width` cells: those with the largest `keep` are dropped, the others grow evenly."""
    room = width - MARK + gap
    shown: list[Column] = []
    for column in sorted(table, key=lambda column: column.keep):
        if column.cells + gap > room:
            break
        room -= column.cells + gap
        shown.append(column)
    cells = {column.heading: column.cells for column in shown}
    # One cell each per round, so that they grow evenly.
    growing = shown
    while room > 0 and growing:
        growing = [column for column in growing if cells[column.heading] < column.most]
        for column in growing[:room]:
            cells[column.heading] += 1
        room -= len(growing)
    return [(column, cells[column.heading]) for column in table if column.heading in cells]


def in_order(rows: Sequence[Row], table: Sequence[Column], order: Order) -> list[Row]:
    """The rows sorted by a column, with unmeasured values last. The sort is stable."""
    column = next((column for column in table if column.heading == order.by), None)
    if column is None:
        return list(reversed(rows)) if order.inverted else list(rows)
    known = [row for row in rows if column.value(row) is not None]
    texts = all(isinstance(column.value(row), str) for row in known)
    rising = texts if column.rising is None else column.rising
    known.sort(key=column.value, reverse=rising == order.inverted)
    return known + [row for row in rows if column.value(row) is None]


def next_order(headings: Sequence[str], order: Order, steps: int) -> Order:
    """The order by the column `steps` to the right of the present sort column (to the left if negative).

    It stops at both ends; the left one is the table's own order. The new order is not inverted.
    """
    row = ["", *headings]
    at = row.index(order.by) if order.by in row else 0
    return Order(row[max(0, min(len(row) - 1, at + steps))])


def heading(shape: Fit, order: Order, gap: int = GAP) -> Line:
    """The line of headings, with an arrow at the sort column."""
    cells = []
    for column, width in shape:
        chosen = column.heading == order.by
        arrow = ("↑" if order.inverted else "↓") if chosen else ""
        words = column.long if column.long and len(column.long) <= width else column.heading
        cells.append(_cell(words + arrow, width, BRIGHT if chosen else FAINT, column.right))
    return Line().to(MARK).join(columns(cells, gap))


def row_line(row: Any, shape: Fit, width: int, *, cursor: bool, chosen: bool = False, gap: int = GAP) -> Line:
    """One row as a line; `cursor` highlights it, `chosen` marks it as the one that the screen is narrowed to."""
    cells = []
    for column, room in shape:
        value = column.value(row)
        if column.draw is not None and value is not None:
            cells.append((column.draw(row, room), room))
            continue
        text, style = (NOT_SUPPORTED, FAINT) if value is None else (column.text_of(value), column.style(row))
        cells.append(_cell(text, room, style, column.right))
    line = Line("● " if chosen else "▸ " if cursor else "  ", BRIGHT).join(columns(cells, gap)).fit(width)
    return lit(line) if cursor else line


def _cell(text: str, width: int, style: Style, right: bool) -> tuple[Line, int]:
    fitted = Line(shorten(text, width), style)
    return (Line().to(width - fitted.width).join(fitted) if right else fitted), width


@dataclass
class RowChosen(Message):
    """The user has chosen this row; with `stay` a zoomed pane stays zoomed."""

    row: Any
    stay: bool


class RowPane(Pane, Generic[Row]):
    """A pane of rows below a heading, with a cursor that stays on its row when rows come, go and change places.

    A subclass identifies a row in `key_of`, and its `draw` calls `take` first. `table` has the columns that rows can be
    sorted by, `order` is the present order.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "move_page(-1)", "cursor", show=False),
        Binding("pagedown", "move_page(1)", "cursor", show=False),
    ]

    rows: Sequence[Row] = ()
    table: Sequence[Column] = ()
    order = Order()
    cursor = 0
    first = 0
    page = 1
    _key: Hashable = None

    def key_of(self, row: Row) -> Hashable:
        """The identity of a row, such as a pid or the name of a job, by which the cursor follows it."""
        raise NotImplementedError

    def take(self, rows: Sequence[Row], page: int) -> list[tuple[Row, bool]]:
        """Take new rows. Returns the visible ones, at most `page`, each with whether the cursor highlights it."""
        self.rows, self.page = rows, max(1, page)
        at = next((number for number, row in enumerate(rows) if self.key_of(row) == self._key), self.cursor)
        self.cursor = max(0, min(at, len(rows) - 1))
        self._key = self.key_of(rows[self.cursor]) if rows else self._key
        self.first = max(0, min(self.first, self.cursor, len(rows) - self.page), self.cursor + 1 - self.page)
        shown = enumerate(rows[self.first : self.first + self.page], self.first)
        return [(row, self.has_focus and number == self.cursor) for number, row in shown]

    def in_sight(self) -> str:
        """Which rows are visible, such as "1–20 of 64"; empty if all are."""
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

    def action_choose(self, stay: bool = False) -> None:
        row = self.row()
        if row is not None:
            self._key = self.key_of(row)
            self.post_message(RowChosen(row, stay))

    def action_sort_by(self, steps: int) -> None:
        self.order = next_order([column.heading for column in self.table], self.order, steps)
        self.redraw()

    def action_invert(self) -> None:
        self.order = self.order._replace(inverted=not self.order.inverted)
        self.redraw()

    def action_scroll_by(self, lines: int) -> None:
        """Move the cursor by so many rows; the pane scrolls to keep it in sight."""
        self.action_move(lines)

    async def on_click(self, event: events.Click) -> None:
        """Put the cursor on a clicked row; on a double click, choose it. Textual calls that of the base as well."""
        row = event.y - (2 if self.framed else 1)
        if 0 <= row < min(len(self.rows) - self.first, self.page):
            self.action_move(self.first + row - self.cursor)
            if event.chain >= 2:
                self.action_choose(True)
