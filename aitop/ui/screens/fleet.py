"""The jobs of a cluster by wasted device-hours, and the ranks of one job: tables polled from Prometheus."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from msgspec.structs import replace
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.model.fleet import (
    Attempt,
    Fleet,
    FleetJob,
    FleetRank,
    JobRanks,
    by_lateness,
    by_waste,
    command_for,
    straggler_of,
    worst_of,
)
from aitop.model.units import duration, factor, percent, period, plural
from aitop.ui.messages import Failed, in_background
from aitop.ui.panes.footer import Filtered, FilterLine
from aitop.ui.state import View, matches
from aitop.ui.theme.palette import BRAND, BRIGHT, COMMUNICATION, DIM, FAINT, GAIN, LOSS, TEXT
from aitop.ui.widgets.line import Line, key_hints, wrapped
from aitop.ui.widgets.pane import Drawing, OneLine, Pane
from aitop.ui.widgets.table import Column, RowChosen, RowPane, fit, heading, in_order, row_line
from aitop.ui.words import one_line, tight_percent

if TYPE_CHECKING:
    from aitop.sources.prometheus.fleet import FleetReader

ASK_SECONDS = 15.0
"""Default seconds between two queries for the ranks of a job."""
ROOM_FOR_FOOT = 8
KEYS = (("c", "ssh command"), ("/", "filter"), ("< >", "sort"), ("r", "ask again"), ("?", "help"))
"""The keys of both screens, for the last line."""
Row = TypeVar("Row")


class TablePane(RowPane[Row]):
    """A heading, and one row for each entry that matches the filter, in the chosen order.

    `entries` is None before the first answer. If the last query failed, `problem` says why, and `age` is how old the
    shown entries were then, in seconds.
    """

    name_of_rows = "rows"
    none = "none"
    default_order = ""
    entries: Sequence[Row] | None = None
    problem = ""
    age = 0.0

    def texts(self, row: Row) -> Sequence[str | None]:
        """The texts of a row that the filter is matched with."""
        raise NotImplementedError

    def foot(self, row: Row, width: int) -> list[Line]:
        """Lines about the row at the cursor, below the table."""
        return []

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if self.entries is None:
            problem = wrapped(self.problem, width, LOSS)
            return Drawing(problem or [Line("asking Prometheus…", DIM)], self.name_of_rows)
        rows = [row for row in self.entries if matches(view.filter, *self.texts(row))] if view.filter else self.entries
        title = f"{self.name_of_rows} · {len(self.entries)}"
        if view.filter:
            title += f" · /{view.filter} {len(rows)} match"
        stale = f"{duration(self.age)} old · {self.problem}" if self.problem else None
        if not rows:
            self.rows = ()
            return Drawing([Line(self.none if not view.filter else "no row matches", DIM)], title, stale=stale)
        rows = in_order(rows, self.table, self.order)
        self.take(rows, height - 1)
        chosen = self.row()
        foot = self.foot(chosen, width) if chosen is not None and height >= ROOM_FOR_FOOT else []
        shape = fit(self.table, width)
        lines = [heading(shape, self.order)]
        lines += [row_line(row, shape, width, cursor=at) for row, at in self.take(rows, height - 1 - len(foot))]
        sorted_by = f"by {self.order.by}" if self.order.by else self.default_order
        note = " · ".join(filter(None, (sorted_by, self.in_sight())))
        return Drawing(lines, title, Line(note, DIM), stale, foot)


class TableScreen(Screen[None]):
    """The base of both screens: queries Prometheus every `every` seconds. After a failed query the old rows stay, with
    their age.

    `job` is the job whose ranks are shown, None to show all jobs.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "app.none", "previous row"),
        Binding("down,j", "app.none", "next row"),
        Binding("c", "command", "the command that opens aitop on this job or rank; it is copied as well"),
        Binding("slash,f4", "filter", "show only rows that hold this text"),
        Binding("less_than_sign,comma", "sort_by(-1)", "sort by the column to the left"),
        Binding("greater_than_sign,full_stop", "sort_by(1)", "sort by the column to the right"),
        Binding("I", "invert", "turn that order round"),
        Binding("r", "ask", "ask again now"),
        Binding("question_mark,f1", "app.help", "this help"),
    ]
    keys: Sequence[tuple[str, str]] = ()
    job: str | None = None

    def __init__(self, cluster: FleetReader, every: float, view: View, listing: TablePane[Any]) -> None:
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

    def summary(self, width: int) -> Line:
        """The first line of the screen."""
        raise NotImplementedError

    def _hint(self, view: View, _width: int) -> Line:
        """The last line: the newest notice, else the keys."""
        line = Line(" ")
        return line.add(view.notice, BRIGHT) if view.notice else line.join(key_hints(self.keys, view.appearance))

    def took(self, answer: Fleet | JobRanks) -> None:
        """Take a new answer into the listing."""
        raise NotImplementedError

    def action_ask(self) -> None:
        if not self._asking:
            self._asking = True
            in_background(self, "fleet", partial(self.cluster.attempt, self.job), self._answered)

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
        """Replace these fields of the view and redraw the panes."""
        self.view = replace(self.view, **changes)
        for pane in self.query(Pane):
            pane.show(self.view)

    def show_command(self, rank: FleetRank | None) -> None:
        """Show the command for a rank, and copy it to the clipboard if the terminal allows that."""
        command = command_for(rank) if rank is not None else None
        if command is None:
            self.change(notice="there is no rank with a node and a pid that a command could name")
        else:
            self.app.copy_to_clipboard(command)
            self.change(notice=f"{command}   (copied, if the terminal allows it)")

    def action_sort_by(self, steps: int) -> None:
        self.listing.action_sort_by(steps)

    def action_invert(self) -> None:
        self.listing.action_invert()

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


