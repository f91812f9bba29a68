"""The ranks of the job beside each other, the latest first, to read and to enter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.model.ranks import RankPhases, Ranks, RankView
from aitop.model.units import NOT_SUPPORTED, NOT_YET, duration, percent, size
from aitop.ui.state import View
from aitop.ui.theme.palette import (
    BACKWARD,
    BRIGHT,
    COMMUNICATION,
    DATA,
    DIM,
    FAINT,
    FORWARD,
    LOSS,
    OPTIMIZER,
    OUTSIDE,
    TEXT,
    Kind,
)
from aitop.ui.widgets.bars import EIGHTHS
from aitop.ui.widgets.line import Line, lit, shorten
from aitop.ui.widgets.pane import Drawing
from aitop.ui.widgets.table import RowPane
from aitop.ui.words import plural, tight_percent

MARK, NAME, LATE, STEP, CELL, GAP = 2, 4, 7, 7, 9, 1
LEAST_SKEW, MOST_SKEW = 8, 48
LATE_SHARE = 0.1


# Ranks change places only when one is later than another by this part of a step.
SORTED_BY = 0.05
ODD_RATIO, ODD_SHARE = 1.2, 0.03


class Column(NamedTuple):
    """A heading, its cells, the field of RankView (of its phases where there is a hue) and how that is written.

    `keep`: the lower the longer it stays as the pane narrows.
    """

    heading: str
    cells: int
    keep: int
    field: str
    text_of: Callable[[Any], str] = duration
    phase: Kind | None = None


COLUMNS = (
    Column("step", STEP, 1, "p50"),
    Column("data", CELL, 2, "data_wait", phase=DATA),
    Column("forward", CELL, 3, "forward", phase=FORWARD),
    Column("backward", CELL, 4, "backward", phase=BACKWARD),
    Column("optimizer", CELL, 11, "optimizer", phase=OPTIMIZER),
    Column("else", CELL, 12, "outside", phase=OUTSIDE),
    Column("wait", CELL, 0, "wait", phase=COMMUNICATION),
    Column("gpu", 4, 5, "gpu_busy", tight_percent),
    Column("gpu mem", 7, 6, "gpu_memory", size),
    Column("memory", 7, 8, "rss", size),
    Column("cpu", 5, 7, "cpu", tight_percent),
    Column("at step", 8, 13, "step", "{:,}".format),
)


class Fit(NamedTuple):
    """The columns that there is room for, and the cells that are left for lateness over time, 0 for none."""

    columns: tuple[Column, ...]
    skew: int


def fit(width: int, *, gpu: bool) -> Fit:
    """The columns for a pane of `width` cells; the least useful ones are dropped first."""
    wanted = [column for column in COLUMNS if gpu or not column.heading.startswith("gpu")]
    room = width - MARK - NAME - GAP - LATE
    shown = []
    for column in sorted(wanted, key=lambda column: column.keep):
        if column.keep > 10 and room < GAP + column.cells + GAP + LEAST_SKEW:
            break
        if GAP + column.cells > room:
            break
        room -= GAP + column.cells
        shown.append(column)
    skew = min(MOST_SKEW, room - GAP)
    return Fit(tuple(column for column in wanted if column in shown), skew if skew >= LEAST_SKEW else 0)


def sorted_ranks(ranks: Ranks) -> list[RankView]:
    """The latest first; ranks that are about as late as each other by their numbers."""
    unit = SORTED_BY * (ranks.step or 0.0)

    def order(one: RankView) -> tuple[bool, float, int, int]:
        steps_late = round(one.lateness / unit) if one.lateness is not None and unit > 0 else 0
        return one.lateness is None, -steps_late, one.rank if one.rank is not None else 1 << 30, one.pid

    return sorted(ranks.ranks, key=order)


def heading(shape: Fit) -> Line:
    """The names of the columns."""
    line = Line().to(MARK).add("rank", FAINT).add(" " * GAP).add("late".rjust(LATE), FAINT)
    for column in shape.columns:
        line.add(" " * GAP).add(column.heading.rjust(column.cells), FAINT)
    if shape.skew:
        line.add(" " * GAP).add("late by step" if shape.skew >= len("late by step") else "skew", FAINT)
    return line


def row_line(one: RankView, ranks: Ranks, shape: Fit, width: int, *, cursor: bool, chosen: bool) -> Line:
    """One rank; `cursor` lights it up, `chosen` marks the one that the screen is narrowed to."""
    share = one.lateness / ranks.step if one.lateness is not None and ranks.step else 0.0
    late = share >= LATE_SHARE
    line = Line("● " if chosen else "▸ " if cursor else "  ", BRIGHT)
    line.add(("?" if one.rank is None else str(one.rank)).rjust(NAME), LOSS if late else BRIGHT)
    late_text = NOT_SUPPORTED if one.lateness is None else duration(one.lateness) if share >= 0.005 else "0"
    line.add(" " * GAP).add(late_text.rjust(LATE), LOSS if late else DIM)
    others = [other.phases for other in ranks.ranks if other is not one and other.phases is not None]
    for column in shape.columns:
        line.add(" " * GAP)
        if column.phase is None:
            value = getattr(one, column.field)
            text = NOT_SUPPORTED if value is None else shorten(column.text_of(value), column.cells)
            line.add(text.rjust(column.cells), FAINT if value is None else TEXT)
        else:
            line.join(_heat(one, column, ranks, others, late))
    if shape.skew:
        line.add(" " * GAP).join(_skew(one.skew, ranks.step, shape.skew, late))
    return lit(line.fit(width)) if cursor else line.fit(width)


def _heat(one: RankView, column: Column, ranks: Ranks, others: Sequence[RankPhases], late: bool) -> Line:
    """A phase's mean time, the cell filled as far as its share of the step goes; bold where a late rank differs."""
    value = getattr(one.phases, column.field, None)
    step = ranks.step or one.p50
    if value is None or not step:
        return Line(NOT_SUPPORTED.rjust(column.cells), FAINT)
    text = duration(value).rjust(column.cells)
    filled = max(0, min(column.cells, round(column.cells * value / step)))
    known = [seconds for other in others if (seconds := getattr(other, column.field)) is not None]
    usual = fmean(known) if known else value
    odd = late and value > ODD_RATIO * usual and value - usual > ODD_SHARE * step
    rest: Style = LOSS if odd else TEXT
    return Line(text[:filled], column.phase.fill if filled and column.phase else rest).add(text[filled:], rest)


