"""The two programs of the terminal: watching a run, and choosing one to watch."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.screen import Screen

from aitop.model.candidate import Candidate
from aitop.model.settings import Settings
from aitop.ui.appearance import look_for, textual_theme
from aitop.ui.line import to_ascii
from aitop.ui.messages import FeedFailed
from aitop.ui.screens.evidence import SourceAround
from aitop.ui.screens.help import key_name, our_bindings
from aitop.ui.screens.monitor import MonitorScreen
from aitop.ui.screens.picker import PickerScreen
from aitop.ui.screens.replay import ReplayScreen, Seekable
from aitop.ui.terminal import LastResort, believe_the_terminal
from aitop.ui.themes import DARK, THEMES, Theme, after
from aitop.ui.thrift import narrowed, thrifty
from aitop.ui.view import Look, View
from aitop.ui.widgets.pane import Pane

if TYPE_CHECKING:
    from rich.console import RenderableType

    from aitop.engine.feed import Feed
    from aitop.engine.recorder import Recorder

ResultType = TypeVar("ResultType")

INTERRUPTED = 130
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


class AitopApp(App[ResultType]):
    """A terminal application that ends in order, with the terminal restored, whatever ends it."""

    CSS_PATH = "theme.tcss"
    TITLE = "aitop"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("C", "next_theme", "colours: the next theme"),
        Binding("ctrl+p", "command_palette", "find a command by its name", priority=True),
        Binding("ctrl+z", "suspend_process", "back to the shell; `fg` comes back here", priority=True),
        Binding("ctrl+c", "interrupt", "quit at once", show=False, priority=True),
    ]

    def __init__(self, settings: Settings | None = None, clean_up: Callable[[], None] = lambda: None) -> None:
        with _colours_are_ours():
            super().__init__()
        self.settings = settings or Settings()
        self.look = look_for(self.settings, os.environ, getattr(sys.__stdout__, "encoding", None))
        for theme in THEMES.values():
            self.register_theme(textual_theme(theme))
        self._wear(self.look)
        self.failure: BaseException | None = None
        self._last_resort = LastResort(clean_up)
        self._loop_for_signals: asyncio.AbstractEventLoop | None = None
        self._told_to_end: int | None = None
        self.animation_level = "none"

    def settled_look(self) -> Look:
        """The look to begin with: without a terminal what is left open is the same everywhere."""
        if self.is_headless:
            self.look = look_for(self.settings, {}, "utf-8")
            self._wear(self.look)
        return self.look

    def get_driver_class(self) -> type[Driver]:
        """The driver for this system, that spares the link to the terminal."""
        return thrifty(super().get_driver_class())

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        super()._display(screen, narrowed(renderable))

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """What theme.tcss is read with before a theme is there."""
        return textual_theme(DARK).variables

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every key that works here, by what it does."""
        plain = to_ascii if self.look.ascii else str
        told: set[str] = set()
        for binding in our_bindings(screen):
            if binding.action not in ("none", "command_palette") and binding.description not in told:
                told.add(binding.description)
                keys = plain(key_name(binding.key))
                action = binding.action if "." in binding.action else f"screen.{binding.action}"
                if any(binding is one for one in self.BINDINGS):
                    action = f"app.{binding.action}"
                yield SystemCommand(plain(binding.description), f"key {keys}", partial(self.run_action, action))
        for theme in THEMES.values():
            yield SystemCommand(f"theme: {theme.name}", theme.words, partial(self.wear, theme))

    def action_next_theme(self) -> None:
        self.wear(after(self.look.theme))

    def wear(self, theme: Theme) -> None:
        """Draw everything in this theme."""
        self.look = replace(self.look, theme=theme)
        self._wear(self.look)
        for screen in self.screen_stack:
            view = getattr(screen, "view", None)
            if isinstance(view, View):
                screen.view = replace(view, look=self.look)  # type: ignore[attr-defined]
            for pane in screen.query(Pane):
                pane.show(replace(pane.view, look=self.look, notice=f"theme: {theme.name}"))

    def _handle_exception(self, error: Exception) -> None:
        """A fault of our own ends the program in order; what it was is said by who started us, in a sentence."""
        if self.is_headless:
            super()._handle_exception(error)
        elif self._told_to_end is not None:
            # A screen that was told to end while it was being made has not got all its parts.
            self.exit(return_code=self._told_to_end)
        elif self.failure is None:
            self.failure = error
            self.exit(return_code=1)

    def _wear(self, look: Look) -> None:
        self.ansi_color = look.theme.ansi
        self.theme = f"aitop-{look.theme.name}"

    def on_mount(self) -> None:
        # The shell has written over the screen while we were stopped.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))
        self._loop_for_signals = asyncio.get_running_loop()
        if self._told_to_end is not None:
            self.exit(return_code=self._told_to_end)

    def on_feed_failed(self, message: FeedFailed) -> None:
        self.failure = message.error
        self.exit(return_code=1)

    def action_interrupt(self) -> None:
        self.exit(return_code=INTERRUPTED)

    def _end_by(self, number: int, frame: FrameType | None) -> None:
        code = self._told_to_end = 128 + number
        self._last_resort.arm(code)
        # Before there is a loop, and after it, the code is all that is needed.
        if self._loop_for_signals is not None and not self._loop_for_signals.is_closed():
            self._loop_for_signals.call_soon_threadsafe(lambda: self.exit(return_code=code))

    @property
    def code(self) -> int:
        """The exit code: 128 and the signal that told it to end, else what the screen left with."""
        return self._told_to_end or self.return_code or 0

    def run_to_end(self) -> ResultType | None:
        """Run until it is over; the signals that ended it mean again afterwards what they meant before."""
        believe_the_terminal()
        before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        try:
            # From the first moment on, and not the event loop's own handlers: those lose an interrupt that comes while
            # the screen starts, and would wait for a loop that is stuck writing to a dead terminal.
            for number in ENDING_SIGNALS:
                signal.signal(number, self._end_by)
            return self.run()
        finally:
            self._last_resort.disarm()
            for number, handler in before.items():
                signal.signal(number, handler)


