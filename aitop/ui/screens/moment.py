"""A screen on all stacks of one moment: looked at off its thread, or what a recording or the samples have of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from textual import events
from textual.message import Message
from textual.screen import Screen

from aitop.model.stacks import StackDump
from aitop.stacks.groups import most_seen
from aitop.ui.background import in_background
from aitop.ui.panes.stacks import GroupPane
from aitop.ui.view import View

if TYPE_CHECKING:
    from aitop.engine.feed import Feed


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


class MomentScreen(Screen[None]):
    """What screens on a moment share: the look, what stands in for it, and the stack of the chosen group."""

    def __init__(self, feed: Feed, view: View) -> None:
        super().__init__()
        self._feed = feed
        self._full = False
        self.view = view

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
        self._begin()
        self._show()

        def work() -> Message:
            try:
                return Dumped(feed.dump())
            except Exception as error:
                return Dumped(None, error)

        in_background(self, "dump", work)

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
            self._take(None, "", problem)

    def _begin(self) -> None:
        """Say that a look is under way."""
        raise NotImplementedError

    def _take(self, dump: StackDump | None, when: str, problem: str = "") -> None:
        """Show these stacks, or why there are none."""
        raise NotImplementedError

    def _show(self) -> None:
        """Draw what there is."""
        raise NotImplementedError
