"""Choose one of the AI jobs on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aitop.model.candidate import Candidate
from aitop.ui.background import in_background
from aitop.ui.line import Line
from aitop.ui.messages import CandidatesFound
from aitop.ui.palette import BRAND, DIM, KEY
from aitop.ui.panes.candidates import CandidatesPane
from aitop.ui.screens.help import HelpScreen, our_bindings
from aitop.ui.view import View
from aitop.ui.widgets.pane import Drawing, Pane

REFRESH_SECONDS = 3.0


class Top(Pane):
    """The picker's first line."""

    framed = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        return Drawing([Line(" aitop ", BRAND).add("  which one?", DIM)])


class Hint(Pane):
    """The picker's last line."""

    framed = False

    def draw(self, view: View, width: int, height: int) -> Drawing:
        line = Line(" ")
        for key, word in (("↑↓", "choose"), ("⏎", "monitor"), ("r", "look again"), ("?", "help"), ("q", "quit")):
            line.add(key, KEY).add(f" {word}  ", DIM)
        return Drawing([line])


class PickerScreen(Screen[int]):
    """A row a job; launcher, ranks and workers are one job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "previous job"),
        Binding("down,j", "move(1)", "next job"),
        Binding("enter", "choose", "monitor the marked job"),
        Binding("r", "find", "look again"),
        Binding("question_mark", "help", "this help"),
        Binding("q,escape", "leave", "quit"),
    ]

    def __init__(self, find: Callable[[], list[Candidate]], view: View) -> None:
        super().__init__()
        self._find = find
        self._finding = False
        self._chosen: int | None = None
        self._candidates: list[Candidate] = []
        self.view = view

    def compose(self) -> ComposeResult:
        yield Top(id="header", focusable=False)
        yield CandidatesPane(id="candidates", focusable=False)
        yield Hint(id="hint", focusable=False)

    def on_mount(self) -> None:
        for pane in self.query(Pane):
            pane.show(self.view)
        self.action_find()
        self.set_interval(REFRESH_SECONDS, self.action_find)

    def on_candidates_found(self, message: CandidatesFound) -> None:
        self._finding = False
        self._candidates = message.candidates
        pane = self.query_one(CandidatesPane)
        pane.searched = True
        pane.problem = str(message.error) if message.error else None
        self._refresh()

    def action_find(self) -> None:
        """Look for jobs, unless that is going on already."""
        if self._finding:
            return
        self._finding = True

        def work() -> Message:
            try:
                return CandidatesFound(self._find())
            except Exception as error:
                return CandidatesFound([], error)

        in_background(self, "find", work)

    def action_move(self, by: int) -> None:
        if self._candidates:
            at = max(0, min(len(self._candidates) - 1, self._position() + by))
            self._chosen = self._candidates[at].pid
            self._refresh()

    def action_choose(self) -> None:
        if self._candidates:
            self.app.exit(self._candidates[self._position()].pid)

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(our_bindings(self), self.view))

    def action_leave(self) -> None:
        self.app.exit()

    def _position(self) -> int:
        pids = [candidate.pid for candidate in self._candidates]
        return pids.index(self._chosen) if self._chosen in pids else 0

    def _refresh(self) -> None:
        pane = self.query_one(CandidatesPane)
        pane.candidates, pane.selected = self._candidates, self._position()
        pane.show(self.view)
