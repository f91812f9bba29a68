"""The ranks of one job over all its nodes, and the one that the others wait for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from statistics import median
from typing import ClassVar

from textual.binding import Binding, BindingType

from aitop.model.fleet import (
    Fleet,
    FleetRank,
    JobRanks,
    by_lateness,
    command_for,
    straggler_of,
)
from aitop.model.units import duration, percent
from aitop.ui.screens.fleet.jobs import FINDING, finding_text, place_text
from aitop.ui.screens.fleet.table import ASK_SECONDS, Cluster, TablePane, TableScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRAND, BRIGHT, COMMUNICATION, DIM, FAINT, LOSS
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.table import Column
from aitop.ui.words import one_line, plural, tight_percent

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
    """Who keeps the others waiting, in a sentence."""
    stalled, late = [rank for rank in ranks if rank.stalled], straggler_of(ranks)
    if stalled:
        return Line(f"{plural(len(stalled), 'rank')} of {len(ranks)} stalled", LOSS)
    if late is not None:
        waits = median(rank.wait for rank in ranks if rank is not late and rank.wait is not None)
        return Line(f"The others wait {percent(waits)} of a step for {rank_words(late)}", LOSS)
    if any(rank.wait is not None for rank in ranks):
        return Line("no rank keeps the others waiting", DIM)
    return Line("whether a rank keeps the others waiting is not measured" if len(ranks) > 1 else "", DIM)


def rank_words(rank: FleetRank) -> str:
    """rank 3 on node017, as far as both are known."""
    number = "a rank" if rank.rank is None else f"rank {rank.rank}"
    return f"{number} on {one_line(rank.node)}" if rank.node else number


class RanksPane(TablePane[FleetRank]):
    """A row a rank: stalled ones first, then the one that waits least for the others."""

    name_of_rows = "Ranks"
    none = "Prometheus knows of no rank of this job any more"
    table = RANKS
    default_order = "who waits least comes first"

    def key_of(self, row: FleetRank) -> Hashable:
        return row.node, row.rank, row.pid

    def texts(self, row: FleetRank) -> Sequence[str | None]:
        return (row.node, str(row.rank), finding_text(row), place_text(row))

    def foot(self, row: FleetRank, width: int) -> list[Line]:
        command = command_for(row)
        line = (
            Line(command, BRIGHT).add("   c copies it", DIM) if command else Line("its node or pid is not known", FAINT)
        )
        return [line]


class RanksScreen(TableScreen):
    """One job: its verdict, who its ranks wait for, and a row a rank."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "command", "the command that opens aitop on this job or rank; it is copied as well"),
        Binding("escape,q", "back", "back: out of the filter, then out of this job"),
    ]
    keys = (("c", "ssh command"), ("/", "filter"), ("< >", "sort"), ("r", "ask again"), ("?", "help"), ("esc", "back"))
    listing: RanksPane

    def __init__(
        self, cluster: Cluster, view: View, job: str, every: float = ASK_SECONDS, finding: str | None = None
    ) -> None:
        super().__init__(cluster, every, View(look=view.look), RanksPane(id="ranks"))
        self._job = job
        self._finding = finding

    def job(self) -> str | None:
        return self._job

    def took(self, answer: Fleet | JobRanks) -> None:
        if isinstance(answer, JobRanks):
            self.listing.entries = by_lateness(answer.ranks)

    def summary(self, width: int) -> Line:
        line = Line(" aitop ", BRAND).add("  ")
        job = Line(f"job {one_line(self._job)}", BRIGHT)
        ranks = self.answer.ranks if isinstance(self.answer, JobRanks) else ()
        parts = [job, waited_for(ranks), Line(self._finding or "", DIM)]
        return line.join_fitting([part for part in parts if part.width], width, " · ")

    def chose(self, row: FleetRank) -> None:
        self.action_command()

    def action_command(self) -> None:
        self.show_command(self.listing.row())

    def action_back(self) -> None:
        if self.view.filter:
            self.change(filter="")
        else:
            self.app.pop_screen()
