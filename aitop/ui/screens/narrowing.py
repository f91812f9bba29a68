"""What narrows the main screen: the chosen process, the filter; and panes folded or full screen, by key and mouse."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from aitop.ui.folding import refit
from aitop.ui.layout import Plan
from aitop.ui.panes.filter_line import Filtered, FilterLine
from aitop.ui.panes.processes import ProcessChosen
from aitop.ui.view import View
from aitop.ui.widgets.pane import Pane

UNFOLDABLE = frozenset({"header", "banner", "footer", "filter"})


class NarrowingScreen(Screen[int]):
    """The part of the main screen that this file's title names. `view`, `_zoomed` and `_change` are the screen's."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("T", "processes", "the job's processes as a tree: ⏎ narrows every pane to one"),
        Binding("f5", "processes", "the job's processes as a tree: ⏎ narrows every pane to one"),
        Binding("less_than_sign", "none", "sort the process tree by another column"),
        Binding("greater_than_sign", "none", "sort the process tree by another column"),
        Binding("I", "none", "turn that order round"),
        Binding("slash", "filter", "filter processes and code by text"),
        Binding("f4", "filter", "filter processes and code by text"),
        Binding("minus", "fold", "fold the focused pane to its title, and back"),
    ]

    view: View
    _zoomed: str | None
    _typing = False
    _folded: frozenset[str] = frozenset()
    _focused_before: str | None = None

    def _change(self, **changes: object) -> None:
        raise NotImplementedError

    # The process tree

    def action_processes(self) -> None:
        """Full screen, and back to what was there."""
        if self._zoomed == "processes":
            self._leave_zoom()
            return
        self._focused_before = self.focused.id if isinstance(self.focused, Pane) else None
        self._zoomed = "processes"
        self._change()
        self.set_focus(self.query_one("#processes"))

    def on_process_chosen(self, message: ProcessChosen) -> None:
        """Narrow to it; what was chosen already is let go."""
        chosen = None if self.view.chosen == message.pid else message.pid
        if not message.stay and self._zoomed == "processes":
            self._leave_zoom()
        self._change(chosen=chosen, rank=None)

    def _leave_zoom(self) -> None:
        self._zoomed = None
        self._change()
        before = self.query(f"#{self._focused_before}") if self._focused_before else None
        if before and before.first().display:
            self.set_focus(before.first())
        self._focused_before = None

    def on_descendant_focus(self) -> None:
        """Some keys mean something else in another pane."""
        self.query_one("#footer", Pane).redraw()

    # The filter

    def action_filter(self) -> None:
        """Take what is typed next as the filter."""
        self._focused_before = self.focused.id if isinstance(self.focused, Pane) else self._focused_before
        self._typing = True
        line = self.query_one(FilterLine)
        line.typed = self.view.filter
        self._change()
        if line.display:
            self.set_focus(line)
        else:
            self._typing = False

    def on_filtered(self, message: Filtered) -> None:
        if not message.done:
            self._change(filter=message.text)
        elif self._typing:
            self._typing = False
            before = self._focused_before
            self._change(filter=message.text.strip())
            if before is not None and self.query_one(f"#{before}").display:
                self.set_focus(self.query_one(f"#{before}"))

    # Folding and zooming

    def action_fold(self) -> None:
        if isinstance(self.focused, Pane):
            self.action_fold_pane(self.focused.id or "")

    def action_fold_pane(self, name: str) -> None:
        """Fold a pane to its title or open it; one that has the whole screen gives that back."""
        if self._zoomed is not None:
            self._leave_zoom()
        elif name not in UNFOLDABLE:
            self._folded ^= {name}
            self._change()

    def action_zoom_pane(self, name: str) -> None:
        """A pane full screen, and back; a folded one opens."""
        if self._zoomed is not None:
            self._leave_zoom()
        elif name in self._folded:
            self.action_fold_pane(name)
        elif name not in UNFOLDABLE:
            self._zoomed = name
            self._change()
            self.set_focus(self.query_one(f"#{name}"))

    def _refitted(self, wanted: Plan) -> Plan:
        """The plan with folded panes folded, and the filter in the place of the footer while it is typed."""
        if self._zoomed is None:
            wanted = refit(wanted, self._folded)
        if self._typing and "footer" in wanted:
            wanted = {("filter" if name == "footer" else name): box for name, box in wanted.items()}
        return wanted

    def _step_back(self) -> bool:
        """Undo the innermost narrowing; False where there is none."""
        if self.view.filter:
            self._change(filter="")
        elif self._zoomed is not None:
            self._leave_zoom()
        elif self.view.chosen is not None:
            self._change(chosen=None)
        elif self.view.rank is not None:
            self._change(rank=None)
        else:
            return False
        return True

    def _forget_the_dead(self) -> None:
        """A chosen process that has ended leaves nothing to narrow to."""
        host, chosen = self.view.snapshot.host if self.view.snapshot else None, self.view.chosen
        if chosen is not None and host is not None and all(one.pid != chosen for one in host.processes):
            self._change(chosen=None, notice=f"process {chosen} has ended: all are shown again")
