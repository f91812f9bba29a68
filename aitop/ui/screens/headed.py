"""The base of screens that cover the main screen, with the same header."""

from __future__ import annotations

import os
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.ui.panes.header import header_line
from aitop.ui.saving import save_screen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.pane import OneLine, Pane

NOTICE_SECONDS = 4.0


class HeadedScreen(Screen[None]):
    """A header with the panes of a subclass below it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "app.help", "this help"),
        Binding("s", "save", "save this screen here as a picture and as text"),
    ]

    def __init__(self, view: View, *panes: Pane) -> None:
        super().__init__()
        self.view = view
        self.header = OneLine(self._first_line, id="header")
        self._panes = panes
        self._notice = ""

    def compose(self) -> ComposeResult:
        yield self.header
        yield from self._panes

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self.show()

    def take(self, view: View) -> None:
        """Take the newest view of the main screen: the header shows it at once, a subclass decides what else does."""
        self.view = view
        if self.is_mounted:
            self.header.show(view)

    def tell(self, notice: str) -> None:
        """Show in the header, for a few seconds, what was just done."""
        self._notice = notice
        self.header.redraw()
        self.set_timer(NOTICE_SECONDS, lambda: self._forget(notice))

    def _forget(self, notice: str) -> None:
        if self._notice == notice:
            self._notice = ""
            self.header.redraw()

    def _first_line(self, view: View, width: int) -> Line:
        return Line(f" {self._notice}", BRIGHT).fit(width) if self._notice else header_line(view, width)

    def action_save(self) -> None:
        snapshot = self.view.snapshot
        self.tell(save_screen(self, snapshot.target.pid if snapshot else os.getpid()))

    def show(self) -> None:
        """Pass the view to every pane. A subclass may first decide which panes there is room for."""
        for pane in self.query(Pane):
            pane.show(self.view)
