"""The main screen: holds the feed and the newest picture, and hands views down to the panes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from aitop.model.snapshot import Snapshot
from aitop.model.text import printable
from aitop.ui.background import deliver, in_background
from aitop.ui.editor import is_lent
from aitop.ui.layout import Plan, plan
from aitop.ui.messages import Detached, FeedFailed, SnapshotArrived
from aitop.ui.panes.code import CodePane
from aitop.ui.panes.data import DataPane
from aitop.ui.panes.filter_line import FilterLine
from aitop.ui.panes.footer import Footer
from aitop.ui.panes.gpu import GpuPane
from aitop.ui.panes.header import Banner, Header
from aitop.ui.panes.memory import MemoryPane
from aitop.ui.panes.processes import ProcessPane
from aitop.ui.panes.ranks import RankPane
from aitop.ui.panes.step import StepPane
from aitop.ui.panes.verdict import VerdictPane
from aitop.ui.screens.evidence import EvidenceScreen, SourceAround
from aitop.ui.screens.help import HelpScreen, our_bindings
from aitop.ui.screens.narrowing import NarrowingScreen
from aitop.ui.screens.profile import Profilable, ProfileScreen
from aitop.ui.screens.rank_actions import RankActionsScreen
from aitop.ui.screens.session import SessionScreen
from aitop.ui.screens.stack_actions import StackActionsScreen
from aitop.ui.view import View
from aitop.ui.widgets.pane import Pane

if TYPE_CHECKING:
    from aitop.engine.feed import Feed

FOCUSABLE = ("verdict", "step", "gpu", "data", "memory", "ranks", "code", "processes")


@runtime_checkable
class Detachable(Protocol):
    """A feed that can take the hook out and go on without it."""

    def detach(self) -> None: ...


@runtime_checkable
class Pausable(Protocol):
    """A feed that can hold still: a replay."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class MonitorScreen(SessionScreen, NarrowingScreen, StackActionsScreen, RankActionsScreen):
    """Verdict, step, GPU, data, memory, code and processes, live."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "this help"),
        Binding("f1", "help", "this help"),
        Binding("enter", "why", "why: evidence, source and fixes of every verdict"),
        Binding("z", "zoom", "zoom the focused pane, and back"),
        Binding("tab", "app.focus_next", "next pane"),
        Binding("shift+tab", "app.focus_previous", "previous pane"),
        Binding("up", "none", "scroll the focused pane"),
        Binding("down", "none", "scroll the focused pane"),
        Binding("left", "none", "read the focused pane's charts at a cursor"),
        Binding("right", "none", "read the focused pane's charts at a cursor"),
        Binding("space", "pause", "hold the picture still, and go on"),
        *[Binding(str(number), f"rank({number})", "show one rank only") for number in range(1, 10)],
        Binding("0", "rank(0)", "show all ranks"),
        Binding("p", "profile", "profile 5 steps with torch.profiler"),
        Binding("d", "detach", "take the hook out of the target and go on without it"),
        Binding("escape", "back", "back: out of filter, zoom, process, rank or pause"),
        Binding("q", "leave", "quit"),
        Binding("f10", "leave", "quit"),
    ]

    def __init__(self, feed: Feed, view: View, source_around: SourceAround | None = None) -> None:
        super().__init__()
        self._feed = feed
        self._source_around = source_around
        self._newest: Snapshot | None = None
        self._zoomed: str | None = None
        self._plan: Plan = {}
        self._most = 0
        self.view = replace(view, live=feed.live, can_detach=isinstance(feed, Detachable) and feed.live)

    def compose(self) -> ComposeResult:
        yield Header(id="header", focusable=False)
        yield Banner(id="banner", focusable=False)
        yield VerdictPane(id="verdict")
        yield StepPane(id="step")
        yield GpuPane(id="gpu")
        yield DataPane(id="data")
        yield MemoryPane(id="memory")
        yield RankPane(id="ranks")
        yield CodePane(id="code")
        yield ProcessPane(id="processes")
        yield Footer(id="footer", focusable=False)
        yield FilterLine(id="filter")

    def on_mount(self) -> None:
        self._arrange()
        self._show()

        def publish(snapshot: Snapshot) -> None:
            if not is_lent():
                deliver(self, SnapshotArrived(snapshot))

        def start() -> Message | None:
            try:
                self._feed.start(publish)
            except Exception as error:
                return FeedFailed(error)
            return None

        # What the feed imports would stand in the way of the first frame.
        self.call_after_refresh(lambda: in_background(self, "start", start))

    # What comes in

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        self._newest = message.snapshot
        if self._link_is_behind():
            return
        # A replay that is held gives only what it was asked for.
        if not self.view.paused or not self.view.live:
            self._change(snapshot=message.snapshot, **self._at_tick())
            self._forget_the_dead()

    def on_detached(self, message: Detached) -> None:
        if message.error is None:
            self._change(notice="the hook is out of the target", can_detach=False)
        else:
            self._change(notice=f"could not detach: {printable(str(message.error))}")

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()
        self._show()

    def on_screen_resume(self) -> None:
        self._show()

    # What the user wants

    def action_none(self) -> None:
        """Scrolling and reading charts happen in the panes; here they are only described."""

    def action_leave(self) -> None:
        self.app.exit()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(our_bindings(self), self.view))

    def action_why(self) -> None:
        self.app.push_screen(EvidenceScreen(self.view, self._source_around))

    def action_profile(self) -> None:
        if self.view.live and isinstance(self._feed, Profilable):
            self.app.push_screen(ProfileScreen(self._feed, self.view))
        else:
            self._change(notice="only a live run can be profiled")

    def action_pause(self) -> None:
        if self.view.paused:
            self._hold(False)
            self._change(paused=False, snapshot=self._newest)
        else:
            self._hold(True)
            self._change(paused=True)

    def action_zoom(self) -> None:
        if self._zoomed is None:
            focused = self.focused.id if isinstance(self.focused, Pane) else None
            self._zoomed = focused if focused in FOCUSABLE else "verdict"
        else:
            self._zoomed = None
        self._change()

    def action_rank(self, number: int) -> None:
        ranks = self.view.ranks()
        if number == 0:
            self._change(rank=None, chosen=None)
        elif len(ranks) > 1 and number <= len(ranks):
            wanted = ranks[number - 1]
            self._change(rank=None if self.view.rank == wanted else wanted, chosen=None)

    def action_back(self) -> None:
        if not self._step_back() and self.view.paused:
            self.action_pause()

    def action_detach(self) -> None:
        feed = self._feed
        if not self.view.can_detach or not isinstance(feed, Detachable):
            self._change(notice="there is no hook to take out")
            return
        self._change(notice="taking the hook out…")

        def work() -> Message:
            try:
                feed.detach()
            except Exception as error:
                return Detached(error)
            return Detached(None)

        in_background(self, "detach", work)

    # How it gets onto the screen

    def _hold(self, still: bool) -> None:
        """A replay stands still with its picture; a live run goes on behind it."""
        if isinstance(self._feed, Pausable):
            if still:
                self._feed.pause()
            else:
                self._feed.resume()

    def _change(self, **changes: object) -> None:
        self.view = replace(self.view, **changes)  # type: ignore[arg-type]
        self._arrange()
        self._show()

    def _show(self) -> None:
        """Hand the view down; while the evidence covers this screen, it alone is kept up to date."""
        evidence = next((screen for screen in self.app.screen_stack if isinstance(screen, EvidenceScreen)), None)
        if evidence is not None:
            if evidence.is_mounted:
                evidence.show(self.view)
            return
        for name in self._plan:
            self._pane(name).show(self.view)

    def _arrange(self) -> None:
        """Put every pane where the plan for this size and these facts has it."""
        snapshot, hook = self.view.snapshot, self.view.source("hook")
        wanted = plan(
            self.size.width,
            self.size.height - self._rows_below(),
            gpus=len(snapshot.gpu.devices) if snapshot and snapshot.gpu else 0,
            ranks=len(snapshot.ranks.ranks) if snapshot and snapshot.ranks else 0,
            processes=self._most_processes(snapshot),
            timed=hook is None or hook.state not in ("absent", "denied"),
            banner=bool(snapshot and snapshot.target.ended),
            zoom=self._zoomed,
        )
        wanted = self._refitted(wanted)
        if wanted == self._plan:
            return
        self._plan = wanted
        for pane in self.query(Pane):
            box = wanted.get(pane.id or "")
            pane.display = box is not None
            if box is not None:
                pane.framed = box.framed
                pane.foldable = True
                pane.folded = box.framed and box.height == 1 and self._zoomed is None
                pane.styles.offset = (box.x, box.y)
                pane.styles.width = box.width
                pane.styles.height = box.height
                pane.redraw()
        focused: Widget | None = self.focused
        if focused is None or not focused.display:
            self.set_focus(self._pane(self._zoomed or "verdict"))

    def _most_processes(self, snapshot: Snapshot | None) -> int:
        """Processes at their most: workers that come and go move no pane."""
        seen = len(snapshot.host.processes) if snapshot and snapshot.host else 0
        self._most = max(self._most, seen)
        return self._most

    def _rows_below(self) -> int:
        """Rows that a kind of this screen keeps for itself."""
        return 0

    def _pane(self, name: str) -> Pane:
        return self.query_one(f"#{name}", Pane)
