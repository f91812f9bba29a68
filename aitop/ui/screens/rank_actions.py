"""What the main screen does with the ranks of a job: enter one, and see where all of them stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.ui.panes.ranks import RankChosen
from aitop.ui.screens.evidence import SourceAround
from aitop.ui.screens.hang import HangScreen
from aitop.ui.view import View

if TYPE_CHECKING:
    from aitop.engine.feed import Feed


class RankActionsScreen(Screen[int]):
    """The part of the main screen that this file's title names. `view`, `_feed` and `_change` are the screen's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,H", "hang", "where every rank stands at this moment, and which one keeps the others waiting"),
    ]

    view: View
    _feed: Feed
    _source_around: SourceAround | None

    def _change(self, **changes: object) -> None:
        raise NotImplementedError

    def action_hang(self) -> None:
        self.app.push_screen(HangScreen(self._feed, self.view))

    def on_rank_chosen(self, message: RankChosen) -> None:
        """Narrow to it; what was chosen already is let go."""
        self._change(rank=None if self.view.rank == message.rank else message.rank, chosen=None)
