"""A style for each meaning: one hue a phase, red only for loss, green only for gain.

The colours in these styles are roles. The theme (see themes) gives each role its colour when a line is put on the
screen; until then a role has the colour of the dark theme.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rich.color import Color, ColorType
from rich.style import Style

from aitop.ui.theme.themes import DARK, FADED, LIFTED, colour_of


@lru_cache(maxsize=512)
def role(name: str) -> Color:
    """The colour with this meaning; `name` is one of themes.ROLES, maybe with FADED or LIFTED behind it."""
    return Color(name, ColorType.TRUECOLOR, None, colour_of(DARK, name).get_truecolor())


def _style(ink: str, ground: str | None = None, *, bold: bool = False, italic: bool = False) -> Style:
    return Style(
        color=role(ink), bgcolor=None if ground is None else role(ground), bold=bold or None, italic=italic or None
    )


BACKGROUND = "ground"
RAISED = "raised"
SELECTED = "selected"
TEXT = _style("text")
BRIGHT = _style("bright", bold=True)
DIM = _style("dim")
FAINT = _style("faint")
FRAME = _style("frame")
FRAME_FOCUSED = _style("frame-focused")
TITLE = _style("title", bold=True)
KEY = _style("bright", bold=True)
BRAND = _style("on-notice", "brand", bold=True)
LOSS = _style("loss", bold=True)
LOSS_LABEL = _style("on-loss", "loss-ground", bold=True)
LOSS_SOFT_LABEL = _style("on-loss-soft", "loss-soft-ground", bold=True)
CALM_LABEL = _style("on-calm", "calm-ground", bold=True)
GAIN = _style("gain", bold=True)
NOTICE = _style("on-notice", "notice", bold=True)
ALARM = _style("on-loss", "loss-ground", bold=True)
STATE_OK = _style("state-ok")
STATE_ABSENT = _style("dim")
STATE_DENIED = _style("state-denied", bold=True)
STATE_STALE = _style("state-stale")
STATE_FAILED = _style("state-failed", bold=True)
HOST_CHART = _style("host-chart")
HOST_SOFT = _style("host-soft")
DEVICE_CHART = _style("device-chart")
DEVICE_SOFT = _style("device-soft")
TROUGH = _style("trough")
WAITING = _style("waiting")
SYNTAX_COMMENT = _style("syntax-comment", italic=True)
SYNTAX_STRING = _style("syntax-string")
SYNTAX_NUMBER = _style("syntax-number")
SYNTAX_KEYWORD = _style("syntax-keyword")
SYNTAX_BUILTIN = _style("syntax-builtin")
SYNTAX_DECORATOR = _style("syntax-decorator")
SYNTAX_NAME = _style("syntax-name")


class Kind(NamedTuple):
    """A kind of thing with a hue of its own: its key, its name, and its letter where there are no colours."""

    key: str
    name: str
    letter: str
    hue: str

    @property
    def ink(self) -> Style:
        """The hue as foreground: names, block characters, markers."""
        return _ink(self.hue)

    @property
    def fill(self) -> Style:
        """The hue as background with its label on it: a box."""
        return _fill(self.hue)


USER_CODE = Kind("user", "yours", "U", "code-user")
TORCH_CODE = Kind("torch", "torch", "T", "code-torch")
LIBRARY_CODE = Kind("library", "library", "L", "code-library")
STANDARD_CODE = Kind("stdlib", "Python", "P", "code-stdlib")
NATIVE_CODE = Kind("native", "native", "N", "code-native")
CODE_KINDS = (USER_CODE, TORCH_CODE, LIBRARY_CODE, STANDARD_CODE, NATIVE_CODE)
"""Whose code a frame is in."""
LAUNCHER = Kind("launcher", "launcher", "l", "process-launcher")
RANK = Kind("rank", "rank", "r", "process-rank")
WORKER = Kind("loader-worker", "worker", "w", "process-worker")
OTHER_PROCESS = Kind("other", "other", "o", "process-other")
PROCESS_KINDS = (LAUNCHER, RANK, WORKER, OTHER_PROCESS)
"""What a process is to the job."""


class Phase(NamedTuple):
    """A phase of a step: its key, its names (full and short), its letter where there are no colours, its hue."""

    key: str
    name: str
    short: str
    letter: str
    hue: str

    @property
    def ink(self) -> Style:
        """The hue as foreground: block characters, charts, markers."""
        return _ink(self.hue)

    @property
    def fill(self) -> Style:
        """The hue as background with its label on it: a bar that carries its label."""
        return _fill(self.hue)


DATA = Phase("data_wait", "data", "data", "D", "phase-data")
TRANSFER = Phase("transfer", "transfer", "copy", "T", "phase-transfer")
FORWARD = Phase("forward", "forward", "fwd", "F", "phase-forward")
BACKWARD = Phase("backward", "backward", "bwd", "B", "phase-backward")
OPTIMIZER = Phase("optimizer", "optimizer", "opt", "O", "phase-optimizer")
COMMUNICATION = Phase("communication", "comms", "comm", "C", "phase-communication")
SAVE = Phase("save", "save/eval", "save", "S", "phase-save")
OUTSIDE = Phase("outside", "outside", "else", "-", "phase-outside")
PHASES = (DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, SAVE, OUTSIDE)
"""In the order in which they are stacked and listed."""
_BY_KEY = {phase.key: phase for phase in PHASES} | {
    "evaluation": SAVE,
    "loader_start": DATA,
    "gc": OUTSIDE,
    # As the ledger names them.
    "data": DATA,
    "environment": DATA,
    "exchange": COMMUNICATION,
    "host": OUTSIDE,
}


def phase_of(key: str) -> Phase:
    """The phase with this key; anything unknown is outside the step."""
    return _BY_KEY.get(key, OUTSIDE)


@lru_cache(maxsize=512)
def dimmed(style: Style) -> Style:
    """The style with faded colours: for stale values."""
    return Style(color=_changed(style.color, FADED), bgcolor=_changed(style.bgcolor, FADED), bold=style.bold)


@lru_cache(maxsize=512)
def lifted(style: Style) -> Style:
    """The style further from the background: for what is under the cursor."""
    ground = _changed(style.bgcolor, LIFTED) or role(SELECTED)
    return Style(color=_changed(style.color, LIFTED), bgcolor=ground, bold=style.bold)


def _changed(color: Color | None, how: str) -> Color | None:
    """The role, faded or lifted unless it already is."""
    return color if color is None or color.name.endswith((FADED, LIFTED)) else role(color.name + how)


@lru_cache(maxsize=64)
def over(ink: Style, under: Style) -> Style:
    """The foreground of `ink` on a background in the foreground of `under`: two hues in one cell."""
    return Style(color=ink.color, bgcolor=under.color)


@lru_cache(maxsize=512)
def clickable(style: Style, action: str) -> Style:
    """The style, with a click on it running this action of the screen."""
    return style + Style(meta={"@click": action})


@lru_cache(maxsize=1024)
def on(style: Style, background: str) -> Style:
    """The style on this background (a role), unless it has its own."""
    return style if style.bgcolor else style + Style(bgcolor=role(background))


@lru_cache(maxsize=64)
def _ink(hue: str) -> Style:
    return _style(hue)


@lru_cache(maxsize=64)
def _fill(hue: str) -> Style:
    return _style("on-phase", hue, bold=True)
