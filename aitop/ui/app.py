"""The two programs of the terminal: watching a run, and choosing one to watch."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType

from aitop.model.candidate import Candidate
from aitop.ui.messages import FeedFailed
from aitop.ui.screens.evidence import SourceAround
from aitop.ui.screens.monitor import MonitorScreen
from aitop.ui.screens.picker import PickerScreen
from aitop.ui.terminal import LastResort, believe_the_terminal
from aitop.ui.view import Look, View

if TYPE_CHECKING:
    from aitop.engine.feed import Feed

ResultType = TypeVar("ResultType")

INTERRUPTED = 130
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
PLAIN_TERMINALS = frozenset({"linux", "dumb", "vt100", "vt102", "vt220"})


class AitopApp(App[ResultType]):
    """A terminal application that ends in order, with the terminal restored, whatever ends it."""

    CSS_PATH = "theme.tcss"
    TITLE = "aitop"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "interrupt", "interrupt", show=False, priority=True)]

    def __init__(self, clean_up: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self._last_resort = LastResort(clean_up)
        self._loop_for_signals: asyncio.AbstractEventLoop | None = None
        self.animation_level = "none"

    def look(self) -> Look:
        """What this terminal can show."""
        plain = os.environ.get("TERM", "") in PLAIN_TERMINALS or not _speaks_unicode()
        return Look(mono=self.no_color, ascii=plain)

    def on_mount(self) -> None:
        # Not the event loop's own handlers: those would wait for a loop that is stuck writing to a dead terminal.
        if not self.is_headless and threading.current_thread() is threading.main_thread():
            self._loop_for_signals = asyncio.get_running_loop()
            for number in ENDING_SIGNALS:
                signal.signal(number, self._end_by)

    def on_feed_failed(self, message: FeedFailed) -> None:
        self.failure = message.error
        self.exit(return_code=1)

    def action_interrupt(self) -> None:
        self.exit(return_code=INTERRUPTED)

    def _end_by(self, number: int, frame: FrameType | None) -> None:
        code = 128 + number
        self._last_resort.arm(code)
        if self._loop_for_signals is not None:
            self._loop_for_signals.call_soon_threadsafe(lambda: self.exit(return_code=code))

    def run_to_end(self) -> ResultType | None:
        """Run until it is over; the signals that ended it mean again afterwards what they meant before."""
        believe_the_terminal()
        before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        try:
            return self.run()
        finally:
            self._last_resort.disarm()
            for number, handler in before.items():
                signal.signal(number, handler)


class MonitorApp(AitopApp[None]):
    """Watches what the feed gives."""

    def __init__(self, feed: Feed, title: str | None = None, source_around: SourceAround | None = None) -> None:
        super().__init__(feed.stop)
        self._feed = feed
        self._run_title = title
        self._source_around = source_around

    def get_default_screen(self) -> MonitorScreen:
        return MonitorScreen(self._feed, View(look=self.look(), title=self._run_title), self._source_around)


class PickerApp(AitopApp[int]):
    """Lists candidates; its result is the chosen pid, None when none was chosen."""

    def __init__(self, find: Callable[[], list[Candidate]]) -> None:
        super().__init__()
        self._find = find

    def get_default_screen(self) -> PickerScreen:
        return PickerScreen(self._find, View(look=self.look()))


def run_monitor(feed: Feed, *, title: str | None = None, source_around: SourceAround | None = None) -> int:
    """Show the feed until the user quits or a signal comes; the exit code (0, or 128 + signal).

    `title` stands in the header in place of the target's command. `source_around` reads the target's own source
    for the evidence view; it is called off the UI thread and may fail. The feed is started here and stopped when the
    terminal is itself again. An error of the feed's start is raised from here, after both.
    """
    app = MonitorApp(feed, title, source_around)
    try:
        app.run_to_end()
    finally:
        feed.stop()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


def pick(find: Callable[[], list[Candidate]]) -> int | None:
    """Let the user choose one of the jobs that `find` gives; its pid, or None when none was chosen.

    `find` is called off the UI thread, again on request. Ctrl-C raises KeyboardInterrupt, a signal SystemExit.
    """
    app = PickerApp(find)
    chosen = app.run_to_end()
    if app.failure is not None:
        raise app.failure
    if app.return_code == INTERRUPTED:
        raise KeyboardInterrupt
    if app.return_code:
        raise SystemExit(app.return_code)
    return chosen


def _speaks_unicode() -> bool:
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    return "utf" in encoding.lower()
