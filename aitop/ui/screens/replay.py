"""The main screen on a recording: the same panes, and a line to play, hold, step, seek and change the speed with."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from aitop.engine.position import SPEEDS, Position
from aitop.ui.layout import Box, Plan
from aitop.ui.panes.replay_bar import ReplayBar, SeekTo
from aitop.ui.screens.monitor import MonitorScreen

LEAST_ROWS = 12
LOOK_SECONDS = 0.2


@runtime_checkable
class Seekable(Protocol):
    """A feed that can be played from anywhere: see engine.replay."""

    def position(self) -> Position: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def step(self, ticks: int) -> None: ...
    def seek_by(self, seconds: float) -> None: ...
    def seek_to(self, seconds: float) -> None: ...
    def set_speed(self, speed: float) -> None: ...


class ReplayScreen(MonitorScreen):
    """The main screen with a line for the replay above the footer, where there is room for one."""

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
        self.set_interval(LOOK_SECONDS, self._follow)

    def on_seek_to(self, message: SeekTo) -> None:
        self.action_seek_to(message.seconds)

    def action_pause(self) -> None:
        if self._replay.position().playing:
            self._replay.pause()
        else:
            self._replay.resume()
        self._follow()

    def action_step(self, ticks: int) -> None:
        self._replay.step(ticks)
        self._follow()

    def action_seek_by(self, seconds: float) -> None:
        self._replay.seek_by(seconds)
        self._follow()

    def action_seek_to(self, seconds: float) -> None:
        self._replay.seek_to(seconds)
        self._follow()

    def action_faster(self, steps: int) -> None:
        now = self._replay.position().speed or SPEEDS[-1]
        nearest = min(range(len(SPEEDS)), key=lambda index: abs(SPEEDS[index] - now))
        self._replay.set_speed(SPEEDS[max(0, min(len(SPEEDS) - 1, nearest + steps))])
        self._follow()

    def action_go_to(self) -> None:
        bar = self.query_one(ReplayBar)
        if bar.display:
            bar.ask()

    @property
    def _replay(self) -> Seekable:
        feed = self._feed
        assert isinstance(feed, Seekable), "a replay screen has a feed that can seek"
        return feed

    def _follow(self) -> None:
        """Bring the line to where the replay stands."""
        position = self._replay.position()
        bar = self.query_one(ReplayBar)
        bar.position = position
        held = not position.playing and not position.ended
        if held != self.view.paused:
            self._change(paused=held)
        elif self.is_current:
            bar.redraw()

    def _rows_below(self) -> int:
        return 1 if self.size.height >= LEAST_ROWS else 0

    def _refitted(self, wanted: Plan) -> Plan:
        wanted = super()._refitted(wanted)
        if not self._rows_below():
            return wanted
        last = self.size.height - 1
        moved = {
            name: Box(0, last, box.width, 1, False) if name in ("footer", "filter") else box
            for name, box in wanted.items()
        }
        return {**moved, "replay": Box(0, last - 1, self.size.width, 1, False)}
