"""A screen that covers the main one, under the same header."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.screen import Screen

from aitop.ui.panes.header import Header
from aitop.ui.state import View
from aitop.ui.widgets.pane import Pane


class HeadedScreen(Screen[None]):
    """The header, and the panes of a subclass below it."""

    def __init__(self, view: View, *panes: Pane) -> None:
        super().__init__()
        self.view = view
        self._panes = panes

    def compose(self) -> ComposeResult:
        yield Header(id="header")
        yield from self._panes

    def show_all(self) -> None:
        """Hand the view to every pane."""
        for pane in self.query(Pane):
            pane.show(self.view)
