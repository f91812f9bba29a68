"""The ranks of the job beside each other, the latest first, to read and to enter."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.model.ranks import Ranks, RankView
from aitop.model.units import NOT_YET, duration, percent
from aitop.ui.line import Line
from aitop.ui.palette import DIM, TEXT
from aitop.ui.rank_table import fit, heading, row_line, sorted_ranks
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane
from aitop.ui.words import plural

ROOMY = 100
BESIDE_NOTE = 7


class RankChosen(Message):
    """The user wants the screen narrowed to a rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank


class RankPane(Pane):
    """A heading, a row a rank, the one at the cursor lit up, the chosen one marked."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "cursor", show=False),
        Binding("down,j", "move(1)", "cursor", show=False),
        Binding("pageup", "move(-10)", "cursor", show=False),
        Binding("pagedown", "move(10)", "cursor", show=False),
        Binding("home", "move(-100000)", "cursor", show=False),
        Binding("end", "move(100000)", "cursor", show=False),
        Binding("enter,right", "choose", "enter the rank", show=False),
        Binding("left", "leave", "all ranks", show=False),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id)
        self.rows: list[RankView] = []
        self.cursor = 0
        self._pid: int | None = None
        self._first = 0

    def draw(self, view: View, width: int, height: int) -> Drawing:
        ranks = view.snapshot.ranks if view.snapshot else None
        if ranks is None or not ranks.ranks:
            return Drawing([Line("one process, no ranks" if view.snapshot else NOT_YET, DIM)], "Ranks")
        self.rows = sorted_ranks(ranks)
        self._follow()
        page = max(1, height - 1)
        self._first = max(0, min(self._first, self.cursor, len(self.rows) - page), self.cursor + 1 - page)
        shape = fit(width, gpu=any(one.gpu is not None for one in self.rows))
        lines = [heading(shape)]
        for number, one in enumerate(self.rows[self._first : self._first + page], self._first):
            at = self.has_focus and number == self.cursor
            chosen = view.rank is not None and one.rank == view.rank
            lines.append(row_line(one, ranks, shape, width, cursor=at, chosen=chosen))
        title, notes = _title(ranks), self._notes(ranks, page)
        fitting = [note for note in notes if len(title) + note.width + BESIDE_NOTE <= width]
        return Drawing(lines, title, fitting[0] if fitting else None, view.stale("hook"))

    def _notes(self, ranks: Ranks, page: int) -> list[Line]:
        """What may stand beside the title, the longest first."""
        shown = Line("the latest first", DIM)
        if len(self.rows) > page:
            last = min(len(self.rows), self._first + page)
            part = f"{self._first + 1}–{last} of {len(self.rows)}"
            shown = Line(f"{part}, the latest first" if self.size.width >= ROOMY else part, DIM)
            return [*(note.join(shown) for note in _measured(ranks)), shown, Line(part, DIM)]
        compared = [Line(f"{plural(ranks.steps, 'step')} compared · ", DIM)] if ranks.steps else []
        longest = [note.join(compared[0]).join(shown) for note in _measured(ranks)[:1] if compared]
        return [*longest, *(note.join(shown) for note in _measured(ranks)), shown]

    def _follow(self) -> None:
        """Keep the cursor on its rank when ranks change places; else at its height."""
        at = next((number for number, one in enumerate(self.rows) if one.pid == self._pid), None)
        self.cursor = max(0, min(self.cursor if at is None else at, len(self.rows) - 1))

    # What the user does

    def action_move(self, rows: int) -> None:
        """Move the cursor; the ends stop it."""
        if self.rows:
            self.cursor = max(0, min(len(self.rows) - 1, self.cursor + rows))
            self._pid = self.rows[self.cursor].pid
        self.redraw()

    def action_scroll_by(self, lines: int) -> None:
        """The wheel moves the cursor."""
        self.action_move(lines)

    def action_choose(self) -> None:
        """Enter the rank at the cursor."""
        one = self.rows[self.cursor] if self.cursor < len(self.rows) else None
        if one is not None and one.rank is not None:
            self._pid = one.pid
            self.post_message(RankChosen(one.rank))

    def action_leave(self) -> None:
        """Show all ranks again."""
        if self.view.rank is not None:
            self.post_message(RankChosen(self.view.rank))

    async def on_click(self, event: events.Click) -> None:
        """A click puts the cursor on a row, a second one enters the rank."""
        await super().on_click(event)
        top = 2 if self.framed else 1
        if top <= event.y < top + len(self.rows) - self._first:
            self.action_move(self._first + event.y - top - self.cursor)
            if event.chain >= 2:
                self.action_choose()


def _measured(ranks: Ranks) -> list[Line]:
    """What the exchange costs and how well ranks are made use of, the longest first."""
    if not ranks.step or ranks.exchange is None:
        return [Line("no steps seen yet · ", DIM)] if all(one.phases is None for one in ranks.ranks) else []
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
