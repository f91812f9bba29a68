"""All stacks of one moment, threads that stand in the same place together."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from aitop.model.stacks import StackDump
from aitop.stacks.groups import stack_groups
from aitop.ui.code_lines import Place
from aitop.ui.editor import edit
from aitop.ui.panes.header import Header
from aitop.ui.panes.stacks import GroupList, GroupPane
from aitop.ui.screens.moment import MomentScreen


class StacksScreen(MomentScreen):
    """Looks when it opens, and again when asked to. A replay shows what was recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous group"),
        Binding("down,j", "select(1)", "next group"),
        Binding("enter", "full", "the whole stack, and back to the list"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the stack"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the stack"),
        Binding("S,r", "again", "look again"),
        Binding("e", "edit", "open the line in your editor"),
        Binding("escape,q", "back", "back"),
    ]

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield GroupList(id="groups", focusable=False)
        yield GroupPane(id="group", focusable=False)

    def _begin(self) -> None:
        self.query_one(GroupList).doing = "looking at every thread…"

    def _take(self, dump: StackDump | None, when: str, problem: str = "") -> None:
        listing = self.query_one(GroupList)
        if dump is None:
            problem = problem or "the recording has no stacks up to here"
        listing.groups = stack_groups(dump) if dump is not None else ()
        listing.refused = dump.refused if dump is not None else ()
        listing.doing, listing.problem, listing.when = "", problem, when
        self.action_select(0)

    def action_select(self, by: int) -> None:
        listing, pane = self.query_one(GroupList), self.query_one(GroupPane)
        listing.selected = max(0, min(len(listing.groups) - 1, listing.selected + by))
        pane.group = listing.groups[listing.selected] if listing.groups else None
        if by:
            pane.top = 0
        self._show()

    def action_edit(self) -> None:
        listing = self.query_one(GroupList)
        group = self.query_one(GroupPane).group
        if group is not None:
            place = group.place
            listing.problem = edit(self.app, Place(group.members[0].pid, place.file, place.line, place.function))
            self._show()

    def _show(self) -> None:
        listing, pane, header = self.query_one(GroupList), self.query_one(GroupPane), self.query_one(Header)
        small = self.size.height < 12
        header.display = not small
        listing.display = not self._full
        pane.display = self._full or (bool(listing.groups) and not small)
        rows = len(listing.groups) + len(listing.notes())
        listing.styles.height = max(3, min(rows + 2, self.size.height * 2 // 5)) if pane.display else "1fr"
        for one in (header, listing, pane):
            one.show(self.view)
