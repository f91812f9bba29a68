"""All stacks of one moment, threads that stand in the same place together."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen

from aitop.engine.stack_groups import most_seen, stack_groups
from aitop.model.stacks import StackDump
from aitop.ui.background import in_background
from aitop.ui.code_lines import Place
from aitop.ui.editor import edit
from aitop.ui.panes.header import Header
from aitop.ui.panes.stacks import GroupList, GroupPane
from aitop.ui.view import View

if TYPE_CHECKING:
    from aitop.engine.feed import Feed
    from aitop.ui.screens.evidence import SourceAround


@runtime_checkable
class Dumpable(Protocol):
    """A feed whose target can be looked at. Takes a while, raises an error that says in words why not."""

    def dump(self) -> StackDump: ...


class Dumped(Message):
    """All stacks, or why there are none."""

    def __init__(self, dump: StackDump | None, error: BaseException | None = None) -> None:
        super().__init__()
        self.dump = dump
        self.error = error


class StacksScreen(Screen[None]):
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

    def __init__(self, feed: Feed, view: View, source_around: SourceAround | None = None) -> None:
        super().__init__()
        self._feed = feed
        self._full = False
        self.view = view

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield GroupList(id="groups", focusable=False)
        yield GroupPane(id="group", focusable=False)

    def on_mount(self) -> None:
        self.action_again()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def on_dumped(self, message: Dumped) -> None:
        if message.dump is not None:
            self._take(message.dump, "of this moment")
        else:
            self._take_recorded(str(message.error))

    def action_again(self) -> None:
        """Look, off this thread."""
        feed = self._feed
        if not (self.view.live and isinstance(feed, Dumpable)):
            self._take_recorded("" if not self.view.live else "this run cannot be looked at")
            return
        self.query_one(GroupList).doing = "looking at every thread…"
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
            ago = f"{max(0.0, snapshot.time - snapshot.dump.time):.0f} s ago"
            self._take(snapshot.dump, f"recorded {ago}" if not self.view.live else ago, problem)
        elif snapshot is not None and snapshot.stacks is not None:
            seconds = snapshot.stacks.seconds
            self._take(most_seen(snapshot.stacks, snapshot.time), f"most seen in {seconds:.0f} s", problem)
        else:
            self._take(None, "", problem or "the recording has no stacks up to here")

    def _take(self, dump: StackDump | None, when: str, problem: str = "") -> None:
        listing = self.query_one(GroupList)
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