SEVERITIES: dict[str, Style] = {"critical": LOSS, "warning": TEXT, "info": DIM}


def hours(device_hours: float) -> str:
    """Device-hours as text: 0.42, 4.2, 420, 1,234."""
    return f"{device_hours:,.{2 if device_hours < 1 else 1 if device_hours < 100 else 0}f}"


def finding_style(row: FleetJob | FleetRank) -> Style:
    """The style of a verdict: by its severity, but red for a stalled job or rank."""
    if row.stalled:
        return LOSS
    return SEVERITIES[row.finding.severity] if row.finding is not None else FAINT


def place_text(row: FleetJob | FleetRank) -> str | None:
    """The file:line of user code that the first verdict names, None if it names none."""
    return one_line(row.finding.place) or None if row.finding is not None else None


def gain_of(row: FleetJob | FleetRank) -> float | None:
    """The predicted speedup (a factor) without the cause of the first verdict; None if not known."""
    return row.finding.speedup if row.finding is not None else None


FINDING = (
    Column("verdict", 18, 0, lambda row: one_line(row.finding_text) or None, str, finding_style, right=False, most=34),
    Column("line", 14, 3, place_text, right=False, most=32),
    Column("gain", 5, 4, gain_of, factor, lambda row: GAIN if (gain_of(row) or 0.0) > 1.0 else FAINT),
)
"""Columns about the first verdict, in both tables."""
JOBS = (
    Column("job", 12, 1, lambda job: one_line(job.job), style=lambda _: BRIGHT, right=False, most=40),
    Column("user", 8, 8, lambda job: one_line(job.user or "") or None, style=lambda _: DIM, right=False, most=16),
    Column("nodes", 10, 7, lambda job: one_line(job.nodes_text) or None, style=lambda _: DIM, right=False, most=32),
    Column("ranks", 5, 5, lambda job: job.ranks, "{:,}".format),
    Column("wasted", 7, 2, lambda job: job.wasted, hours, lambda _: BRIGHT),
    Column("now", 4, 6, lambda job: job.lost, tight_percent),
    *FINDING,
)


class JobsPane(TablePane[FleetJob]):
    """One row per job: stalled jobs first, then those that wasted most."""

    name_of_rows = "Jobs"
    table = JOBS

    def key_of(self, row: FleetJob) -> Hashable:
        return row.job

    def texts(self, row: FleetJob) -> Sequence[str | None]:
        name = row.finding.name if row.finding else None
        return row.job, row.user, row.finding_text, name, place_text(row), *row.nodes


