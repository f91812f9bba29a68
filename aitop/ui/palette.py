"""Every colour of the screen, and what it means: one hue a phase, red only for loss, green only for gain."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rich.color import Color, blend_rgb
from rich.style import Style

BACKGROUND = "#10141a"
RAISED = "#1b212a"
SELECTED = "#243041"
FADE = 0.62
LIFT = 0.45

TEXT = Style(color="#c9d1d9")
BRIGHT = Style(color="#f0f4f8", bold=True)
DIM = Style(color="#7d8793")
FAINT = Style(color="#465060")
FRAME = Style(color="#39424f")
FRAME_FOCUSED = Style(color="#8fa3ba")
TITLE = Style(color="#aab6c3", bold=True)
KEY = Style(color="#f0f4f8", bold=True)
BRAND = Style(color="#10141a", bgcolor="#aab6c3", bold=True)

LOSS = Style(color="#f0625a", bold=True)
LOSS_LABEL = Style(color="#ffffff", bgcolor="#b5342f", bold=True)
LOSS_SOFT_LABEL = Style(color="#f59089", bgcolor="#43211f", bold=True)
CALM_LABEL = Style(color="#dbe6df", bgcolor="#2b3a35", bold=True)
GAIN = Style(color="#6fd09a", bold=True)
NOTICE = Style(color="#10141a", bgcolor="#d8dee6", bold=True)

STATE_OK = Style(color="#6fd09a")
STATE_ABSENT = Style(color="#7d8793")
STATE_DENIED = Style(color="#e3c65b", bold=True)
STATE_STALE = Style(color="#8f9fd0")
STATE_FAILED = Style(color="#ef8f3f", bold=True)

HOST_CHART = Style(color="#8a9bb0")
HOST_SOFT = Style(color="#55657a")
DEVICE_CHART = Style(color="#5f9fc4")
DEVICE_SOFT = Style(color="#34546a")
TROUGH = Style(color="#2a323d")
WAITING = Style(color="#7d5a28")


class Phase(NamedTuple):
    """How one phase of a step is drawn: its key, its names (full and short), its letter without colour, its hue."""

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
        """The hue as background with dark letters on it: a bar that carries its label."""
        return _fill(self.hue)


DATA = Phase("data_wait", "data", "data", "D", "#e3a44a")
TRANSFER = Phase("transfer", "transfer", "copy", "T", "#d98cb3")
FORWARD = Phase("forward", "forward", "fwd", "F", "#56a8e0")
BACKWARD = Phase("backward", "backward", "bwd", "B", "#8e82e6")
OPTIMIZER = Phase("optimizer", "optimizer", "opt", "O", "#a9bf57")
COMMUNICATION = Phase("communication", "comms", "comm", "C", "#c77fe0")
SAVE = Phase("save", "save/eval", "save", "S", "#45b5aa")
OUTSIDE = Phase("outside", "outside", "else", "-", "#6f7883")

PHASES = (DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, SAVE, OUTSIDE)
"""In the order in which they are stacked and listed."""

_BY_KEY = {phase.key: phase for phase in PHASES} | {"evaluation": SAVE, "loader_start": DATA, "gc": OUTSIDE}


def phase_of(key: str) -> Phase:
    """The phase with this key; anything unknown is outside the step."""
    return _BY_KEY.get(key, OUTSIDE)


@lru_cache(maxsize=512)
def dimmed(style: Style) -> Style:
    """The same style with its hues drawn back: for values that have gone stale."""
    return Style(color=_faded(style.color), bgcolor=_faded(style.bgcolor), bold=style.bold)


def _faded(color: Color | None) -> Color | None:
    """The colour, most of the way to the background."""
    if color is None:
        return None
    ground = Color.parse(BACKGROUND).get_truecolor()
    return Color.from_triplet(blend_rgb(color.get_truecolor(), ground, FADE))


@lru_cache(maxsize=512)
def lifted(style: Style) -> Style:
    """The same style nearer to white: what the cursor stands on."""
    return Style(color=_whiter(style.color), bgcolor=_whiter(style.bgcolor) or Color.parse(SELECTED), bold=style.bold)


def _whiter(color: Color | None) -> Color | None:
    """The colour, half of the way to white."""
    if color is None:
        return None
    return Color.from_triplet(blend_rgb(color.get_truecolor(), Color.parse("#ffffff").get_truecolor(), LIFT))


@lru_cache(maxsize=64)
def over(ink: Style, under: Style) -> Style:
    """The foreground of `ink` on a background in the foreground of `under`: two hues in one cell."""
    return Style(color=ink.color, bgcolor=under.color)


@lru_cache(maxsize=512)
def clickable(style: Style, action: str) -> Style:
    """The same style; a click on it runs the screen's action of this name."""
    return style + Style(meta={"@click": action})


@lru_cache(maxsize=1024)
def on(style: Style, background: str) -> Style:
    """The same style on this background, unless it has one of its own."""
    return style if style.bgcolor else style + Style(bgcolor=background)


@lru_cache(maxsize=32)
def _ink(hue: str) -> Style:
    return Style(color=hue)


@lru_cache(maxsize=32)
def _fill(hue: str) -> Style:
    return Style(color=BACKGROUND, bgcolor=hue, bold=True)
