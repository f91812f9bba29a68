"""This run beside the last one of the same script: the change, what makes it, and which settings differ."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.diagnosis.comparison_words import comparison_text
from aitop.ui.panes.header import Header
from aitop.ui.panes.since_mark import OUTCOMES
from aitop.ui.state import View
from aitop.ui.theme.palette import DIM, TEXT
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.pane import Drawing, Pane


class ComparisonPane(Pane):
    """The comparison as `aitop compare` prints it."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        if view.compared is None:
            return Drawing()
        first, *others = comparison_text(view.compared).splitlines()
        lines = [Line(first, OUTCOMES[view.compared.change.verdict]), *(Line(line, TEXT) for line in others)]
        return Drawing(lines, f"Compared with {view.compared.before.file}", Line("↑↓ scroll · esc back", DIM))


class ComparisonScreen(Screen[None]):
    """Opens over the main screen, and shows the comparison as it is then."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,b,backspace", "dismiss", "back")]

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield ComparisonPane(id="comparison")

    def on_mount(self) -> None:
        self.query_one(Header).show(self.view)
        pane = self.query_one(ComparisonPane)
        pane.show(self.view)
        pane.focus()