class FleetScreen(TableScreen):
    """Shows all jobs that Prometheus knows of."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "the job's ranks over all its nodes, with the straggler"),
        Binding("escape", "back", "back: out of the filter"),
        Binding("q,f10", "app.quit", "quit"),
    ]
    keys = (("⏎", "ranks"), *KEYS, ("q", "quit"))
    listing: JobsPane

    def __init__(self, cluster: FleetReader, every: float, view: View) -> None:
        super().__init__(cluster, every, view, JobsPane(id="jobs"))

    def took(self, answer: Fleet | JobRanks) -> None:
        if isinstance(answer, Fleet):
            self.listing.entries = by_waste(answer.jobs)
            self.listing.none = f"no AI job runs on {plural(answer.watching, 'node')} that aitop watches"
            then = "device-hours wasted" if answer.wasted is not None else "the share of the first verdict"
            self.listing.default_order = f"stalled first, then by {then}"

    def summary(self, width: int) -> Line:
        line = Line(" aitop ", BRAND).add("  ")
        fleet = self.answer
        parts = []
        if isinstance(fleet, Fleet):
            stalled = sum(1 for job in fleet.jobs if job.stalled)
            if stalled:
                parts.append(Line(f"{plural(stalled, 'job')} stalled", LOSS))
            if fleet.wasted is not None:
                within = f" device-hours wasted in {period(fleet.window)}"
                parts.append(Line(hours(fleet.wasted), BRIGHT).add(within, DIM))
            parts.append(Line(f"{plural(fleet.ranks, 'rank')} on {plural(fleet.nodes, 'node')}", TEXT))
        return line.join_fitting([*parts, Line(self.cluster.shown, DIM)], width, " · ")

    def action_choose(self) -> None:
        self.listing.action_choose()

    def on_row_chosen(self, message: RowChosen) -> None:
        job: FleetJob = message.row
        self.app.push_screen(RanksScreen(self.cluster, self.view, job.job, self.every))

    def action_command(self) -> None:
        """Query the ranks of the job at the cursor, then show the command for the worst one."""
        job = self.listing.row()
        if job is not None:
            self.change(notice=f"asking for the ranks of {one_line(job.job)}…")
            in_background(self, "ranks", partial(self.cluster.attempt, job.job), self._ranks_came)

    def _ranks_came(self, attempt: Attempt | Exception) -> None:
        if isinstance(attempt, Exception):
            self.post_message(Failed(attempt))
        elif isinstance(attempt.answer, JobRanks):
            self.show_command(worst_of(attempt.answer.ranks))
        else:
            self.change(notice=attempt.problem)

    def action_back(self) -> None:
        self.change(filter="", notice=None)


RANKS = (
    Column("rank", 5, 0, lambda rank: rank.rank, style=lambda _: BRIGHT),
    Column("node", 12, 2, lambda rank: one_line(rank.node) or None, right=False, most=40),
    Column("pid", 7, 6, lambda rank: rank.pid, style=lambda _: DIM),
    Column("step", 7, 5, lambda rank: rank.step, duration),
    Column("waits", 5, 1, lambda rank: rank.wait, tight_percent, lambda _: COMMUNICATION.ink),
    Column("lost", 4, 7, lambda rank: rank.lost, tight_percent),
    *FINDING,
)


def waited_for(ranks: Sequence[FleetRank]) -> Line:
    """Which rank keeps the others waiting, in a sentence; stalled ranks come first."""
    stalled, late = [rank for rank in ranks if rank.stalled], straggler_of(ranks)
    if stalled:
        return Line(f"{plural(len(stalled), 'rank')} of {len(ranks)} stalled", LOSS)
    if late is not None:
        waits = median(rank.wait for rank in ranks if rank is not late and rank.wait is not None)
        name = "a rank" if late.rank is None else f"rank {late.rank}"
        on = f" on {one_line(late.node)}" if late.node else ""
        return Line(f"The others wait {percent(waits)} of a step for {name}{on}", LOSS)
    if any(rank.wait is not None for rank in ranks):
        return Line("no rank keeps the others waiting", DIM)
    return Line("whether a rank keeps the others waiting is not measured" if len(ranks) > 1 else "", DIM)


class RanksPane(TablePane[FleetRank]):
    """One row per rank: stalled ranks first, then the one that waits least, because the others wait for it."""

    name_of_rows = "Ranks"
    none = "Prometheus knows of no rank of this job any more"
    table = RANKS
    default_order = "who waits least comes first"

    def key_of(self, row: FleetRank) -> Hashable:
        return row.node, row.rank, row.pid

    def texts(self, row: FleetRank) -> Sequence[str | None]:
        return (row.node, str(row.rank), row.finding_text, place_text(row))

    def foot(self, row: FleetRank, width: int) -> list[Line]:
        command = command_for(row)
        if command is None:
            return [Line("its node or pid is not known", FAINT)]
        return [Line(command, BRIGHT).add("   c copies it", DIM)]


class RanksScreen(TableScreen):
    """Shows one job: its verdict, the rank that the others wait for, and one row per rank."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "command", "the command that opens aitop on this job or rank; it is copied as well"),
        Binding("escape,q", "back", "back: out of the filter, then out of this job"),
    ]
    keys = (*KEYS, ("esc", "back"))
    listing: RanksPane

    def __init__(self, cluster: FleetReader, view: View, job: str, every: float = ASK_SECONDS) -> None:
        super().__init__(cluster, every, View(appearance=view.appearance), RanksPane(id="ranks"))
        self.job = job

    def took(self, answer: Fleet | JobRanks) -> None:
        if isinstance(answer, JobRanks):
            self.listing.entries = by_lateness(answer.ranks)

    def summary(self, width: int) -> Line:
        line = Line(" aitop ", BRAND).add("  ")
        job = Line(f"job {one_line(self.job or '')}", BRIGHT)
        ranks = self.answer.ranks if isinstance(self.answer, JobRanks) else ()
        worst = worst_of(ranks)
        parts = [job, waited_for(ranks), Line(one_line(worst.finding_text) if worst is not None else "", DIM)]
        return line.join_fitting([part for part in parts if part.width], width, " · ")

    def on_row_chosen(self) -> None:
        self.action_command()

    def action_command(self) -> None:
        self.show_command(self.listing.row())

    def action_back(self) -> None:
        if self.view.filter:
            self.change(filter="")
        else:
            self.app.pop_screen()
