"""The columns of the process tree: which fit, how wide they are, and how their values are written. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from rich.style import Style

from aitop.model.units import NOT_SUPPORTED, NOT_YET, duration, size
from aitop.ui.panes.processes.tree import BY_ROLE, Figures, Order, ProcessRow
from aitop.ui.panes.since_mark import WIDTH, share_change, value_change
from aitop.ui.state import View
from aitop.ui.theme.palette import (
    BRIGHT,
    DIM,
    FAINT,
    LAUNCHER,
    OTHER_PROCESS,
    RANK,
    STATE_FAILED,
    STATE_STALE,
    TEXT,
    WORKER,
    Kind,
    clickable,
)
from aitop.ui.widgets.line import Line, lit, shorten
from aitop.ui.widgets.table import GAP, MARK
from aitop.ui.words import one_line, short_command, tight_percent

TREE_LEAST, TREE_MOST, TREE_STEP = 16, 40, 6
COMMAND_LEAST = 14
NEW_SECONDS = 3.0
STATES = {"R": "run", "S": "sleep", "D": "disk", "T": "stop", "t": "trace", "Z": "zombie", "I": "idle"}
STATE_STYLES = {"R": TEXT, "D": STATE_STALE, "Z": STATE_FAILED, "T": STATE_STALE}
KINDS: dict[str, Kind] = {"launcher": LAUNCHER, "rank": RANK, "loader-worker": WORKER}


class Column(NamedTuple):
    """A heading, its cells, the field of Figures it shows and sorts by, how that is written; `keep`: the lower the
    longer it stays as the pane narrows."""

    heading: str
    cells: int
    field: str
    text_of: Callable[[Any], str]
    keep: int
    style: Style = TEXT
    gpu: bool = False

    def write(self, figures: Figures) -> tuple[str, Style]:
        """The text and its style; empty for GPU figures of a process that uses no GPU."""
        value = getattr(figures, self.field)
        if self.gpu and not figures.on_gpu:
            return "", FAINT
        if value is None:
            # A rate needs two samples: a new process has none yet.
            new = self.field in CHANGING and figures.age is not None and figures.age < NEW_SECONDS
            return NOT_YET if new else NOT_SUPPORTED, FAINT
        if self.field == "state":
            return self.text_of(value), STATE_STYLES.get(value, FAINT)
        return self.text_of(value), self.style if value >= 1 or self.field in SHARES else FAINT


def age_text(seconds: float | None) -> str:
    """An age in whole units, six cells at most: 12 s, 4 m, 3 h, 12 d."""
    if seconds is None:
        return NOT_SUPPORTED
    for least, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "m")):
        if seconds >= least:
            return f"{int(seconds // least)} {unit}"
    return duration(float(int(seconds))) if seconds >= 10 else f"{int(seconds)} s"


COLUMNS = (
    Column("pid", 7, "pid", str, 7, DIM),
    Column("cpu", 5, "cpu", tight_percent, 0, BRIGHT),
    Column("memory", 7, "rss", size, 1),
    Column("gpu", 4, "gpu", tight_percent, 2, BRIGHT, gpu=True),
    Column("gpu mem", 7, "gpu_memory", size, 3, gpu=True),
    Column("read/s", 7, "reads", size, 5),
    Column("write/s", 7, "writes", size, 6),
    Column("thr", 4, "threads", str, 8, DIM),
    Column("state", 6, "state", lambda letter: STATES.get(letter, letter), 4),
    Column("age", 5, "age", age_text, 9, DIM),
)
SHARES = frozenset({"cpu", "gpu"})
CHANGING = SHARES | {"rss", "gpu_memory", "reads", "writes"}
"""Figures that show their change since the mark."""
SORTABLE = (None, *(column.field for column in COLUMNS))
"""What `<` and `>` go through; None is the order of the job: launcher, ranks, workers, others."""


class Fit(NamedTuple):
    """What there is room for: cells of the tree, the columns, cells of the command or 0."""

    tree: int
    columns: tuple[Column, ...]
    command: int
    marked: bool = False

    def cells(self, column: Column) -> int:
        return column.cells + (WIDTH if self.marked and column.field in CHANGING else 0)


def fit(width: int, *, gpu: bool, longest: int = TREE_LEAST, marked: bool = False) -> Fit:
    """The columns for a pane of `width` cells; the least useful ones are dropped first.

    `gpu` says whether there is a device, `longest` how many cells the longest branch of the tree takes, `marked`
    whether changes are shown.
    """
    bare = Fit(0, (), 0, marked)
    room = width - MARK - TREE_LEAST
    shown: list[Column] = []
    for column in sorted((column for column in COLUMNS if gpu or not column.gpu), key=lambda column: column.keep):
        cells = GAP + bare.cells(column)
        if cells > room:
            break
        room -= cells
        shown.append(column)
    # In steps, so that a branch more or less moves nothing.
    wished = max(0, min(TREE_MOST, TREE_STEP * math.ceil(longest / TREE_STEP)) - TREE_LEAST)
    grown = min(wished, room)
    tree, room = TREE_LEAST + grown, room - grown
    command = room - GAP if room >= COMMAND_LEAST + GAP else 0
    return Fit(tree, tuple(column for column in COLUMNS if column in shown), command, marked)


def heading(shape: Fit, order: Order) -> Line:
    """The headings; the one sorted by has an arrow, and a click on one sorts by it."""
    line = Line().to(MARK)
    line.join(_heading("process", None, order, shape.tree, right=False))
    for column in shape.columns:
        line.to(line.width + GAP).join(_heading(column.heading, column.field, order, column.cells))
        line.to(line.width + shape.cells(column) - column.cells)
    if shape.command:
        line.to(line.width + GAP).add("command".ljust(shape.command), FAINT)
    return line


def _heading(text: str, field: str | None, order: Order, cells: int, *, right: bool = True) -> Line:
    chosen = order.by == field
    style = clickable(BRIGHT if chosen else FAINT, f"sort('{field or ''}')")
    up = order.inverted != (field in (None, "pid"))
    marked = chosen and order != BY_ROLE
    text = f"{text}{'↑' if up else '↓'}" if marked and len(text) < cells else text
    return Line().add(text.rjust(cells) if right else text.ljust(cells), style)


def row_line(
    row: ProcessRow, shape: Fit, width: int, view: View, before: Figures | None = None, *, cursor: bool, chosen: bool
) -> Line:
    """One process; `cursor` lights it up, `chosen` marks the one that the screen is narrowed to.

    `before` is what it used at the mark, None where it was not there.
    """
    kind = KINDS.get(row.process.role, OTHER_PROCESS)
    line = Line("● " if chosen else "▸ " if cursor else "  ", BRIGHT)
    line.join(_tree_cell(row, kind, shape.tree))
    for column in shape.columns:
        text, style = column.write(row.figures)
        line.add(" " * GAP).add(shorten(text, column.cells).rjust(column.cells), style if row.matches else FAINT)
        if shape.marked and column.field in CHANGING:
            line.join(_changed(view, column, row.figures, before))
    if shape.command:
        line.add(" " * GAP).add(shorten(one_line(short_command(row.process.command)), shape.command), FAINT)
    return lit(line.fit(width)) if cursor else line.fit(width)


def _changed(view: View, column: Column, now: Figures, before: Figures | None) -> Line:
    if (column.gpu and not now.on_gpu) or getattr(now, column.field) is None:
        return Line().to(WIDTH)
    change = share_change if column.field in SHARES else value_change
    return change(view, getattr(now, column.field), getattr(before, column.field) if before else None)


def _tree_cell(row: ProcessRow, kind: Kind, cells: int) -> Line:
    line = Line(row.guide, FAINT)
    if row.parent:
        action = f"fold({row.process.pid})"
        line.add("▸ " if row.folded else "▾ ", clickable(DIM, action))
    line.add(one_line(row.label), kind.ink if row.matches else FAINT)
    if row.folded:
        line.add(f" +{row.folded}", BRIGHT)
    return line.fit(cells)


def sorted_next(order: Order, steps: int) -> Order:
    """The order by the column `steps` to the right (left, if negative), the largest value first."""
    at = SORTABLE.index(order.by) if order.by in SORTABLE else 0
    return Order(SORTABLE[max(0, min(len(SORTABLE) - 1, at + steps))])


def sort_word(order: Order) -> str:
    """What the rows are sorted by, in a word."""
    named = {column.field: column.heading for column in COLUMNS}
    return "by role" if order.by is None else f"by {named.get(order.by, order.by)}"


def longest_branch(rows: Iterable[ProcessRow]) -> int:
    """Cells of the widest cell of the tree, with room for the number of what may be folded away."""
    return max((len(row.guide) + len(row.label) + 6 * row.parent for row in rows), default=0)
