"""Themes: which colour each role of the palette has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color, blend_rgb

FADED = "/faded"
LIFTED = "/lifted"
FADE = 0.62
LIFT = 0.45


@dataclass(frozen=True, eq=False)
class Theme:
    """A colour (#rrggbb) for each role; `words` say what it is like."""

    name: str
    words: str
    colours: Mapping[str, str]
    light: bool = False


DARK = Theme(
    "dark",
    "light letters on a dark ground",
    {
        "ground": "#10141a",
        "raised": "#1b212a",
        "selected": "#243041",
        "text": "#c9d1d9",
        "bright": "#f0f4f8",
        "dim": "#98a2ae",
        "faint": "#77818d",
        "frame": "#39424f",
        "frame-focused": "#8fa3ba",
        "title": "#aab6c3",
        "brand": "#aab6c3",
        "notice": "#d8dee6",
        "on-notice": "#10141a",
        "loss": "#f0625a",
        "loss-ground": "#b5342f",
        "on-loss": "#ffffff",
        "loss-soft-ground": "#43211f",
        "on-loss-soft": "#f59089",
        "calm-ground": "#2b3a35",
        "on-calm": "#dbe6df",
        "gain": "#6fd09a",
        "state-ok": "#6fd09a",
        "state-denied": "#e3c65b",
        "state-stale": "#8f9fd0",
        "state-failed": "#ef8f3f",
        "host-chart": "#8a9bb0",
        "host-soft": "#55657a",
        "device-chart": "#5f9fc4",
        "device-soft": "#34546a",
        "trough": "#2a323d",
        "waiting": "#7d5a28",
        "on-phase": "#10141a",
        "phase-data": "#e3a44a",
        "phase-transfer": "#d98cb3",
        "phase-forward": "#56a8e0",
        "phase-backward": "#8e82e6",
        "phase-optimizer": "#a9bf57",
        "phase-communication": "#c77fe0",
        "phase-save": "#45b5aa",
        "phase-outside": "#858e99",
        "code-user": "#e8c170",
        "code-torch": "#d98a6c",
        "code-library": "#7fa6c9",
        "code-stdlib": "#8fae8b",
        "code-native": "#9a94b8",
        "process-launcher": "#9fb0c3",
        "process-rank": "#7fb2e5",
        "process-worker": "#d3ab6a",
        "process-other": "#858e99",
        "syntax-comment": "#77818d",
        "syntax-string": "#a8c690",
        "syntax-number": "#d8b48a",
        "syntax-keyword": "#c59ad6",
        "syntax-builtin": "#8cb8d8",
        "syntax-decorator": "#d8c48a",
        "syntax-name": "#9cc7e8",
    },
)

ROLES = frozenset(DARK.colours)


@lru_cache(maxsize=4096)
def colour_of(theme: Theme, name: str) -> Color:
    """The colour that a theme has for a role; FADED is most of the way to the ground, LIFTED away from it.

    What is no role stands for itself: #rrggbb, or a colour's own name.
    """
    base, _, how = name.partition("/")
    colour = Color.parse(theme.colours.get(base, base))
    if not how:
        return colour
    towards, far = (theme.colours["ground"], FADE) if f"/{how}" == FADED else (theme.colours["bright"], LIFT)
    return Color.from_triplet(blend_rgb(colour.get_truecolor(), Color.parse(towards).get_truecolor(), far))
