"""A table that another machine fills again and again: the pane, and the screen around it with its keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aitop.model.fleet import Attempt, Fleet, FleetRank, JobRanks, command_for
from aitop.model.units import duration
from aitop.ui.messages import Failed, in_background
from aitop.ui.panes.footer import Filtered, FilterLine
from aitop.ui.screens.help import HelpScreen, our_bindings
from aitop.ui.state import View, matches
from aitop.ui.theme.palette import BRIGHT, DIM, LOSS
from aitop.ui.widgets.line import Line, key_hints, wrap
from aitop.ui.widgets.pane import Drawing, OneLine, Pane
from aitop.ui.widgets.row_pane import RowPane
from aitop.ui.widgets.table import Column, Order, fit, heading, in_order, next_order, row_line

ASK_SECONDS = 15.0
"""The usual time between two questions."""
ROOM_FOR_FOOT = 8
Row = TypeVar("Row")


class Cluster(Protocol):
    """What knows the jobs. It is asked off the UI thread, and may be slow."""

    @property
    def shown(self) -> str:
        """Its address as it may be shown."""

    def attempt(self, job: str | None = None) -> Attempt:
        """All jobs, or the ranks of one."""

    def job_with(self, pids: Collection[int]) -> str:
        """The job to which these processes of this machine belong. Raises AitopError where there is none."""


@dataclass
class RowChosen(Message):
    """The user wants to see more of this row."""

    row: Any


class TablePane(RowPane[Row]):
    """A heading, and a row for each entry that the filter lets through, in the order that was asked for.

    `entries` is None before the first answer. `problem` says why the newest one is missing, `age` how old in seconds
    what is shown was then.
    """

    name_of_rows = "rows"
    none = "none"
    table: Sequence[Column] = ()
    default_order = ""
    entries: Sequence[Row] | None = None
    problem = ""
    age = 0.0
    order = Order()

    def texts(self, row: Row) -> Sequence[str | None]:
        """What the filter looks at."""
        raise NotImplementedError

    def action_choose(self, stay: bool = False) -> None:
        row = self.row()
        if row is not None:
            self.post_message(RowChosen(row))

    def foot(self, row: Row, width: int) -> list[Line]:
        """More about the row at the cursor."""
        return []

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if self.entries is None:
            waiting = Line("asking Prometheus…", DIM)
            lines = [Line(text, LOSS) for text in wrap(self.problem, width)] if self.problem else [waiting]
            return Drawing(lines, self.name_of_rows)
        rows = [row for row in self.entries if matches(view.filter, *self.texts(row))] if view.filter else self.entries
        title = f"{self.name_of_rows} · {len(self.entries)}"
        if view.filter:
            title += f" · /{view.filter} {len(rows)} match"
        if not rows:
            self.rows = ()
            return Drawing([Line(self.none if not view.filter else "no row matches", DIM)], title)
        rows = in_order(rows, self.table, self.order)
        self.take(rows, height - 1)
        chosen = self.row()
        foot = self.foot(chosen, width) if chosen is not None and height >= ROOM_FOR_FOOT else []
        shape = fit(self.table, width)
        lines = [heading(shape, self.order)]
        lines += [row_line(row, shape, width, cursor=at) for row, at in self.take(rows, height - 1 - len(foot))]
        sorted_by = f"by {self.order.by}" if self.order.by else self.default_order
        note = " · ".join(filter(None, (sorted_by, self.in_sight())))
        stale = f"{duration(self.age)} old · {self.problem}" if self.problem else None
        return Drawing(lines, title, Line(note, DIM), stale, foot)


class TableScreen(Screen[None]):
    """Asks again every `every` seconds. What it shows stays when an answer is missing, with its age."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "none", "previous row"),
        Binding("down,j", "none", "next row"),
        Binding("c", "command", "the command that opens aitop on this job or rank; it is copied as well"),
        Binding("slash,f4", "filter", "show only rows that hold this text"),
        Binding("less_than_sign,comma", "sort_by(-1)", "sort by the column to the left"),
        Binding("greater_than_sign,full_stop", "sort_by(1)", "sort by the column to the right"),
        Binding("I", "invert", "turn that order round"),
        Binding("r", "ask", "ask again now"),
        Binding("question_mark,f1", "help", "this help"),
    ]
    keys: Sequence[tuple[str, str]] = ()

    def __init__(self, cluster: Cluster, every: float, view: View, listing: TablePane[Any]) -> None:
        super().__init__()
        self.cluster = cluster
        self.every = every
        self.view = view
        self.listing: TablePane[Any] = listing
        self.answer: Fleet | JobRanks | None = None
        self._asking = False

    def compose(self) -> ComposeResult:
        yield OneLine(lambda _, width: self.summary(width), id="header")
        yield self.listing
        yield OneLine(self._hint, id="hint")
        line = FilterLine(id="filter")
        line.display = False
        yield line

    def on_mount(self) -> None:
        self.listing.focus()
        self.change()
        self.action_ask()
        self.set_interval(self.every, self.action_ask)

    def on_screen_resume(self) -> None:
        self.change()

    def job(self) -> str | None:
        """The job whose ranks are shown; None for all jobs."""
        return None

    def summary(self, width: int) -> Line:
        """The first line."""
        raise NotImplementedError

    def _hint(self, view: View, _width: int) -> Line:
        """The newest notice, else the keys."""
        line = Line(" ")
        return line.add(view.notice, BRIGHT) if view.notice else line.join(key_hints(self.keys))

    def took(self, answer: Fleet | JobRanks) -> None:
        """Hand a new answer to the panes."""
        raise NotImplementedError

    def chose(self, row: Any) -> None:
        """Show more of a row."""
        raise NotImplementedError

    def on_row_chosen(self, message: RowChosen) -> None:
        self.chose(message.row)

    def action_choose(self) -> None:
        self.listing.action_choose()

    def action_ask(self) -> None:
        if not self._asking:
            self._asking = True
            in_background(self, "fleet", partial(self.cluster.attempt, self.job()), self._answered)

    def _answered(self, attempt: Attempt | Exception) -> None:
        self._asking = False
        if isinstance(attempt, Exception):
            self.post_message(Failed(attempt))
            return
        self.listing.problem = attempt.problem
        if attempt.answer is not None:
            self.answer = attempt.answer
            self.took(attempt.answer)
        elif self.answer is not None:
            self.listing.age = attempt.time - self.answer.time
        self.change()

    def change(self, **changes: object) -> None:
        """Show the view with these changes."""
        self.view = replace(self.view, **changes)
        for pane in self.query(Pane):
            pane.show(self.view)

    def show_command(self, rank: FleetRank | None) -> None:
        """Show the command for a rank, and copy it as far as the terminal lets us."""
        command = command_for(rank) if rank is not None else None
        if command is None:
            self.change(notice="there is no rank with a node and a pid that a command could name")
        else:
            self.app.copy_to_clipboard(command)
            self.change(notice=f"{command}   (copied, if the terminal allows it)")

    def action_none(self) -> None:
        """The table obeys these keys itself; here they are only described."""

    def action_sort_by(self, steps: int) -> None:
        self.listing.order = next_order(self.listing.table, self.listing.order, steps)
        self.listing.redraw()

    def action_invert(self) -> None:
        self.listing.order = self.listing.order._replace(inverted=not self.listing.order.inverted)
        self.listing.redraw()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(our_bindings(self), self.view))

    def action_filter(self) -> None:
        line = self.query_one(FilterLine)
        line.typed = self.view.filter
        self._type(True)
        self.set_focus(line)

    def on_filtered(self, message: Filtered) -> None:
        self.change(filter=message.text.strip() if message.done else message.text)
        if message.done and self.query_one(FilterLine).display:
            self._type(False)
            self.set_focus(self.listing)

    def _type(self, typing: bool) -> None:
        self.query_one(FilterLine).display = typing
        self.query_one("#hint").display = not typing
        self.change(notice=None)
