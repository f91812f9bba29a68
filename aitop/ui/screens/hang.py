"""Where every rank stands at this moment, and which of them keeps the others waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from aitop.engine.standstill import standing_at
from aitop.model.stacks import StackDump, ThreadStack
from aitop.stacks.groups import grouped
from aitop.ui.background import in_background
from aitop.ui.panes.hang import StandingPane
from aitop.ui.panes.header import Header
from aitop.ui.panes.stacks import GroupPane
from aitop.ui.screens.moment import MomentScreen
from aitop.ui.view import View

SMALL_ROWS = 14
MOST_NATIVE = 4


@runtime_checkable
class NativeFeed(Protocol):
    """A feed whose processes can be looked at below Python. Stops them for a moment; raises an error in words."""

    def native(self, pids: Sequence[int]) -> dict[int, tuple[str, ...]]: ...


class NativeSeen(Message):
    """The frames below Python by pid, or why there are none."""

    def __init__(self, frames: dict[int, tuple[str, ...]], problem: str = "") -> None:
        super().__init__()
        self.frames = frames
        self.problem = problem


class HangScreen(MomentScreen):
    """Looks when it opens, and again when asked to. A replay shows what was recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "select(-1)", "previous place"),
        Binding("down,j", "select(1)", "next place"),
        Binding("enter", "full", "the whole stack, and back to the list"),
        Binding("pageup,shift+up", "scroll(-8)", "scroll the stack"),
        Binding("pagedown,shift+down", "scroll(8)", "scroll the stack"),
        Binding("h,H,r", "again", "look again"),
        Binding("n", "native", "what these ranks are in below Python; stops them for a moment"),
        Binding("escape,q", "back", "back"),
    ]

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield StandingPane(id="standing", focusable=False)
        yield GroupPane(id="group", focusable=False)

    def show(self, view: View) -> None:
        """Take a newer picture; what the last look showed stays."""
        self.view = view
        self._show()

    def action_native(self) -> None:
        """Look below Python at one rank of each place, off this thread."""
        pane, feed = self.query_one(StandingPane), self._feed
        if not (self.view.live and isinstance(feed, NativeFeed)) or not pane.groups:
            return
        pids = [place.one.pid for place in pane.groups[:MOST_NATIVE]]
        pane.doing = "looking below Python…"
        self._show()

        def work() -> Message:
            try:
                return NativeSeen(feed.native(pids))
            except Exception as error:
                return NativeSeen({}, str(error))

        in_background(self, "native", work)

    def on_native_seen(self, message: NativeSeen) -> None:
        pane = self.query_one(StandingPane)
        pane.native, pane.problem, pane.doing = message.frames, message.problem, ""
        self._show()

    def _begin(self) -> None:
        self.query_one(StandingPane).doing = "looking at every rank…"

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
