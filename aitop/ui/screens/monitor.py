"""The main screen: takes Snapshots from the feed, passes them to the panes as a View, and handles the keys."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

from aitop.diagnosis.fix_edit import SourceAround
from aitop.diagnosis.run_comparison import compared
from aitop.engine.feed import Feed, LazyFeed
from aitop.engine.recorder import Recorder
from aitop.errors import AitopError
from aitop.model.snapshot import Snapshot
from aitop.model.text import printable
from aitop.model.units import plural
from aitop.ui.editor import EDITOR_HAS_TERMINAL, edit
from aitop.ui.layout import Plan, plan, refit
from aitop.ui.messages import Failed, SnapshotArrived, deliver, in_background
from aitop.ui.panes.code.pane import CodePane, LineWanted
from aitop.ui.panes.data import DataPane
from aitop.ui.panes.footer import Filtered, FilterLine, Footer
from aitop.ui.panes.gpu import GpuPane
from aitop.ui.panes.header import banner_line, header_line
from aitop.ui.panes.ledger import LedgerPane
from aitop.ui.panes.memory import MemoryPane
from aitop.ui.panes.processes import ProcessPane
from aitop.ui.panes.ranks import RankPane, RankRow
from aitop.ui.panes.serving import ServingPane
from aitop.ui.panes.step import StepPane
from aitop.ui.panes.verdict import VerdictPane, shown_verdicts
from aitop.ui.saving import recording_state, save_screen, start_or_end_recording
from aitop.ui.screens.code_line import LineScreen
from aitop.ui.screens.comparison import ComparisonScreen
from aitop.ui.screens.evidence import EvidenceScreen
from aitop.ui.screens.headed import HeadedScreen
from aitop.ui.screens.stacks import StacksScreen
from aitop.ui.screens.torch_profile import ProfileScreen
from aitop.ui.state import EVERYBODY, CodeView, View, is_seen, next_part, next_thread, serves
from aitop.ui.terminal import output_is_blocked
from aitop.ui.widgets.pane import OneLine, Pane
from aitop.ui.widgets.table import RowChosen
from aitop.ui.words import one_line

if TYPE_CHECKING:
    from aitop.sources.prometheus.fleet import FleetReader

PANES: dict[str, tuple[type[Pane], str]] = {
    "verdict": (VerdictPane, "the verdict"),
    "step": (StepPane, "the step"),
    "serving": (ServingPane, "what is served"),
    "gpu": (GpuPane, "the GPUs"),
    "data": (DataPane, "the way of the data"),
    "memory": (MemoryPane, "memory"),
    "ledger": (LedgerPane, "where the time goes"),
    "ranks": (RankPane, "the ranks"),
    "code": (CodePane, "the code"),
    "processes": (ProcessPane, "the processes"),
}
"""Pane name to its class and its description in the command palette, in the order in which tab visits the panes."""
CATCH_UP_SECONDS = 0.5
NOTICE_TICKS = 6
"""A notice disappears after this many Snapshots."""
COMPARE_SECONDS = 5.0
"""The comparison with the last run is renewed only this often, so that there is time to read it."""


class MonitorScreen(Screen[int]):
    """Shows all panes of a run. A pane without room beside the others gets the whole screen when tab reaches it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "app.help", "this help"),
        Binding("enter", "why", "why: evidence, source and fixes of every verdict"),
        Binding("z", "zoom", "zoom the focused pane, and back"),
        Binding("tab", "next_pane(1)", "next pane; one without room here gets the whole screen"),
        Binding("shift+tab", "next_pane(-1)", "previous pane"),
        Binding("minus", "fold", "fold the focused pane to its title, and back"),
        Binding("up,down", "app.none", "scroll the focused pane"),
        Binding("left,right", "app.none", "read the focused pane's charts at a cursor"),
        Binding("space", "pause", "hold the picture still, and go on"),
        *[
            Binding(str(number), f"rank({number})", "show one rank only: 1 is the first (rank 0)")
            for number in range(1, 10)
        ],
        Binding("0", "rank(0)", "show all ranks"),
        Binding("h,H", "hang", "where every rank stands at this moment, and which one keeps the others waiting"),
        Binding("E", "everywhere", "the job's ranks on all machines, from Prometheus (setting: prometheus)"),
        Binding("T,f5", "processes", "the job's processes as a tree: ⏎ narrows every pane to one"),
        Binding("less_than_sign,greater_than_sign", "app.none", "sort the process tree by another column"),
        Binding("I", "app.none", "turn that order round"),
        Binding("slash,f4", "filter", "filter processes and code by text"),
        Binding("t", "show_code('tree')", "code: call tree, ←→ fold and unfold, ⏎ the line; and back to hot lines"),
        Binding("f", "show_code('flame')", "code: flame view, ⏎ zooms in, esc out, o the line; and back to hot lines"),
        Binding("w", "next_who(False)", "code: of all, of main threads, of workers, of others"),
        Binding("W", "next_who(True)", "code: of one process or thread after the other"),
        Binding("S", "stacks", "all stacks of this moment, equal ones together"),
        Binding("e", "edit", "open the line in your editor"),
        Binding("m", "mark", "mark this moment: every figure then shows its change"),
        Binding("M", "unmark", "forget the mark"),
        Binding("b", "compare", "this run beside the last one of the same script"),
        Binding("r", "record", "record to a file here, and stop"),
        Binding("s", "save", "save this screen here as a picture and as text"),
        Binding("p", "profile", "profile 5 steps with torch.profiler"),
        Binding("d", "detach", "take the hook out of the target and go on without it"),
        Binding("escape", "back", "back: out of filter, zoom, process, rank, thread or pause"),
        Binding("q,f10", "app.quit", "quit"),
    ]

    has_replay_bar = False

    def __init__(  # noqa: PLR0917
        self,
        feed: Feed,
        view: View,
        source_around: SourceAround | None = None,
        recorder: Recorder | None = None,
        folded: Iterable[str] = (),
        cluster: FleetReader | None = None,
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._feed = feed
        # None for a replay: only a live run can be profiled, detached from, or remember its mark.
        self._run = feed if isinstance(feed, LazyFeed) else None
        self._source_around = source_around
        self.recorder = recorder
        self._folded = frozenset(folded)
        self._newest: Snapshot | None = None
        # Runs while the terminal has not taken the last frame.
        self._catching_up: Timer | None = None
        self._plan: Plan = {}
        self._zoomed: str | None = None
        self._zoomed_for_room = False
        self._typing = False
        self._is_detaching = False
        self._focused_before: str | None = None
        self._most_processes = 0
        self._shown_notice: str | None = None
        self._notice_ticks = 0
        self._compared_at = -math.inf
        self.view = replace(view, live=feed.live)

    def compose(self) -> ComposeResult:
        yield OneLine(header_line, id="header")
        yield OneLine(banner_line, id="banner")
        yield from (pane(id=name) for name, (pane, _) in PANES.items())
        yield Footer(id="footer")
        yield FilterLine(id="filter")

    def on_mount(self) -> None:
        self._lay_out()
        self._show()

        def publish(snapshot: Snapshot) -> None:
            if EDITOR_HAS_TERMINAL.is_set():
                self._newest = snapshot
            else:
                deliver(self.post_message, SnapshotArrived(snapshot))

        # The last one may have come meanwhile, and say that the run has ended.
        self.app.app_resume_signal.subscribe(self, lambda _: self._catch_up())

        # Starting the feed imports a lot, so draw the first frame before that.
        start = partial(self._feed.start, publish)
        self.call_after_refresh(lambda: in_background(self, "start", start, self._started))

    def _started(self, error: Exception | None) -> None:
        if error is not None:
            self.post_message(Failed(error))

    # Snapshots

    def on_snapshot_arrived(self, message: SnapshotArrived) -> None:
        self._newest = message.snapshot
        if output_is_blocked():
            # The terminal has not taken the last frame yet. Skipping this one saves bytes on a slow link.
            if self._catching_up is None:
                self._catching_up = self.set_timer(CATCH_UP_SECONDS, self._catch_up)
        # A paused replay must still show the moment that the user seeks to.
        elif not self.view.paused or not self.view.live:
            try:
                self._take(message.snapshot)
            except Exception as error:
                if self.app.is_headless:
                    raise
                self.post_message(Failed(error))
        else:
            self._change(notice=self._notice(), recording=recording_state(self.recorder))

    def _take(self, snapshot: Snapshot) -> None:
        if self.view.snapshot is None and self._run is not None:
            self._change(mark=self._run.made().marked())
        compared_now = self.view.compared
        if abs(snapshot.time - self._compared_at) >= COMPARE_SECONDS:
            compared_now, self._compared_at = compared(snapshot), snapshot.time
        recording, notice = recording_state(self.recorder), self._notice()
        self._change(snapshot=snapshot, recording=recording, notice=notice, compared=compared_now)
        chosen, known = self.view.chosen, self.view.pids() is not None
        if chosen is not None and known and all(process.pid != chosen for process in self.view.processes):
            # The chosen process is gone, so stop narrowing to it.
            self._change(chosen=None, notice=f"process {chosen} has ended: all are shown again")
        who = self.view.who
        if snapshot.stacks is not None and not is_seen(snapshot.stacks, who):
            self._change(
                who=EVERYBODY, notice=f"nothing of {one_line(who.words())} is seen any more: all code is shown"
            )

    def _catch_up(self) -> None:
        """Draw the newest snapshot, if it is not on the screen yet."""
        self._catching_up = None
        if self._newest is not None and self._newest is not self.view.snapshot:
            self.post_message(SnapshotArrived(self._newest))

    def _notice(self) -> str | None:
        """The notice to show with the next Snapshot: a new failure of the recording, else the current notice until it
        has been shown for NOTICE_TICKS. None when there is nothing to say.
        """
        notice = self.view.notice
        recording = self.recorder.recording if self.recorder else None
        if recording is not None and recording.failed and recording_state(self.recorder) != self.view.recording:
            notice = printable(recording.failed)
        if notice != self._shown_notice:
            self._shown_notice, self._notice_ticks = notice, NOTICE_TICKS
        self._notice_ticks -= 1
        return notice if self._notice_ticks > 0 else None

    def on_resize(self, event: events.Resize) -> None:
        before = self._plan.keys()
        self._lay_out()
        # Panes of another size draw themselves anew. One that was hidden has an old view.
        if not self._plan.keys() <= before:
            self._show()

    def on_screen_resume(self) -> None:
        self._show()

    # Other screens

    def action_why(self) -> None:
        self.app.push_screen(EvidenceScreen(self.view, self._source_around))

    def action_hang(self) -> None:
        from aitop.ui.screens.hang import HangScreen  # noqa: PLC0415 - loads for 40 ms

        self.app.push_screen(HangScreen(self._feed, self.view))

    def action_everywhere(self) -> None:
        """Ask Prometheus which job this run belongs to, then open a screen with that job's ranks on all machines."""
        if self._cluster is None and not self.view.live:
            self._change(notice="a replay shows only what was recorded")
            return
        if self._cluster is None:
            self._change(notice="no Prometheus server is named: `prometheus` in the settings (aitop config) does that")
            return
        self._change(notice="asking Prometheus…")
        pids = [process.pid for process in self.view.processes]
        in_background(self, "everywhere", partial(self._cluster.job_with, pids), self._job_known)

    def _job_known(self, answer: str | Exception) -> None:
        if isinstance(answer, AitopError):
            self._change(notice=printable(str(answer)))
        elif isinstance(answer, Exception):
            self.post_message(Failed(answer))
        elif self._cluster is not None:
            from aitop.ui.screens.fleet import RanksScreen  # noqa: PLC0415 - loads for 7 ms

            self._change(notice=None)
            self.app.push_screen(RanksScreen(self._cluster, self.view, answer))

    def action_compare(self) -> None:
        if self.view.compared is None:
            self._change(notice="no earlier run of this script is known here")
        else:
            self.app.push_screen(ComparisonScreen(self.view))

    def action_stacks(self) -> None:
        self.app.push_screen(StacksScreen(self._feed, self.view))

    def on_line_wanted(self, message: LineWanted) -> None:
        self.app.push_screen(LineScreen(self.view, message.place, self._source_around))

    def action_profile(self) -> None:
        if self._run is None:
            self._change(notice="only a live run can be profiled")
            return
        if not self.app.is_screen_installed("profile"):
            self.app.install_screen(ProfileScreen(self._run, self.view), "profile")
        self.app.push_screen("profile")
        # It may have been left in other colours.
        self._show()

    def action_edit(self) -> None:
        """Open a line in the editor: the selected one if the code pane has the focus, else the one that the first
        verdict with a line points to, else again the selected one.
        """
        code = self.query_one(CodePane)
        named = (where for verdict in shown_verdicts(self.view) for where in verdict.where)
        at = code.place() if code.has_focus else next(named, None) or code.place()
        opened = edit(self.app, at, self.view.process(at.pid)) if at else None
        self._change(notice=opened or "there is no line of code to open yet")

    # Marks, saved files, and the hook

    def action_mark(self) -> None:
        snapshot = self.view.snapshot
        if snapshot is None:
            self._change(notice="nothing to mark yet")
        else:
            self._mark(snapshot, "marked: every figure now shows its change; M forgets it")

    def action_unmark(self) -> None:
        if self.view.mark is None:
            self._change(notice="there is no mark")
        else:
            self._mark(None, "the mark is forgotten")

    def _mark(self, snapshot: Snapshot | None, notice: str) -> None:
        """Set the mark, in this run and for the next run of the script; None removes it."""
        if self._run is not None:
            self._run.made().mark(snapshot)
        self._change(mark=snapshot, notice=notice)

    def action_save(self) -> None:
        self._change(notice=save_screen(self, self._target_pid()))

    def action_record(self) -> None:
        notice = start_or_end_recording(self.recorder, self._target_pid())
        self._change(notice=notice, recording=recording_state(self.recorder))

    def _target_pid(self) -> int:
        return self.view.snapshot.target.pid if self.view.snapshot else os.getpid()

    def action_detach(self) -> None:
        """Take the hook out. The run itself knows whether there is one: it may be on its way in, with nothing of it on
        the screen.
        """
        run = self._run
        if run is None:
            self._change(notice="there is no hook to take out")
            return
        self._change(notice="taking the hook out…")
        if not self._is_detaching:
            self._is_detaching = True
            in_background(self, "detach", lambda: run.made().detach(), self._detached)

    def _detached(self, answer: bool | Exception) -> None:
        self._is_detaching = False
        if isinstance(answer, Exception):
            self._change(notice=f"could not detach: {printable(str(answer))}")
            return
        stays = "the hook stays: it came with the program, or another aitop uses it"
        self._change(notice="the hook is out of the target" if answer else stays, has_detached=True)

    # What the view is limited to: pause, rank, process, filter, kind of code view

    def action_pause(self) -> None:
        """Freeze the screen, or go on with the newest Snapshot. The run itself is not paused."""
        self._change(paused=not self.view.paused)
        if not self.view.paused and self._newest is not None:
            self._take(self._newest)

    def action_rank(self, number: int) -> None:
        pids = list(self.view.ranks().values())
        if number == 0:
            self._change(chosen=None)
        elif number > len(pids) or len(pids) == 1:
            verb = "is" if len(pids) == 1 else "are"
            self._change(notice=f"there {verb} only {plural(len(pids), 'rank')}" if pids else "there are no ranks")
        else:
            self._narrow(pids[number - 1])

    def _narrow(self, pid: int) -> None:
        """Narrow the screen to a process with its descendants, such as a rank; choosing it again shows everything."""
        self._change(chosen=None if self.view.chosen == pid else pid)

    def action_processes(self) -> None:
        """Show the process tree on the whole screen, or go back to the panes."""
        if self._zoomed == "processes":
            self._leave_zoom()
        else:
            self._focused_before = self.focused.id if isinstance(self.focused, Pane) else None
            self._zoom("processes")

    def on_row_chosen(self, message: RowChosen) -> None:
        row = message.row
        if not message.stay and self._zoomed == "processes":
            self._leave_zoom()
        self._narrow(row.rank.pid if isinstance(row, RankRow) else row.process.pid)

    def action_filter(self) -> None:
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
            self._change(filter=message.text.strip())
            self._restore_focus()

    def action_show_code(self, how: CodeView) -> None:
        """Show the code as a tree or a flame; if it is shown so already, go back to hot lines."""
        code = self.query_one(CodePane)
        code.top = 0
        self._change(code="lines" if self.view.code == how else how)
        if code.display:
            self.set_focus(code)
        else:
            self.show_pane("code")

    def action_next_who(self, by_thread: bool) -> None:
        """Narrow the code pane to the next part of the job or, `by_thread`, to the next process or thread in it."""
        stacks = self.view.snapshot.stacks if self.view.snapshot else None
        if stacks is not None:
            following = next_thread if by_thread else next_part
            self._change(who=following(stacks, self.view.pids(), self.view.who))

    def action_back(self) -> None:
        """Undo one restriction of the view: filter, zoom, process or rank, part of the code, pause, in this order."""
        if self.view.filter:
            self._change(filter="")
        elif self._zoomed is not None:
            self._leave_zoom()
        elif self.view.chosen is not None:
            self._change(chosen=None)
        elif self.view.who != EVERYBODY:
            self._change(who=EVERYBODY)
        elif self.view.paused:
            self.action_pause()

    # Focus, zoom and fold

    def panes(self) -> list[str]:
        """Names of the panes that tab visits: all except those that this run has no data for."""
        snapshot = self.view.snapshot
        there = {
            "step": not serves(snapshot),
            "serving": snapshot is not None and snapshot.serving is not None,
            "ledger": snapshot is not None and bool(snapshot.ledgers),
            "ranks": snapshot is not None and snapshot.ranks is not None and len(snapshot.ranks.ranks) > 1,
        }
        return [name for name in PANES if there.get(name, True)]

    def action_next_pane(self, by: int) -> None:
        """Go to the next pane (`by` 1) or the previous one (-1); if the user has zoomed a pane, zoom that one next."""
        panes, focused = self.panes(), self.focused.id if self.focused is not None else None
        at = panes.index(focused) if focused in panes else -1 if by > 0 else 0
        wanted = panes[(at + by) % len(panes)]
        if wanted in PANES and self._zoomed is not None and not self._zoomed_for_room:
            self._zoom(wanted)
        else:
            self.show_pane(wanted)

    def show_pane(self, name: str) -> None:
        """Focus a pane; if the layout has no room for it, give it the whole screen."""
        if name in self._plan_for(None):
            if self._zoomed is not None:
                self._zoomed = None
                self._change()
            self.set_focus(self._pane(name))
        elif self._zoomed != name:
            self._zoom(name, for_room=True)

    def action_zoom(self) -> None:
        if self._zoomed is None:
            focused = self.focused.id if isinstance(self.focused, Pane) else None
            self._zoom(focused if focused in PANES else "verdict")
        else:
            self._leave_zoom()

    def action_zoom_pane(self, name: str) -> None:
        """Zoom a pane to the whole screen, or leave the zoom. A folded pane is unfolded instead."""
        if self._zoomed is not None:
            self._leave_zoom()
        elif name in self._folded:
            self.action_fold_pane(name)
        elif name in PANES:
            self._zoom(name)

    def action_fold(self) -> None:
        if isinstance(self.focused, Pane):
            self.action_fold_pane(self.focused.id or "")

    def action_fold_pane(self, name: str) -> None:
        if self._zoomed is not None:
            self._leave_zoom()
        elif name in PANES:
            self._folded ^= {name}
            self._change()

    def _zoom(self, name: str, *, for_room: bool = False) -> None:
        """Give a pane the whole screen. `for_room`: not because the user zoomed it, but because it has no room."""
        self._zoomed, self._zoomed_for_room = name, for_room
        self._change()
        self.set_focus(self._pane(name))

    def _leave_zoom(self) -> None:
        self._zoomed = None
        self._change()
        self._restore_focus()

    def _restore_focus(self) -> None:
        before, self._focused_before = self._focused_before, None
        if before is not None and self._pane(before).display:
            self.set_focus(self._pane(before))

    def on_descendant_focus(self) -> None:
        """Redraw the footer: what some keys do depends on the focused pane."""
        self.query_one(Footer).redraw()

    # Arranging and drawing the panes

    def _change(self, **changes: object) -> None:
        """Replace these fields of the view, lay out again, and redraw every pane."""
        self.view = replace(self.view, **changes)
        self._lay_out()
        self._show()

    def _show(self) -> None:
        """Pass the view to the screens that cover this one, or else to the panes."""
        covering = [screen for screen in self.app.screen_stack if isinstance(screen, HeadedScreen)]
        for screen in covering:
            screen.take(self.view)
        for name in self._plan if not covering else ():
            self._pane(name).show(self.view)

    def _lay_out(self) -> None:
        """Move and size the panes according to the plan for this terminal size and Snapshot. Draws none."""
        wanted = self._plan_for(self._zoomed)
        if self._typing and "footer" in wanted:
            wanted = {("filter" if name == "footer" else name): box for name, box in wanted.items()}
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
        focused: Widget | None = self.focused
        if focused is None or not focused.display:
            self.set_focus(self._pane(self._zoomed or "verdict"))

    def _plan_for(self, zoomed: str | None) -> Plan:
        """The layout for the current size and Snapshot, with `zoomed` on the whole screen; None for no zoom."""
        snapshot, hook = self.view.snapshot, self.view.source("hook")
        # The largest number seen, so that the layout does not change when workers come and go.
        self._most_processes = max(self._most_processes, len(self.view.processes))
        boxes = plan(
            self.size.width,
            self.size.height,
            gpus=len(snapshot.gpu.devices) if snapshot and snapshot.gpu else 0,
            ranks=len(snapshot.ranks.ranks) if snapshot and snapshot.ranks else 0,
            processes=self._most_processes,
            ledger=bool(snapshot and snapshot.ledgers),
            timed=hook is None or hook.state not in ("absent", "denied"),
            serving=serves(self.view.snapshot),
            banner=bool(snapshot and snapshot.target.ended),
            replay=self.has_replay_bar,
            zoom=zoomed,
        )
        return boxes if zoomed is not None else refit(boxes, self._folded)

    def _pane(self, name: str) -> Pane:
        return self.query_one(f"#{name}", Pane)
