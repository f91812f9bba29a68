"""The table of ranks: which columns fit, and how a rank is written in them. Pure.

A part of the step is filled as far as its share of the step goes, in the hue that it has everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from rich.style import Style

from aitop.model.ranks import RankPhases, Ranks, RankView
from aitop.model.units import NOT_SUPPORTED, duration, size
from aitop.ui.line import Line, lit, shorten
from aitop.ui.palette import (
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
    Phase,
)

MARK, NAME, LATE, STEP, CELL, GAP = 2, 4, 7, 7, 9, 1
LEAST_SKEW, MOST_SKEW = 8, 48
LATE_SHARE = 0.1
# Ranks change places only when one is later than another by this part of a step.
SORTED_BY = 0.05
ODD_RATIO, ODD_SHARE = 1.2, 0.03
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Column(NamedTuple):
    """A heading, its cells, the text of a rank in it; `keep`: the lower the longer it stays as the pane narrows."""

    heading: str
    cells: int
    keep: int
    phase: Phase | None = None
    write: Callable[[RankView], str] = lambda one: NOT_SUPPORTED


def _share(value: float | None) -> str:
    return NOT_SUPPORTED if value is None else f"{value * 100:.0f}%"


COLUMNS = (
    Column("step", STEP, 1, None, lambda one: duration(one.p50)),
    Column("data", CELL, 2, DATA),
    Column("forward", CELL, 3, FORWARD),
    Column("backward", CELL, 4, BACKWARD),
    Column("optimizer", CELL, 11, OPTIMIZER),
    Column("else", CELL, 12, OUTSIDE),
    Column("wait", CELL, 0, COMMUNICATION),
    Column("gpu", 4, 5, None, lambda one: _share(one.gpu_busy)),
    Column("gpu mem", 7, 6, None, lambda one: size(one.gpu_memory)),
    Column("memory", 7, 8, None, lambda one: size(one.rss)),
    Column("cpu", 5, 7, None, lambda one: _share(one.cpu)),
    Column("at step", 8, 13, None, lambda one: NOT_SUPPORTED if one.step is None else f"{one.step:,}"),
)


class Fit(NamedTuple):
    """The columns that there is room for, and the cells that are left for lateness over time, 0 for none."""

    columns: tuple[Column, ...]
    skew: int


def fit(width: int, *, gpu: bool) -> Fit:
    """The columns for a pane of `width` cells; those that tell least go first."""
    wanted = [column for column in COLUMNS if gpu or not column.heading.startswith("gpu")]
    room = width - MARK - NAME - GAP - LATE
    kept = []
    for column in sorted(wanted, key=lambda one: one.keep):
        if column.keep > 10 and room < GAP + column.cells + GAP + LEAST_SKEW:
            break
        if GAP + column.cells > room:
            break
        room -= GAP + column.cells
        kept.append(column)
    skew = min(MOST_SKEW, room - GAP)
    return Fit(tuple(column for column in wanted if column in kept), skew if skew >= LEAST_SKEW else 0)


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
    told = NOT_SUPPORTED if one.lateness is None else duration(one.lateness) if share >= 0.005 else "0"
    line.add(" " * GAP).add(told.rjust(LATE), LOSS if late else DIM)
    others = [other.phases for other in ranks.ranks if other is not one and other.phases is not None]
    for column in shape.columns:
        line.add(" " * GAP)
        if column.phase is None:
            text = shorten(column.write(one), column.cells)
            line.add(text.rjust(column.cells), FAINT if text == NOT_SUPPORTED else TEXT)
        else:
            line.join(_heat(one, column, ranks, others, late))
    if shape.skew:
        line.add(" " * GAP).join(_skew(one.skew, ranks.step, shape.skew, late))
    return lit(line.fit(width)) if cursor else line.fit(width)


def _heat(one: RankView, column: Column, ranks: Ranks, others: Sequence[RankPhases], late: bool) -> Line:
    """A phase's mean time, the cell filled as far as its share of the step goes; bold where a late rank differs."""
    value = _seconds(one.phases, column.heading)
    step = ranks.step or one.p50
    if value is None or not step:
        return Line(NOT_SUPPORTED.rjust(column.cells), FAINT)
    text = duration(value).rjust(column.cells)
    filled = max(0, min(column.cells, round(column.cells * value / step)))
    known = [seconds for other in others if (seconds := _seconds(other, column.heading)) is not None]
    usual = fmean(known) if known else value
    odd = late and value > ODD_RATIO * usual and value - usual > ODD_SHARE * step
    phase = column.phase or OUTSIDE
    rest: Style = LOSS if odd else TEXT
    return Line(text[:filled], phase.fill if filled else rest).add(text[filled:], rest)


def _seconds(phases: RankPhases | None, name: str) -> float | None:
    if phases is None:
        return None
    values = {
        "data": phases.data_wait,
        "forward": phases.forward,
        "backward": phases.backward,
        "optimizer": phases.optimizer,
        "else": phases.outside,
        "wait": phases.wait,
    }
    return values[name]


def _skew(skew: Sequence[float], step: float | None, cells: int, late: bool) -> Line:
    """How late a rank was, over the steps compared: a full cell is a whole step; several steps a cell as their mean."""
    if not skew or not step:
        return Line()
    count = min(cells, len(skew))
    edges = [round(number * len(skew) / count) for number in range(count + 1)]
    means = [fmean(skew[first:last]) for first, last in pairwise(edges)]
    glyphs = "".join(_EIGHTHS[max(0, min(8, round(8 * mean / step)))] for mean in means)
    return Line(glyphs.replace(" ", "·"), LOSS if late else FAINT)