class MonitorApp(AitopApp[None]):
    """Watches what the feed gives."""

    def __init__(
        self,
        feed: Feed,
        title: str | None = None,
        source_around: SourceAround | None = None,
        settings: Settings | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        super().__init__(settings, feed.stop)
        self._recorder = recorder
        self._feed = feed
        self._run_title = title
        self._source_around = source_around

    def get_default_screen(self) -> MonitorScreen:
        screen = ReplayScreen if isinstance(self._feed, Seekable) else MonitorScreen
        shown = screen(self._feed, View(look=self.settled_look(), title=self._run_title), self._source_around)
        shown.recorder = self._recorder
        shown.fold(self.settings.folded)
        return shown


class PickerApp(AitopApp[int]):
    """Lists candidates; its result is the chosen pid, None when none was chosen."""

    def __init__(self, find: Callable[[], list[Candidate]], settings: Settings | None = None) -> None:
        super().__init__(settings)
        self._find = find

    def get_default_screen(self) -> PickerScreen:
        return PickerScreen(self._find, View(look=self.settled_look()))


def run_monitor(
    feed: Feed,
    *,
    title: str | None = None,
    source_around: SourceAround | None = None,
    settings: Settings | None = None,
    recorder: Recorder | None = None,
) -> int:
    """Show the feed until the user quits or a signal comes; the exit code (0, or 128 + signal).

    `title` stands in the header in place of the target's command. `source_around` reads the target's own source
    for the evidence view; it is called off the UI thread and may fail. The feed is started here and stopped when the
    terminal is itself again. An error of the feed's start is raised from here, after both. `recorder` is where the feed
    writes its events, None where there is nothing to record.
    """
    app = MonitorApp(feed, title, source_around, settings, recorder)
    try:
        app.run_to_end()
    finally:
        feed.stop()
    if app.failure is not None:
        raise app.failure
    return app.code


def pick(find: Callable[[], list[Candidate]], settings: Settings | None = None) -> int | None:
    """Let the user choose one of the jobs that `find` gives; its pid, or None when none was chosen.

    `find` is called off the UI thread, again on request. Ctrl-C raises KeyboardInterrupt, a signal SystemExit.
    """
    app = PickerApp(find, settings)
    chosen = app.run_to_end()
    if app.failure is not None:
        raise app.failure
    if app.code == INTERRUPTED:
        raise KeyboardInterrupt
    if app.code:
        raise SystemExit(app.code)
    return chosen


@contextmanager
def _colours_are_ours() -> Iterator[None]:
    """Textual turns colours to greys when NO_COLOR is set; what is drawn without colour here is made for it."""
    asked = os.environ.pop("NO_COLOR", None)
    try:
        yield
    finally:
        if asked is not None:
            os.environ["NO_COLOR"] = asked
