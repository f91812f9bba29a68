"""The main screen for a recording: the same panes, and a bar to play, pause, step, seek and change the speed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from aitop.engine.feed import ReplayPosition
from aitop.model.units import NOT_YET
from aitop.ui.screens.monitor import MonitorScreen
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, NOTICE, TEXT, WAITING
from aitop.ui.widgets.line import Line, key_hints, key_words
from aitop.ui.widgets.pane import Drawing, Pane

if TYPE_CHECKING:
    from aitop.engine.replay import ReplayFeed

# The speeds that a replay can be set to; 1.0 is as fast as the recorded run.
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
LEAST_BAR = 8
LONGEST_TIME = 9
FOLLOW_SECONDS = 0.2


class ReplayBar(Pane):
    """Shows a ReplayPosition. A click on the bar seeks there; after `g` the user can type a time."""

    framed = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "screen.seek_by(-10)", "back", show=False),
        Binding("right", "screen.seek_by(10)", "on", show=False),
        Binding("home", "screen.seek_to(0)", "start", show=False),
        Binding("end", "screen.seek_to(1e9)", "end", show=False),
    ]
    position = ReplayPosition()
    typed: str | None = None
    _bar = (0, 0)

    def draw(self, view: View, width: int, height: int) -> Drawing:
        left, right = self._state(), self._keys(width)
        room = width - left.width - right.width - 2
        if room < LEAST_BAR:
            right = Line()
            room = width - left.width - 1
        self._bar = (left.width, room) if room >= LEAST_BAR else (0, 0)
        if room >= LEAST_BAR:
            left.join(self._track(room)).add(" ")
        return Drawing([left.join(right)])

    def ask(self) -> None:
        self.typed = ""
        self.focus()
        self.redraw()

    async def on_key(self, event: events.Key) -> None:
        if self.typed is None:
            return
        if event.key == "enter" and (wanted := seconds_of(self.typed)) is not None:
            await self.run_action(f"screen.seek_to({wanted})")
        if event.key in ("enter", "escape", "tab"):
            self.typed = None
        elif event.key in ("backspace", "ctrl+h"):
            self.typed = self.typed[:-1]
        elif event.character is not None and event.character in "0123456789:." and len(self.typed) < LONGEST_TIME:
            self.typed += event.character
        event.stop()
        event.prevent_default()
        self.redraw()

    def on_blur(self) -> None:
        self.typed = None
        self.redraw()

    async def on_mouse_down(self, event: events.MouseDown) -> None:
        await self._go_to_column(event.x)

    async def on_mouse_move(self, event: events.MouseMove) -> None:
        if event.button:
            await self._go_to_column(event.x)

    async def _go_to_column(self, column: int) -> None:
        start, width = self._bar
        duration = self.position.duration
        if duration is not None and width and start <= column < start + width:
            await self.run_action(f"screen.seek_to({duration * (column - start) / (width - 1)})")

    def _state(self) -> Line:
        now = self.position
        ink = NOTICE if self.has_focus else BRIGHT
        line = Line(f" {'■' if now.ended else '▶' if now.playing else '‖'} ", ink).add(" ")
        if self.typed is not None:
            hint = key_words(" m:ss ⏎  ", self.view.appearance)
            return line.add("go to ", DIM).add(self.typed, BRIGHT).add(" ", NOTICE).add(hint, DIM)
        whole = NOT_YET if now.duration is None else clock(now.duration)
        line.add(clock(now.seconds).rjust(len(whole)), BRIGHT).add(f" / {whole}  ", DIM)
        if now.seeking is not None:
            return line.add(f"going there {now.seeking:4.0%}  ", WAITING)
        return line.add("   max" if now.speed is None else f"{now.speed:g}×".rjust(6), TEXT).add("  ")

    def _track(self, width: int) -> Line:
        """The bar: the part played, a knob, the part to come, and a mark wherever something changed."""
        now = self.position
        if now.duration is None:
            return Line("─" * width, FAINT)
        whole = max(now.duration, 1e-9)
        knob = min(width - 1, round(now.seconds / whole * (width - 1)))
        marked = {round(mark.seconds / whole * (width - 1)) for mark in now.marks}
        line = Line()
        for column in range(width):
            if column == knob:
                line.add("●", BRIGHT)
            elif column in marked:
                line.add("◆", WAITING)
            else:
                line.add("━" if column < knob else "─", TEXT if column < knob else FAINT)
        return line

    def _keys(self, width: int) -> Line:
        line = Line()
        passed = [mark.words for mark in self.position.marks if mark.seconds <= self.position.seconds]
        if passed and width >= 100:
            line.add(f"◆ {passed[-1]}  ", WAITING)
        if width >= 120:
            hints = (("[ ]", "10 s"), (", .", "step"), ("- +", "speed"), ("g", "go to"))
            line.join(key_hints(hints, self.view.appearance))
        return line


def clock(seconds: float) -> str:
    """m:ss, or h:mm:ss from an hour on."""
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def seconds_of(text: str) -> float | None:
    """Seconds from "m:ss", "h:mm:ss" or plain seconds; None if the text is not a time."""
    seconds = 0.0
    try:
        for part in text.split(":"):
            seconds = seconds * 60 + float(part)
    except ValueError:
        return None
    return seconds


class ReplayScreen(MonitorScreen):
    """The main screen with a replay bar above the footer, if there is room for it."""

    has_replay_bar = True
    _feed: ReplayFeed

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "hold the replay, and go on"),
        Binding("full_stop", "step(1)", "one second on, held still"),
        Binding("comma", "step(-1)", "one second back, held still"),
        Binding("right_square_bracket,ctrl+right", "seek_by(10)", "10 s on"),
        Binding("left_square_bracket,ctrl+left", "seek_by(-10)", "10 s back"),
        Binding("ctrl+home", "seek_to(0)", "to the start"),
        Binding("ctrl+end", "seek_to(1e9)", "to the end"),
        Binding("g", "go_to", "go to a time: m:ss ⏎"),
        Binding("plus,equals_sign", "faster(1)", "play faster"),
        Binding("minus", "faster(-1)", "play slower"),
    ]

    def compose(self) -> ComposeResult:
        yield from super().compose()
        yield ReplayBar(id="replay")

    def on_mount(self) -> None:
        self.set_interval(FOLLOW_SECONDS, self._follow)

    def panes(self) -> list[str]:
        return [*super().panes(), *(["replay"] if self.query_one(ReplayBar).display else [])]

    def action_pause(self) -> None:
        if self._feed.position().playing:
            self._feed.pause()
        else:
            self._feed.resume()
        self._follow()

    def action_step(self, ticks: int) -> None:
        self._feed.step(ticks)
        self._follow()

    def action_seek_by(self, seconds: float) -> None:
        self._feed.seek_by(seconds)
        self._follow()

    def action_seek_to(self, seconds: float) -> None:
        self._feed.seek_to(seconds)
        self._follow()

    def action_faster(self, steps: int) -> None:
        now = self._feed.position().speed or SPEEDS[-1]
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - now))
        self._feed.set_speed(SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + steps))])
        self._follow()

    def action_go_to(self) -> None:
        bar = self.query_one(ReplayBar)
        if bar.display:
            bar.ask()

    def _follow(self) -> None:
        position = self._feed.position()
        bar = self.query_one(ReplayBar)
        bar.position = position
        held = not position.playing and not position.ended
        if held != self.view.paused:
            self._change(paused=held)
        elif self.is_current:
            bar.redraw()
