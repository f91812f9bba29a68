"""One line of code: what runs it, how it is reached, its source, and the verdicts that point to it."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.ui.background import in_background
from aitop.ui.code_lines import Place
from aitop.ui.editor import edit
from aitop.ui.messages import SourceRead
from aitop.ui.panes.evidence import Excerpt
from aitop.ui.panes.header import Header
from aitop.ui.panes.line import LinePane
from aitop.ui.screens.evidence import SourceAround, read_source
from aitop.ui.view import View


class LineScreen(Screen[None]):
    """Opens over the main screen for one place."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "edit", "open the line in your editor"),
        Binding("escape,enter,q,o,backspace", "dismiss", "back"),
    ]

    def __init__(self, view: View, place: Place, source_around: SourceAround | None) -> None:
        super().__init__()
        self.view = view
        self._place = place
        self._source_around = source_around

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield LinePane(self._place, id="line")

    def on_mount(self) -> None:
        pane = self.query_one(LinePane)
        if self._source_around is not None:
            pane.excerpt = Excerpt(None, reading=True)
            place = self._place
            in_background(
                self, "source", partial(read_source, self._source_around, place.pid, (place.file, place.line))
            )
        self.query_one(Header).show(self.view)
        pane.show(self.view)
        pane.focus()

    def on_source_read(self, message: SourceRead) -> None:
        pane = self.query_one(LinePane)
        pane.excerpt = Excerpt(message.lines)
        pane.redraw()

    def action_edit(self) -> None:
        pane = self.query_one(LinePane)
        pane.notice = edit(self.app, self._place)
        pane.redraw()
