"""Columns of a table that can be sorted by any of them: which fit, how wide, and in which order rows stand. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from rich.style import Style

from aitop.model.units import NOT_SUPPORTED
from aitop.ui.theme.palette import BRIGHT, FAINT, TEXT
from aitop.ui.widgets.line import Line, columns, lit, shorten

MARK, GAP = 2, 2
Row = TypeVar("Row")


class Column(NamedTuple):
    """A heading, its cells, the `value` of a row that it shows and sorts by (None: not measured), and its words.

    It may grow to `most` cells. `keep`: the lower the longer it stays as the table narrows.
    """

    heading: str
    cells: int
    keep: int
    value: Callable[[Any], Any]
    text_of: Callable[[Any], str] = str
    style: Callable[[Any], Style] = lambda _: TEXT
    right: bool = True
    most: int = 0


class Order(NamedTuple):
    """The column that rows are sorted by, empty for the table's own order; `inverted`: the other way round."""

    by: str = ""
    inverted: bool = False


Fit = Sequence[tuple[Column, int]]
"""The columns that there is room for, each with its cells."""


def fit(table: Sequence[Column], width: int) -> Fit:
    """The columns for a table of `width` cells; the least useful ones are dropped, the others share what is left."""
    room = width - MARK
    shown: list[Column] = []
    for column in sorted(table, key=lambda column: column.keep):
        if column.cells + GAP > room + GAP * (not shown):
            break
        room -= column.cells + GAP
        shown.append(column)
    room += GAP
    cells = {column.heading: column.cells for column in shown}
    # Cell by cell, so that all of them grow together.
    growing = shown
    while room > 0 and growing:
        growing = [column for column in growing if cells[column.heading] < column.most]
        for column in growing[:room]:
            cells[column.heading] += 1
        room -= len(growing)
    return [(column, cells[column.heading]) for column in table if column.heading in cells]


def in_order(rows: Sequence[Row], table: Sequence[Column], order: Order) -> list[Row]:
    """The rows sorted by a column: names from A on, numbers from the largest on, what is not measured last.

    Rows that are equal there stay in the order in which they came.
    """
    column = next((column for column in table if column.heading == order.by), None)
    if column is None:
        return list(reversed(rows)) if order.inverted else list(rows)
    known = [row for row in rows if column.value(row) is not None]
    largest_first = any(not isinstance(column.value(row), str) for row in known)
    known.sort(key=column.value, reverse=largest_first != order.inverted)
    return known + [row for row in rows if column.value(row) is None]


def next_order(headings: Sequence[str], order: Order, steps: int) -> Order:
    """The order by the column `steps` to the right (left, if negative) of the one that rows are sorted by."""
    row = ["", *headings]
    at = row.index(order.by) if order.by in row else 0
    return Order(row[max(0, min(len(row) - 1, at + steps))])


def heading(shape: Fit, order: Order) -> Line:
    """The headings; an arrow marks the one that rows are sorted by."""
    cells = []
    for column, width in shape:
        chosen = column.heading == order.by
        arrow = ("↑" if order.inverted else "↓") if chosen else ""
        cells.append(_cell(column.heading + arrow, width, BRIGHT if chosen else FAINT, column.right))
    return Line().to(MARK).join(columns(cells, GAP))


def row_line(row: Any, shape: Fit, width: int, *, cursor: bool) -> Line:
    """One row; `cursor` lights it up."""
    cells = []
    for column, room in shape:
        value = column.value(row)
        text, style = (NOT_SUPPORTED, FAINT) if value is None else (column.text_of(value), column.style(row))
        cells.append(_cell(text, room, style, column.right))
    line = Line("▸ " if cursor else "  ", BRIGHT).join(columns(cells, GAP)).fit(width)
    return lit(line) if cursor else line


def _cell(text: str, width: int, style: Style, right: bool) -> tuple[Line, int]:
    fitted = Line(shorten(text, width), style)
    return (Line().to(width - fitted.width).join(fitted) if right else fitted), width