def _skew(skew: Sequence[float], step: float | None, cells: int, late: bool) -> Line:
    """How late a rank was, over the steps compared: a full cell is a whole step; several steps a cell as their mean."""
    if not skew or not step:
        return Line()
    count = min(cells, len(skew))
    edges = [round(number * len(skew) / count) for number in range(count + 1)]
    means = [fmean(skew[first:last]) for first, last in pairwise(edges)]
    glyphs = "".join(EIGHTHS[max(0, min(8, round(8 * mean / step)))] for mean in means)
    return Line(glyphs.replace(" ", "·"), LOSS if late else FAINT)


BESIDE_NOTE = 7


@dataclass
class RankChosen(Message):
    """The user wants the screen narrowed to a rank."""

    rank: int


class RankPane(RowPane[RankView]):
    """A heading, a row a rank, the one at the cursor lit up, the chosen one marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,right", "choose", "enter the rank", show=False),
        Binding("left", "leave", "all ranks", show=False),
    ]

    def draw(self, view: View, width: int, height: int) -> Drawing:
        ranks = view.snapshot.ranks if view.snapshot else None
        if ranks is None or not ranks.ranks:
            return Drawing([Line("one process, no ranks" if view.snapshot else NOT_YET, DIM)], "Ranks")
        shown = self.take(sorted_ranks(ranks), height - 1)
        shape = fit(width, gpu=any(row.gpu is not None for row in self.rows))
        lines = [heading(shape)]
        for row, at in shown:
            chosen = view.rank is not None and row.rank == view.rank
            lines.append(row_line(row, ranks, shape, width, cursor=at, chosen=chosen))
        title = _title(ranks)
        notes = (note for note in self._notes(ranks) if len(title) + note.width + BESIDE_NOTE <= width)
        return Drawing(lines, title, next(notes, None), view.stale("hook"))

    def _notes(self, ranks: Ranks) -> list[Line]:
        """What may stand beside the title, the longest first."""
        part = self.in_sight()
        order = Line(f"{part}, the latest first" if part else "the latest first", DIM)
        compared = Line(f"{plural(ranks.steps, 'step')} compared · " if ranks.steps else "", DIM)
        measured = _measured(ranks)
        longest = [Line().join(measured[0]).join(compared).join(order)] if measured else []
        return [*longest, *(Line().join(note).join(order) for note in measured), order, Line(part, DIM)]

    def key_of(self, row: RankView) -> int:
        return row.pid

    def action_choose(self, stay: bool = False) -> None:
        one = self.row()
        if one is not None and one.rank is not None:
            self._key = one.pid
            self.post_message(RankChosen(one.rank))

    def action_leave(self) -> None:
        if self.view.rank is not None:
            self.post_message(RankChosen(self.view.rank))


def _measured(ranks: Ranks) -> list[Line]:
    """What the exchange costs and how well ranks are made use of, the longest first."""
    if not ranks.step or ranks.exchange is None:
        return [Line("no steps seen yet · ", DIM)] if all(rank.phases is None for rank in ranks.ranks) else []
    share = percent(ranks.exchange / ranks.step)
    exchange = Line(f"exchange {share}", TEXT).add(" of a step · ", DIM)
    short = Line(f"exchange {share}", TEXT).add(" · ", DIM)
    if ranks.efficiency is None:
        return [exchange, short]
    scaling = Line(f"scaling {percent(ranks.efficiency)}", TEXT).add(" · ", DIM)
    return [scaling.join(exchange), short]


def _title(ranks: Ranks) -> str:
    elsewhere = (ranks.world_size or 0) - len(ranks.ranks)
    title = f"Ranks · {len(ranks.ranks)}"
    if elsewhere > 0:
        title += f" here, {elsewhere} elsewhere"
    if ranks.step:
        title += f" · {duration(ranks.step)} a step"
    return title
