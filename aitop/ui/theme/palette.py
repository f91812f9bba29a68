"""A style for each meaning: one hue a phase, red only for loss, green only for gain.

The colours in these styles are names of roles. `themes.themed` replaces them by the colours of the theme when a line
is put on the screen; until then a role has the colour of the dark theme.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rich.color import Color, ColorType
from rich.style import Style

from aitop.model.ledger import ACTIVITIES, Activity
from aitop.model.phases import MEASURED, SERVED, TIMED_ALONE, MeasuredPhase
from aitop.ui.theme.themes import DARK, FADED, LIFTED, colour_of


@lru_cache(maxsize=512)
def role(name: str) -> Color:
    """A colour that stands for a role; `name` is a role of `themes`, perhaps followed by FADED or LIFTED."""
    return Color(name, ColorType.TRUECOLOR, None, colour_of(DARK, name).get_truecolor())


@lru_cache(maxsize=256)
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
BRAND = _style("on-notice", "title", bold=True)
LOSS = _style("loss", bold=True)
SEVERITY_LABELS = {
    "critical": _style("on-loss", "loss-ground", bold=True),
    "warning": _style("on-loss-soft", "loss-soft-ground", bold=True),
    "info": _style("on-calm", "calm-ground", bold=True),
}
GAIN = _style("gain", bold=True)
NOTICE = _style("on-notice", "notice", bold=True)
STATE_OK = _style("gain")
STATE_DENIED = _style("state-denied", bold=True)
STATE_STALE = _style("state-stale")
STATE_FAILED = _style("state-failed", bold=True)
HOST_CHART = _style("host-chart")
HOST_SOFT = _style("host-soft")
DEVICE_CHART = _style("device-chart")
DEVICE_SOFT = _style("device-soft")
TROUGH = _style("trough")
WAITING = _style("waiting")
SYNTAX = {
    "Comment": _style("faint", italic=True),
    "Literal.String": _style("syntax-string"),
    **dict.fromkeys(("Literal.Number", "Name.Decorator"), _style("syntax-number")),
    **dict.fromkeys(("Keyword", "Operator.Word"), _style("syntax-keyword")),
    **dict.fromkeys(("Name.Builtin", "Name.Function", "Name.Class"), _style("syntax-builtin")),
}
"""Styles by Pygments token type; a type includes its subtypes."""


class Kind(NamedTuple):
    """Something with its own hue, such as a phase: key, name, letter for themes without colours, role, short name."""

    key: str
    name: str
    letter: str
    hue: str
    short: str = ""

    @property
    def ink(self) -> Style:
        """A style with the hue as foreground, for names, block characters and markers."""
        return _style(self.hue)

    @property
    def fill(self) -> Style:
        """A style with the hue as background and a readable foreground, for labelled fields."""
        return _style("dim", self.hue) if self.hue == "trough" else _style("on-phase", self.hue, bold=True)


CODE_KINDS = (
    Kind("user", "yours", "U", "code-user"),
    Kind("torch", "torch", "T", "code-torch"),
    Kind("library", "library", "L", "code-library"),
    Kind("stdlib", "Python", "P", "code-stdlib"),
    Kind("native", "native", "N", "code-native"),
)
"""Whose code a frame is in."""
CODE_KIND = {kind.key: kind for kind in CODE_KINDS}
_PROCESSES = {
    "launcher": Kind("launcher", "launcher", "l", "title"),
    "rank": Kind("rank", "rank", "r", "process-rank"),
    "loader-worker": Kind("loader-worker", "worker", "w", "process-worker"),
}
_OTHER_PROCESS = Kind("other", "other", "o", "phase-outside")


def process_kind(role: str) -> Kind:
    """The Kind of processes with this role; one common Kind for helpers and others."""
    return _PROCESSES.get(role, _OTHER_PROCESS)


DATA = Kind("data_wait", "data", "D", "phase-data", "data")
TRANSFER = Kind("transfer", "transfer", "T", "phase-transfer", "copy")
FORWARD = Kind("forward", "forward", "F", "phase-forward", "fwd")
BACKWARD = Kind("backward", "backward", "B", "phase-backward", "bwd")
OPTIMIZER = Kind("optimizer", "optimizer", "O", "phase-optimizer", "opt")
COMMUNICATION = Kind("communication", "exchange", "X", "phase-communication", "exch")
SAVE = Kind("save", "save/eval", "S", "phase-save", "save")
OUTSIDE = Kind("outside", "host", "-", "phase-outside", "host")
_HUES = {phase.key: phase for phase in (DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, SAVE, OUTSIDE)}


def in_hue_of_another(phase: MeasuredPhase) -> Kind:
    """The Kind of a phase without a hue of its own: it has its own name, and the hue of the phase named in `hue`."""
    return _HUES[phase.hue]._replace(key=phase.key, name=phase.key, letter=phase.key[0].upper(), short=phase.key[:4])


_ALONE = tuple(in_hue_of_another(phase) for phase in TIMED_ALONE if phase.key not in _HUES)
PHASES = (*(phase for phase in _HUES.values() if phase is not OUTSIDE), *_ALONE, OUTSIDE)
"""The phases of a step, in the order in which they are stacked and listed."""
# By the keys of the ledger and those of the palette, which differ for some phases.
_BY_KEY: dict[str, Kind] = {phase.key: _HUES[phase.hue] for phase in (*MEASURED, *SERVED)}
_BY_KEY |= {phase.key: phase for phase in PHASES} | {"loader_start": DATA, "environment": DATA}


def phase_of(key: str) -> Kind:
    """The Kind of the phase with this key; OUTSIDE for an unknown key."""
    return _BY_KEY.get(key, OUTSIDE)


QUEUE = Kind("queue", "queue", "Q", "phase-communication", "queue")
PREPROCESS = Kind("preprocess", "preprocess", "E", "phase-data", "pre")
SCHEDULE = Kind("schedule", "schedule", "S", "phase-optimizer", "sched")
PREPARE = Kind("prepare", "prepare", "P", "phase-transfer", "prep")
MODEL = Kind("model", "model", "M", "phase-forward", "model")
SAMPLE = Kind("sample", "sample", "A", "phase-backward", "samp")
OUTPUT = Kind("output", "output", "U", "phase-save", "out")
POSTPROCESS = Kind("postprocess", "postprocess", "T", "phase-save", "post")
REST = Kind("rest", "else", "-", "phase-outside", "else")
IDLE = Kind("idle", "idle", ".", "trough", "idle")
TURN_PARTS = (SCHEDULE, PREPARE, MODEL, SAMPLE, OUTPUT, REST, IDLE)
REQUEST_PARTS = (QUEUE, PREPROCESS, MODEL, POSTPROCESS, REST)
"""The parts of an engine's turn and of a request, in the order of drawing; all but REST are fields of their records."""
PREFILL = Kind("prefill", "prefill", "F", "phase-data", "pre")
MIXED = Kind("mixed", "mixed", "X", "phase-transfer", "mix")
DECODE = Kind("decode", "decode", "D", "phase-forward", "dec")
TURNS = (PREFILL, MIXED, DECODE)
"""The kinds of an engine's turns."""
LATENCIES = Kind("latencies", "requests", "o", "host-soft", "requests")
TAIL = Kind("tail", "slowest", "O", "host-chart", "slowest")
TAIL_CAUSE = Kind("cause", "cause", "X", "loss", "cause")
OTHER_CAUSE = Kind("other", "other cause", "Z", "state-denied", "other")
"""The parts of a column of the latency histogram: all requests, the slowest ones, and the causes of their slowness."""


