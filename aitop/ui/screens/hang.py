"""Where every rank stands at this moment, and which of them keeps the others waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aitop.engine.stack_groups import grouped, most_seen
from aitop.engine.standstill import standing_at
from aitop.model.stacks import StackDump, ThreadStack
from aitop.ui.background import in_background
from aitop.ui.panes.hang import StandingPane
from aitop.ui.panes.header import Header
from aitop.ui.panes.stacks import GroupPane
from aitop.ui.screens.stacks import Dumpable, Dumped
from aitop.ui.view import View

if TYPE_CHECKING:
    from aitop.engine.feed import Feed

SMALL_ROWS = 14


class HangScreen(Screen[None]):
    """Looks when it opens, and again when asked to. A replay shows what was recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous place"),
        Binding("down,j", "select(1)", "next place"),
        Binding("enter", "full", "the whole stack, and back to the list"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the stack"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the stack"),
        Binding("h,H,r", "again", "look again"),
        Binding("escape,q", "back", "back"),
    ]

    def __init__(self, feed: Feed, view: View) -> None:
        super().__init__()
        self._feed = feed
        self._full = False
        self.view = view

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield StandingPane(id="standing", focusable=False)
        yield GroupPane(id="group", focusable=False)

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def show(self, view: View) -> None:
        """Take a newer picture; what the last look showed stays."""
        self.view = view
        self._show()

    def on_dumped(self, message: Dumped) -> None:
        if message.dump is not None:
            self._take(message.dump, "as of now")
        else:
            self._take_recorded(str(message.error))

    def action_again(self) -> None:
        """Look, off this thread."""
        feed = self._feed
        if not (self.view.live and isinstance(feed, Dumpable)):
            self._take_recorded("" if not self.view.live else "this run cannot be looked at")
            return
        self.query_one(StandingPane).doing = "looking at every rank…"
        self._show()

        def work() -> Message:
            try:
                return Dumped(feed.dump())
            except Exception as error:
                return Dumped(None, error)

        in_background(self, "dump", work)

    def _take_recorded(self, problem: str) -> None:
        """What was seen before, where there is no look at this moment."""
        snapshot = self.view.snapshot
        if snapshot is not None and snapshot.dump is not None:
            self._take(snapshot.dump, f"{max(0.0, snapshot.time - snapshot.dump.time):.0f} s ago", problem)
        elif snapshot is not None and snapshot.stacks is not None:
            self._take(most_seen(snapshot.stacks, snapshot.time), "most seen", problem)
        else:
            self._take(None, "", problem)

    def _take(self, dump: StackDump | None, when: str, problem: str = "") -> None:
        pane, snapshot = self.query_one(StandingPane), self.view.snapshot
        nothing = StackDump(time=0.0, frames=(), threads=())
        pane.take(standing_at(snapshot, dump or nothing) if snapshot is not None else None)
        refused = [f"no stack of {pid}: {why}" for pid, why in dump.refused] if dump else []
        pane.doing, pane.problem, pane.when = "", problem or "; ".join(refused), when
        self.action_select(0)

    def action_select(self, by: int) -> None:
        pane, stack = self.query_one(StandingPane), self.query_one(GroupPane)
        pane.selected = max(0, min(len(pane.groups) - 1, pane.selected + by))
        place = pane.groups[pane.selected] if pane.groups else None
        stack.group = None
        if place is not None and place.frames:
            members = [ThreadStack(pid=one.pid, thread="MainThread", main=True, frames=()) for one in place.members]
            stack.group = grouped(place.frames, members)
        if by:
            stack.top = 0
        self._show()

    def action_scroll(self, by: int) -> None:
        self.query_one(GroupPane).action_scroll_by(by)

    def action_full(self) -> None:
        self._full = not self._full and self.query_one(GroupPane).group is not None
        self._show()

    def action_back(self) -> None:
        if self._full:
            self.action_full()
        else:
            self.dismiss()

    def _show(self) -> None:
        pane, stack, header = self.query_one(StandingPane), self.query_one(GroupPane), self.query_one(Header)
        small = self.size.height < SMALL_ROWS
        header.display = not small
        pane.display = not self._full
        stack.display = self._full or (stack.group is not None and not small)
        rows = len(pane.groups) + len(pane.told(self.view, max(20, self.size.width - 4))) + 2
        pane.styles.height = max(4, min(rows, self.size.height * 3 // 5)) if stack.display else "1fr"
        for one in (header, pane, stack):
            one.show(self.view)
