"""What the main screen does with stacks: how the code shows, whose it is, a line of it, all stacks, the editor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.ui.code_lines import Place
from aitop.ui.editor import edit
from aitop.ui.messages import LineWanted
from aitop.ui.panes.code import CodePane
from aitop.ui.panes.verdict import shown_verdicts
from aitop.ui.screens.evidence import SourceAround
from aitop.ui.screens.line import LineScreen
from aitop.ui.screens.stacks import StacksScreen
from aitop.ui.view import CodeView, View
from aitop.ui.who import next_part, next_thread

if TYPE_CHECKING:
    from aitop.engine.feed import Feed


class StackActionsScreen(Screen[int]):
    """The part of the main screen that this file's title names. `view`, `_feed` and `_change` are the screen's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "tree", "code: call tree, ←→ fold and unfold, ⏎ the line; and back to hot lines"),
        Binding("f", "flame", "code: flame view, ⏎ zooms in, esc out, o the line; and back to hot lines"),
        Binding("w", "part", "code: of all, of main threads, of workers, of others"),
        Binding("W", "thread", "code: of one process or thread after the other"),
        Binding("S", "stacks", "all stacks of this moment, equal ones together"),
        Binding("e", "edit", "open the line in your editor"),
    ]

    view: View
    _feed: Feed
    _source_around: SourceAround | None
    _zoomed: str | None

    def _change(self, **changes: object) -> None:
        raise NotImplementedError

    def action_tree(self) -> None:
        self._show_code("lines" if self.view.code == "tree" else "tree")

    def action_flame(self) -> None:
        self._show_code("lines" if self.view.code == "flame" else "flame")

    def _show_code(self, how: CodeView) -> None:
        """Show the code so, with the focus on it; where this screen is too small for its pane, in all of it."""
        pane = self.query_one(CodePane)
        pane.top = 0
        if not pane.display:
            self._zoomed = "code"
        self._change(code=how)
        self.set_focus(pane)

    def action_part(self) -> None:
        stacks = self.view.snapshot.stacks if self.view.snapshot else None
        if stacks is not None:
            self._change(who=next_part(stacks, self.view.pids(), self.view.who))

    def action_thread(self) -> None:
        stacks = self.view.snapshot.stacks if self.view.snapshot else None
        if stacks is not None:
            self._change(who=next_thread(stacks, self.view.pids(), self.view.who))

    def action_stacks(self) -> None:
        self.app.push_screen(StacksScreen(self._feed, self.view))

    def on_line_wanted(self, message: LineWanted) -> None:
        self.app.push_screen(LineScreen(self.view, message.place, self._source_around))

    def action_edit(self) -> None:
        """The selected line where the code has the focus, else the one that the verdict points to."""
        place = self._line_at_hand()
        self._change(notice=edit(self.app, place) if place else "there is no line of code to open yet")

    def _line_at_hand(self) -> Place | None:
        pane = self.query_one(CodePane)
        if pane.has_focus:
            return pane.place()
        where = next((one for verdict in shown_verdicts(self.view) for one in verdict.where), None)
        if where is None:
            return pane.place()
        return Place(where.pid, where.file, where.line, where.function, where.share)
