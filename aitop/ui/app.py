"""The two programs of the terminal: watching a run, and choosing one to watch."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from aitop.model.candidate import Candidate
from aitop.ui.messages import FeedFailed
from aitop.ui.screens.evidence import SourceAround
from aitop.ui.screens.monitor import MonitorScreen
from aitop.ui.screens.picker import PickerScreen
from aitop.ui.view import Look, View

if TYPE_CHECKING:
    from aitop.engine.feed import Feed

INTERRUPTED = 130
PLAIN_TERMINALS = frozenset({"linux", "dumb", "vt100", "vt102", "vt220"})


class AitopApp(App[int]):
    """A terminal application that ends in order, with the terminal restored, whatever ends it."""

    CSS_PATH = "theme.tcss"
    TITLE = "aitop"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "interrupt", "interrupt", show=False, priority=True)]

    def __init__(self) -> None:
        super().__init__()
        self.failure: BaseException | None = None
        self.animation_level = "none"

    def look(self) -> Look:
        """What this terminal can show."""
        plain = os.environ.get("TERM", "") in PLAIN_TERMINALS or not _speaks_unicode()
        return Look(mono=self.no_color, ascii=plain)

    def on_mount(self) -> None:
        if not self.is_headless:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                loop.add_signal_handler(number, self._end_by, number)

    def on_feed_failed(self, message: FeedFailed) -> None:
        self.failure = message.error
        self.exit(return_code=1)

    def action_interrupt(self) -> None:
        self.exit(return_code=INTERRUPTED)

    def _end_by(self, number: signal.Signals) -> None:
        self.exit(return_code=128 + number)


class MonitorApp(AitopApp):
    """Watches what the feed gives."""

    def __init__(self, feed: Feed, title: str | None = None, source_around: SourceAround | None = None) -> None:
        super().__init__()
        self._feed = feed
        self._run_title = title
        self._source_around = source_around

    def get_default_screen(self) -> MonitorScreen:
        return MonitorScreen(self._feed, View(look=self.look(), title=self._run_title), self._source_around)


class PickerApp(AitopApp):
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
        app.run()
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
    chosen = app.run()
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
