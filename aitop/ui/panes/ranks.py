"""The rank pane: the ranks of the job on this machine, the latest (the stragglers) first."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from aitop.model.fleet import SORTED_BY
from aitop.model.ranks import Ranks, RankView
from aitop.model.units import NOT_SUPPORTED, NOT_YET, duration, percent, plural, size
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, LOSS, TEXT, phase_of
from aitop.ui.widgets.bars import EIGHTHS
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.pane import Drawing
from aitop.ui.widgets.table import Column, RowPane, fit, heading, row_line
from aitop.ui.words import tight_percent

LATE_SHARE = 0.1
ODD_RATIO, ODD_SHARE = 1.2, 0.03
GAP = 1


class RankRow(NamedTuple):
    """A rank, with all the ranks that it is compared with."""

    rank: RankView
    among: Ranks

    @property
    def late_by(self) -> float:
        """Its lateness as a share (0..1) of a step, 0 if not known."""
        return self.rank.lateness / self.among.step if self.rank.lateness is not None and self.among.step else 0.0

    @property
    def late(self) -> bool:
        return self.late_by >= LATE_SHARE

    def lateness(self) -> str:
        if self.rank.lateness is None:
            return NOT_SUPPORTED
        return duration(self.rank.lateness) if self.late_by >= 0.005 else "0"


def _phase(heading: str, keep: int, field: str, phase: str = "") -> Column:
    """A column with the mean time of a phase. The cell is filled as far as the phase's share of a step.

    The time is red where a late rank takes clearly longer than the mean of the others (ODD_RATIO and ODD_SHARE).
    `field` is the field of RankPhases; `phase` is the palette's key of the phase if that is another word.
    """

    def seconds_of(row: RankRow) -> float | None:
        return getattr(row.rank.phases, field, None) if row.among.step or row.rank.p50 else None

    def draw(row: RankRow, cells: int) -> Line:
        value, step = seconds_of(row) or 0.0, row.among.step or row.rank.p50 or 0.0
        text = duration(value).rjust(cells)
        filled = max(0, min(cells, round(cells * value / step)))
        others = [other.phases for other in row.among.ranks if other is not row.rank and other.phases is not None]
        known = [seconds for other in others if (seconds := getattr(other, field)) is not None]
        usual = fmean(known) if known else value
        odd = row.late and value > ODD_RATIO * usual and value - usual > ODD_SHARE * step
        rest = LOSS if odd else TEXT
        return Line(text[:filled], phase_of(phase or field).fill if filled else rest).add(text[filled:], rest)

    return Column(heading, 9, keep, seconds_of, draw=draw)


def _skew(row: RankRow, cells: int) -> Line:
    """A chart of a rank's lateness over the compared steps; a full cell is lateness by a whole step.

    With more steps than cells, a cell is the mean of several steps.
    """
    skew, step = row.rank.skew, row.among.step
    if not skew or not step:
        return Line()
    count = min(cells, len(skew))
    edges = [round(number * len(skew) / count) for number in range(count + 1)]
    means = [fmean(skew[first:last]) for first, last in pairwise(edges)]
    glyphs = "".join(EIGHTHS[max(0, min(8, round(8 * mean / step)))] for mean in means)
    return Line(glyphs.replace(" ", "·"), LOSS if row.late else FAINT)


COLUMNS = (
    Column("rank", 4, -2, lambda row: "?" if row.rank.rank is None else row.rank.rank,
           style=lambda row: LOSS if row.late else BRIGHT),
    Column("late", 7, -1, RankRow.lateness, style=lambda row: LOSS if row.late else DIM),
    Column("step", 7, 1, lambda row: row.rank.p50, duration),
    _phase("data", 2, "data_wait"),
    _phase("forward", 3, "forward"),
    _phase("backward", 4, "backward"),
    _phase("optimizer", 11, "optimizer"),
    _phase("host", 12, "outside"),
    _phase("wait", 0, "wait", "communication"),
    Column("gpu", 4, 5, lambda row: row.rank.gpu_busy, tight_percent),
    Column("gpu mem", 7, 6, lambda row: row.rank.gpu_memory, size),
    Column("memory", 7, 8, lambda row: row.rank.rss, size),
    Column("cpu", 5, 7, lambda row: row.rank.cpu, tight_percent),
    Column("at step", 8, 13, lambda row: row.rank.step, "{:,}".format),
    Column("skew", 8, 10, lambda row: row.rank.skew, draw=_skew, right=False, most=48, long="late by step"),
)  # fmt: skip


def sorted_ranks(ranks: Ranks) -> list[RankView]:
    """The ranks, the latest first; those with about the same lateness by rank number."""
    unit = SORTED_BY * (ranks.step or 0.0)

    def order(one: RankView) -> tuple[bool, float, int, int]:
        steps_late = round(one.lateness / unit) if one.lateness is not None and unit > 0 else 0
        return one.lateness is None, -steps_late, one.rank if one.rank is not None else 1 << 30, one.pid

    return sorted(ranks.ranks, key=order)


BESIDE_NOTE = 7


class RankPane(RowPane[RankRow]):
    """A heading and one row per rank; the row at the cursor is highlighted, the chosen one marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,right", "choose", "enter the rank", show=False),
        Binding("left", "leave", "all ranks", show=False),
    ]

    def draw(self, view: View, width: int, height: int) -> Drawing:
        ranks = view.snapshot.ranks if view.snapshot else None
        if ranks is None or not ranks.ranks:
            return Drawing([Line("one process, no ranks" if view.snapshot else NOT_YET, DIM)], "Ranks")
        shown = self.take([RankRow(rank, ranks) for rank in sorted_ranks(ranks)], height - 1)
        gpu = any(rank.gpu is not None for rank in ranks.ranks)
        shape = fit([column for column in COLUMNS if gpu or not column.heading.startswith("gpu")], width, GAP)
        lines = [heading(shape, self.order, GAP)]
        for row, at in shown:
            lines.append(row_line(row, shape, width, cursor=at, chosen=row.rank.pid == view.chosen, gap=GAP))
        elsewhere = (ranks.world_size or 0) - len(ranks.ranks)
        title = f"Ranks · {len(ranks.ranks)}" + (f" here, {elsewhere} elsewhere" if elsewhere > 0 else "")
        title += f" · {duration(ranks.step)} a step" if ranks.step else ""
        note = next((note for note in self._notes(ranks) if len(title) + note.width + BESIDE_NOTE <= width), None)
        return Drawing(lines, title, note, view.stale("hook"))

    def _notes(self, ranks: Ranks) -> list[Line]:
        """Notes that may stand beside the title, from the longest to the shortest; the first that fits is shown."""
        part = self.in_sight()
        order = Line(f"{part}, the latest first" if part else "the latest first", DIM)
        compared = Line(f"{plural(ranks.steps, 'step')} compared · " if ranks.steps else "", DIM)
        measured = _measured(ranks)
        longest = [Line().join(measured[0]).join(compared).join(order)] if measured else []
        return [*longest, *(Line().join(note).join(order) for note in measured), order, Line(part, DIM)]

    def key_of(self, row: RankRow) -> int:
        return row.rank.pid

    async def action_leave(self) -> None:
        if self.view.chosen is not None:
            await self.run_action("screen.rank(0)")


def _measured(ranks: Ranks) -> list[Line]:
    """Notes on the share of the exchange in a step and the scaling efficiency, the longest first."""
    if not ranks.step or ranks.exchange is None:
        return [Line("no steps seen yet · ", DIM)] if all(rank.phases is None for rank in ranks.ranks) else []
    share = percent(ranks.exchange / ranks.step)
    exchange = Line(f"exchange {share}", TEXT).add(" of a step · ", DIM)
    short = Line(f"exchange {share}", TEXT).add(" · ", DIM)
    if ranks.efficiency is None:
        return [exchange, short]
    scaling = Line(f"scaling {percent(ranks.efficiency)}", TEXT).add(" · ", DIM)
    return [scaling.join(exchange), short]
