"""The jobs of a cluster by what they waste."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType

from aitop.model.fleet import Attempt, Fleet, FleetJob, FleetRank, JobRanks, by_waste, worst_of
from aitop.model.units import factor, period
from aitop.ui.messages import Failed, in_background
from aitop.ui.screens.fleet.table import Cluster, TablePane, TableScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRAND, BRIGHT, DIM, FAINT, GAIN, LOSS, TEXT
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.table import Column
from aitop.ui.words import one_line, plural, tight_percent

SEVERITIES: dict[str, Style] = {"critical": LOSS, "warning": TEXT, "info": DIM}


def hours(device_hours: float) -> str:
    """Device-hours: 0.42, 4.2, 420, 1,234."""
    return f"{device_hours:,.{2 if device_hours < 1 else 1 if device_hours < 100 else 0}f}"


def nodes_text(job: FleetJob) -> str | None:
    """The first node, and how many there are besides it; None where no node is known."""
    more = len(job.nodes) - 1
    return one_line(job.nodes[0]) + (f" +{more}" if more else "") if job.nodes else None


def finding_text(row: FleetJob | FleetRank) -> str | None:
    """That it is stalled, or the first verdict with its subtype."""
    if row.stalled:
        return f"STALLED {row.stalled} of {row.ranks}" if isinstance(row, FleetJob) else "STALLED"
    if isinstance(row, FleetRank) and not row.watched:
        return "not permitted"
    return one_line(row.finding.name) if row.finding is not None else None


def finding_style(row: FleetJob | FleetRank) -> Style:
    """Red for what stands still and for critical verdicts."""
    if row.stalled:
        return LOSS
    return SEVERITIES[row.finding.severity] if row.finding is not None else FAINT


def place_text(row: FleetJob | FleetRank) -> str | None:
    """The line of the user's that the first verdict points to, None where it points to none."""
    return one_line(row.finding.place) or None if row.finding is not None else None


def gain_of(row: FleetJob | FleetRank) -> float | None:
    """The factor in units per second without the cause of the first verdict."""
    return row.finding.speedup if row.finding is not None else None


def gain_style(row: FleetJob | FleetRank) -> Style:
    """Green for what is gained."""
    return GAIN if (gain_of(row) or 0.0) > 1.0 else FAINT


FINDING = (
    Column("verdict", 18, 0, finding_text, style=finding_style, right=False, most=34),
    Column("line", 14, 3, place_text, right=False, most=32),
    Column("gain", 5, 4, gain_of, factor, gain_style),
)
"""What the first verdict says, of a job as of a rank."""
JOBS = (
    Column("job", 12, 1, lambda job: one_line(job.job), style=lambda _: BRIGHT, right=False, most=40),
    Column("user", 8, 8, lambda job: one_line(job.user or "") or None, style=lambda _: DIM, right=False, most=16),
    Column("nodes", 10, 7, nodes_text, style=lambda _: DIM, right=False, most=32),
    Column("ranks", 5, 5, lambda job: job.ranks, "{:,}".format),
    Column("wasted", 7, 2, lambda job: job.wasted, hours, lambda _: BRIGHT),
    Column("now", 4, 6, lambda job: job.lost, tight_percent),
    *FINDING,
)


class JobsPane(TablePane[FleetJob]):
    """A row a job: stalled ones first, then those that wasted most."""

    name_of_rows = "Jobs"
    table = JOBS

    def key_of(self, row: FleetJob) -> Hashable:
        return row.job

    def texts(self, row: FleetJob) -> Sequence[str | None]:
        return (
            row.job,
            row.user,
            finding_text(row),
            row.finding.name if row.finding else None,
            place_text(row),
            *row.nodes,
        )


class FleetScreen(TableScreen):
    """All jobs that Prometheus knows of."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "the job's ranks over all its nodes, with the straggler"),
        Binding("escape", "back", "back: out of the filter"),
        Binding("q,f10", "leave", "quit"),
    ]
    keys = (
        ("⏎", "ranks"),
        ("c", "ssh command"),
        ("/", "filter"),
        ("< >", "sort"),
        ("r", "ask again"),
        ("?", "help"),
        ("q", "quit"),
    )
    listing: JobsPane

    def __init__(self, cluster: Cluster, every: float, view: View) -> None:
        super().__init__(cluster, every, view, JobsPane(id="jobs"))

    def took(self, answer: Fleet | JobRanks) -> None:
        if isinstance(answer, Fleet):
            self.listing.entries = by_waste(answer.jobs)
            self.listing.none = f"no AI job runs on {plural(answer.watching, 'node')} that aitop watches"
            measured = answer.wasted is not None
            then = "device-hours wasted" if measured else "the share of the first verdict"
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

    def chose(self, row: FleetJob) -> None:
        from aitop.ui.screens.fleet.ranks import RanksScreen  # noqa: PLC0415 - many look at the jobs only

        self.app.push_screen(RanksScreen(self.cluster, self.view, row.job, self.every, finding_text(row)))

    def action_command(self) -> None:
        """The command for the job's worst rank: its ranks are asked for first."""
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

    def action_leave(self) -> None:
        self.app.exit()