def doing(activity: Activity) -> Kind:
    """The Kind of an activity in the time of REST, named in the words of the ledger."""
    words = ACTIVITIES[activity]
    return Kind(activity, words, words[0].upper(), REST.hue, words.partition(" ")[0])


@lru_cache(maxsize=512)
def dimmed(style: Style) -> Style:
    """The style with faded colours, for stale values."""
    return style + Style(color=_changed(style.color, FADED), bgcolor=_changed(style.bgcolor, FADED))


@lru_cache(maxsize=512)
def lifted(style: Style) -> Style:
    """The style with brighter foreground and background, for what is at the cursor."""
    ground = _changed(style.bgcolor, LIFTED) or role(SELECTED)
    return style + Style(color=_changed(style.color, LIFTED), bgcolor=ground)


def _changed(color: Color | None, how: str) -> Color | None:
    """The role with FADED or LIFTED added, unchanged if it has one of them already."""
    return color if color is None or color.name.endswith((FADED, LIFTED)) else role(color.name + how)


@lru_cache(maxsize=64)
def over(ink: Style, under: Style) -> Style:
    """Two hues in one cell: the foreground colour of `ink` on the foreground colour of `under`."""
    return Style(color=ink.color, bgcolor=under.color)


@lru_cache(maxsize=512)
def clickable(style: Style, action: str) -> Style:
    """The style with a click action: Textual runs `action` when the text is clicked."""
    return style + Style(meta={"@click": action})


@lru_cache(maxsize=1024)
def on(style: Style, background: str) -> Style:
    """The style on this background (the name of a role), unless it already has a background."""
    return style if style.bgcolor else style + Style(bgcolor=role(background))
