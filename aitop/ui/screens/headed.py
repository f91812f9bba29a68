"""The base of screens that cover the main screen, with the same header."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen

from aitop.ui.panes.header import header_line
from aitop.ui.state import View
from aitop.ui.widgets.pane import OneLine, Pane


class HeadedScreen(Screen[None]):
    """A header with the panes of a subclass below it."""

    def __init__(self, view: View, *panes: Pane) -> None:
        super().__init__()
        self.view = view
        self.header = OneLine(header_line, id="header")
        self._panes = panes

    def compose(self) -> ComposeResult:
        yield self.header
        yield from self._panes

    def on_mount(self) -> None:
        self.show()

    def on_resize(self) -> None:
        self.show()

    def show(self) -> None:
        """Pass the view to every pane. A subclass may first decide which panes there is room for."""
        for pane in self.query(Pane):
            pane.show(self.view)
