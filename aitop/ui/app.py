"""The terminal applications: watch or replay a run, choose a run to watch, and watch the jobs of a cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from msgspec.structs import replace
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.events import Resize
from textual.screen import Screen

from aitop.diagnosis.fix_edit import SourceAround
from aitop.engine.feed import Feed
from aitop.engine.recorder import Recorder
from aitop.errors import INTERRUPTED
from aitop.model.job import Candidate
from aitop.model.settings import Settings
from aitop.ui.changed_cells import ChangedCells
from aitop.ui.messages import Failed
from aitop.ui.screens.help import HelpScreen, described, our_bindings
from aitop.ui.screens.monitor import PANES, MonitorScreen
from aitop.ui.screens.picker import PickerScreen
from aitop.ui.screens.replay import ReplayScreen
from aitop.ui.state import View
from aitop.ui.terminal import LastResort, forget_exported_size, signals_as_input, writing_changes_only
from aitop.ui.theme.themes import THEMES, Appearance, Theme, appearance_for, textual_theme
from aitop.ui.widgets.line import key_words, to_ascii
from aitop.ui.widgets.pane import Pane

if TYPE_CHECKING:
    from aitop.sources.prometheus.fleet import FleetReader
    from aitop.ui.screens.fleet import FleetScreen


ResultType = TypeVar("ResultType")
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


class AitopApp(App[ResultType]):
    """Base of the applications: exits cleanly and restores the terminal on quit, error or signal."""

    CSS_PATH = "theme/theme.tcss"
    TITLE = "aitop"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("C", "next_theme", "colours: the next theme"),
        Binding("ctrl+p", "command_palette", "find a command by its name", priority=True),
        Binding("ctrl+z", "suspend_process", "back to the shell; `fg` comes back here", priority=True),
        Binding("ctrl+c", "interrupt", "quit at once", show=False, priority=True),
    ]

    def __init__(
        self,
        main_screen: Callable[[View], Screen[Any]],
        settings: Settings | None = None,
        clean_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._main_screen = main_screen
        self._cells = ChangedCells()
        # With NO_COLOR Textual would turn our colours to greys; our monochrome theme reads better.
        no_color = os.environ.pop("NO_COLOR", None)
        super().__init__()
        if no_color is not None:
            os.environ["NO_COLOR"] = no_color
        self.settings = settings or Settings()
        self.appearance = appearance_for(self.settings, os.environ, getattr(sys.__stdout__, "encoding", None))
        for theme in THEMES.values():
            self.register_theme(textual_theme(theme))
        self._apply(self.appearance)
        self.failure: BaseException | None = None
        self._last_resort = LastResort(clean_up)
        self._loop_for_signals: asyncio.AbstractEventLoop | None = None
        self._signals: int | None = None
        self._ending_signal: int | None = None
        self.animation_level = "none"

    def get_default_screen(self) -> Screen[Any]:
        if self.is_headless:
            # Without a terminal there is no environment to derive it from: use the settings alone.
            self.appearance = appearance_for(self.settings, {}, "utf-8")
            self._apply(self.appearance)
        return self._main_screen(View(appearance=self.appearance))

    def get_driver_class(self) -> type[Driver]:
        return writing_changes_only(super().get_driver_class(), self._cells)

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        def plain(text: str) -> str:
            return to_ascii(key_words(text, self.appearance)) if self.appearance.ascii else text

        for keys, binding in described(our_bindings(screen)):
            if binding.action not in ("app.none", "command_palette"):
                owner = "app" if any(binding is own for own in self.BINDINGS) else "screen"
                action = binding.action if "." in binding.action else f"{owner}.{binding.action}"
                yield SystemCommand(plain(binding.description), plain(f"key {keys}"), partial(self.run_action, action))
        if isinstance(screen, MonitorScreen):
            for name in screen.panes():
                words = PANES[name][1] if name in PANES else name
                yield SystemCommand(f"show {words}", f"pane: {name}", partial(screen.show_pane, name))
        for theme in THEMES.values():
            yield SystemCommand(f"theme: {theme.name}", theme.words, partial(self.use_theme, theme))

    def action_none(self) -> None:
        """Do nothing: such keys are handled by the focused pane, and a screen binds them only for the help."""

    def action_help(self) -> None:
        self.push_screen(HelpScreen(our_bindings(self.screen), View(appearance=self.appearance)))

    def action_next_theme(self) -> None:
        names = list(THEMES)
        self.use_theme(THEMES[names[(names.index(self.appearance.theme.name) + 1) % len(names)]])

    def use_theme(self, theme: Theme) -> None:
        self.appearance = replace(self.appearance, theme=theme)
        self._apply(self.appearance)
        for screen in self.screen_stack:
            view = getattr(screen, "view", None)
            if isinstance(view, View):
                screen.view = replace(view, appearance=self.appearance)  # type: ignore[attr-defined]
            for pane in screen.query(Pane):
                pane.show(replace(pane.view, appearance=self.appearance, notice=f"theme: {theme.name}"))

    async def run_action(self, *args: Any, **kwargs: Any) -> bool:
        """Run an action. An error in it ends the program and restores the terminal; in tests it is raised."""
        try:
            return await super().run_action(*args, **kwargs)
        except Exception as error:
            if self.is_headless:
                raise
            self.end_with(error)
            return True

    def end_with(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            self.exit(return_code=1)

    def _apply(self, appearance: Appearance) -> None:
        self.ansi_color = appearance.theme.ansi
        self.theme = f"aitop-{appearance.theme.name}"

    def on_resize(self, event: Resize) -> None:
        # On a resize a terminal moves or drops text, so what we remember of its cells is no longer true.
        self._cells.forget()
        # Where a second resize interrupts Textual's handler of the first, the older size arrives last (4 % of storms
        # of seven sizes in a millisecond): have the size read again.
        if not self.is_headless and (event.size.width, event.size.height) != shutil.get_terminal_size():
            signal.raise_signal(signal.SIGWINCH)

    def on_mount(self) -> None:
        # While we were stopped (^z), the shell wrote over the screen.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh(layout=True))

    def on_ready(self) -> None:
        """Let signals end the program at once from now on, and exit now if one came while the screen was starting."""
        self._loop_for_signals = asyncio.get_running_loop()
        if self._signals is not None:
            self._loop_for_signals.add_reader(self._signals, os.read, self._signals, 4096)
        if self._ending_signal is not None:
            self.exit(return_code=128 + self._ending_signal)

    def on_failed(self, message: Failed) -> None:
        self.end_with(message.error)

    def action_interrupt(self) -> None:
        self.exit(return_code=INTERRUPTED)

    def _end_by(self, number: int, frame: FrameType | None) -> None:
        self._ending_signal, code = number, 128 + number
        self._last_resort.arm(code)
        # Without a running loop there is nothing to exit; `code` and `on_ready` read `_ending_signal`.
        if self._loop_for_signals is not None and not self._loop_for_signals.is_closed():
            self._loop_for_signals.call_soon_threadsafe(lambda: self.exit(return_code=code))

    @property
    def code(self) -> int:
        """The exit code: 128 + the number of the signal that ended the screen, else the code that it returned."""
        return self.return_code or 0 if self._ending_signal is None else 128 + self._ending_signal

    def run_to_end(self) -> ResultType | None:
        """Run the application and return its result. Restores the signal handlers; raises the error that ended it."""
        forget_exported_size()
        before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
        try:
            # Not asyncio's signal handlers: they lose an interrupt that comes while the screen starts, and they need a
            # running loop, which may be stuck writing to a dead terminal.
            for number in ENDING_SIGNALS:
                signal.signal(number, self._end_by)
            with signals_as_input() as self._signals:
                result = self.run()
        finally:
            self._last_resort.disarm()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.failure is not None:
            raise self.failure
        return result

    def show(self) -> int:
        """Run until the user quits or a signal arrives, and return the exit code. Raises the error that ended it."""
        self.run_to_end()
        return self.code


class MonitorApp(AitopApp[None]):
    """Watches a run: shows the Snapshots of a feed.

    `title` replaces the target's command in the header. `source_around` reads the target's own source for the evidence
    screen; it is called off the UI thread and may fail. `recorder` writes the feed's events to a file, None if there
    is nothing to record. `cluster` reads the job's ranks on other machines, None if no Prometheus is configured.
    """

    screen_class: type[MonitorScreen] = MonitorScreen

    def __init__(
        self,
        feed: Feed,
        title: str | None = None,
        source_around: SourceAround | None = None,
        settings: Settings | None = None,
        recorder: Recorder | None = None,
        *,
        cluster: FleetReader | None = None,
    ) -> None:
        def main_screen(view: View) -> MonitorScreen:
            view = replace(view, title=title)
            return self.screen_class(feed, view, source_around, recorder, self.settings.folded, cluster)

        super().__init__(main_screen, settings, feed.stop)
        self._feed = feed

    def show(self) -> int:
        """Run as in the base class, then stop the feed, which the screen has started."""
        try:
            return super().show()
        finally:
            self._feed.stop()


class ReplayApp(MonitorApp):
    """Shows a recording: its `feed` must be a ReplayFeed."""

    screen_class = ReplayScreen


class PickerApp(AitopApp[int]):
    """Lets the user choose one of the jobs that `find` returns. `find` is called off the UI thread, repeatedly."""

    def __init__(self, find: Callable[[], list[Candidate]], settings: Settings | None = None) -> None:
        super().__init__(lambda view: PickerScreen(find, view), settings)

    def choose(self) -> int | None:
        """Return the pid of the chosen job, None for none. Raises KeyboardInterrupt on ^c, SystemExit on a signal."""
        chosen = self.run_to_end()
        if self.code == INTERRUPTED:
            raise KeyboardInterrupt
        if self.code:
            raise SystemExit(self.code)
        return chosen


class FleetApp(AitopApp[None]):
    """Shows the jobs of a cluster; asks Prometheus again every `every` seconds."""

    def __init__(self, cluster: FleetReader, every: float, settings: Settings | None = None) -> None:
        def main_screen(view: View) -> FleetScreen:
            from aitop.ui.screens.fleet import FleetScreen  # noqa: PLC0415 - loads for 7 ms

            return FleetScreen(cluster, every, view)

        super().__init__(main_screen, settings)
