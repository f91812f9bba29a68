"""Themes: the colour of each role, the theme that suits a terminal, and the same for what Textual draws itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rich.color import Color, blend_rgb
from rich.style import Style
from textual.theme import Theme as TextualTheme

from aitop.model.settings import Settings

FADED = "/faded"
LIFTED = "/lifted"
FADE = 0.62
LIFT = 0.45


@dataclass(frozen=True, eq=False)
class Theme:
    """A colour for each role, as #rrggbb or as the name of one of a terminal's sixteen; `words` describe the theme.

    `ansi` themes use the terminal's own colours. `mono` themes have none: letters, bold and reverse instead.
    Panes draw Rich styles, so roles are resolved to Rich colours here; Textual's own themes are made of the same table.
    """

    name: str
    words: str
    colours: Mapping[str, str]
    light: bool = False
    ansi: bool = False
    mono: bool = False


DARK = Theme(
    "dark",
    "light text on a dark background",
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
LIGHT = Theme(
    "light",
    "dark text on a light background",
    {
        "ground": "#fbfcfd",
        "raised": "#eef1f4",
        "selected": "#dbe7f5",
        "text": "#24292f",
        "bright": "#0b0e12",
        "dim": "#4f5862",
        "faint": "#68717b",
        "frame": "#c3cbd4",
        "frame-focused": "#57677a",
        "title": "#3a4653",
        "brand": "#3a4653",
        "notice": "#2c3744",
        "on-notice": "#ffffff",
        "loss": "#b3261e",
        "loss-ground": "#b3261e",
        "on-loss": "#ffffff",
        "loss-soft-ground": "#f8d9d6",
        "on-loss-soft": "#8f1c15",
        "calm-ground": "#d5e6dc",
        "on-calm": "#1d4a33",
        "gain": "#14703c",
        "state-ok": "#14703c",
        "state-denied": "#7a5c00",
        "state-stale": "#4553a5",
        "state-failed": "#a14700",
        "host-chart": "#64768c",
        "host-soft": "#a9b7c6",
        "device-chart": "#2f7fae",
        "device-soft": "#a9cfe4",
        "trough": "#e3e8ed",
        "waiting": "#d9b27a",
        "on-phase": "#ffffff",
        "phase-data": "#9a5b00",
        "phase-transfer": "#a8326f",
        "phase-forward": "#0b66a8",
        "phase-backward": "#5a46c0",
        "phase-optimizer": "#54690a",
        "phase-communication": "#8b2fb0",
        "phase-save": "#0b6e66",
        "phase-outside": "#5f6873",
        "code-user": "#8a5a00",
        "code-torch": "#a3421d",
        "code-library": "#2b6296",
        "code-stdlib": "#3c6b36",
        "code-native": "#5f5690",
        "process-launcher": "#4a5a6d",
        "process-rank": "#0b66a8",
        "process-worker": "#8a5a00",
        "process-other": "#5f6873",
        "syntax-comment": "#68717b",
        "syntax-string": "#3c6b1e",
        "syntax-number": "#94520f",
        "syntax-keyword": "#7a3596",
        "syntax-builtin": "#1f5f92",
        "syntax-decorator": "#7a5c00",
        "syntax-name": "#0b5a94",
    },
    light=True,
)


# Found by moving hues until every two phases differ for normal sight and for each of the three kinds of colour
# blindness; loss and gain are orange and blue.
COLOUR_BLIND = Theme(
    "colour-blind",
    "dark, with hues that every eye can tell apart",
    {
        **DARK.colours,
        "loss": "#ff9140",
        "loss-ground": "#a34700",
        "loss-soft-ground": "#46290f",
        "on-loss-soft": "#ffb37a",
        "calm-ground": "#1f3a55",
        "on-calm": "#dce9f7",
        "gain": "#7cc4ff",
        "state-ok": "#7cc4ff",
        "state-denied": "#f0e442",
        "state-stale": "#9a9fb8",
        "state-failed": "#ff9140",
        "phase-data": "#c2bd3b",
        "phase-transfer": "#ffe0ff",
        "phase-forward": "#5ab4ff",
        "phase-backward": "#6c70ff",
        "phase-optimizer": "#b0ff04",
        "phase-communication": "#ff76d4",
        "phase-save": "#27f3b3",
        "phase-outside": "#868e98",
        "code-user": "#f0e442",
        "code-torch": "#ff9a5c",
        "code-library": "#5ab4ff",
        "code-stdlib": "#b8bec6",
        "code-native": "#8a86d8",
        "process-rank": "#5ab4ff",
        "process-worker": "#e5b94e",
    },
)
SIXTEEN = Theme(
    "16-colour",
    "the sixteen colours that every terminal has",
    {
        **dict.fromkeys(DARK.colours, "white"),
        "ground": "black",
        "raised": "black",
        "selected": "blue",
        "bright": "bright_white",
        "faint": "bright_black",
        "frame": "bright_black",
        "frame-focused": "bright_white",
        "brand": "white",
        "notice": "white",
        "on-notice": "black",
        "loss": "bright_red",
        "loss-ground": "red",
        "on-loss": "bright_white",
        "loss-soft-ground": "bright_red",
        "on-loss-soft": "black",
        "calm-ground": "bright_green",
        "on-calm": "black",
        "gain": "bright_green",
        "state-ok": "bright_green",
        "state-denied": "bright_yellow",
        "state-stale": "bright_cyan",
        "state-failed": "bright_red",
        "host-soft": "bright_black",
        "device-chart": "bright_cyan",
        "device-soft": "bright_black",
        "trough": "black",
        "waiting": "yellow",
        "on-phase": "black",
        "phase-data": "bright_yellow",
        "phase-transfer": "bright_magenta",
        "phase-forward": "bright_cyan",
        "phase-backward": "bright_blue",
        "phase-optimizer": "bright_green",
        "phase-communication": "magenta",
        "phase-save": "cyan",
        "phase-outside": "white",
        "code-user": "bright_yellow",
        "code-torch": "bright_magenta",
        "code-library": "bright_cyan",
        "code-native": "bright_blue",
        "process-rank": "bright_cyan",
        "process-worker": "bright_yellow",
        "syntax-comment": "bright_black",
        "syntax-string": "bright_green",
        "syntax-number": "bright_yellow",
        "syntax-keyword": "bright_magenta",
        "syntax-builtin": "bright_cyan",
    },
    ansi=True,
)
MONO = Theme(
    "monochrome",
    "no colours: letters, bold and reverse",
    dict.fromkeys(DARK.colours, "default"),
    ansi=True,
    mono=True,
)
THEMES = {theme.name: theme for theme in (DARK, LIGHT, COLOUR_BLIND, SIXTEEN, MONO)}
"""In the order in which the key goes through them."""
_UNDERLAID = frozenset({"ground", "raised", "trough"})
_SOFT = frozenset({"faint", "frame", "dim", "syntax-comment"})


def after(theme: Theme) -> Theme:
    """The next theme, the first one after the last."""
    names = list(THEMES)
    return THEMES[names[(names.index(theme.name) + 1) % len(names)]]


@lru_cache(maxsize=4096)
def colour_of(theme: Theme, name: str) -> Color:
    """The colour that a theme has for a role; FADED is most of the way to the ground, LIFTED away from it.

    What is no role stands for itself: #rrggbb, or a colour's own name.
    """
    base, _, how = name.partition("/")
    colour = Color.parse(theme.colours.get(base, base))
    if not how or theme.mono:
        return colour
    if theme.ansi:
        return Color.parse(theme.colours["faint" if f"/{how}" == FADED else "bright"])
    towards, far = (theme.colours["ground"], FADE) if f"/{how}" == FADED else (theme.colours["bright"], LIFT)
    return Color.from_triplet(blend_rgb(colour.get_truecolor(), Color.parse(towards).get_truecolor(), far))


@lru_cache(maxsize=4096)
def themed(style: Style, theme: Theme) -> Style:
    """A style of the palette with the colours that its roles have in a theme."""
    ink, ground = style.color, style.bgcolor
    if theme.mono:
        return style + _without_colour(ink.name if ink else "", ground.name if ground else "ground")
    return style + Style(
        color=colour_of(theme, ink.name) if ink else None, bgcolor=colour_of(theme, ground.name) if ground else None
    )


def _without_colour(ink: str, ground: str) -> Style:
    """Without colours: reverse video in place of a coloured ground, dim for what is less important."""
    reverse = ground.partition("/")[0] not in _UNDERLAID and (ink.startswith("on-") or ground.startswith("selected"))
    return Style(color="default", bgcolor="default", reverse=reverse or None, dim=ink in _SOFT or None)


@dataclass(frozen=True)
class Look:
    """What the terminal can show. `ascii`: no other glyphs."""

    theme: Theme = DARK
    ascii: bool = False

    @property
    def mono(self) -> bool:
        """Whether there are no colours: phases then have letters."""
        return self.theme.mono


NO_UNICODE = frozenset({"linux", "dumb", "vt100", "vt102", "vt220"})
NO_COLOURS = frozenset({"dumb", "vt100", "vt102", "vt220"})
LIGHT_GROUNDS = frozenset({"7", "15"})


def look_for(settings: Settings, environment: Mapping[str, str], encoding: str | None) -> Look:
    """The look that the settings ask for; the rest follows from the terminal and the locale's `encoding`."""
    theme = THEMES[settings.theme] if settings.theme else theme_for(environment)
    plain = settings.ascii
    if plain is None:
        plain = environment.get("TERM", "") in NO_UNICODE or "utf" not in (encoding or "utf-8").lower()
    return Look(theme, plain)


def theme_for(environment: Mapping[str, str]) -> Theme:
    """The theme that suits NO_COLOR, TERM, COLORTERM and COLORFGBG (in which some terminals name their background)."""
    terminal = environment.get("TERM", "")
    if environment.get("NO_COLOR") or terminal in NO_COLOURS:
        return MONO
    many = environment.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    if not many and terminal and not any(word in terminal for word in ("256color", "kitty", "direct", "ghostty")):
        return SIXTEEN
    return LIGHT if environment.get("COLORFGBG", "").rpartition(";")[2] in LIGHT_GROUNDS else DARK


def textual_theme(theme: Theme) -> TextualTheme:
    """The theme for what Textual draws itself: the command palette, and the ground under the panes."""
    colours = {name: _textual_colour(theme, colour) for name, colour in theme.colours.items()}
    return TextualTheme(
        name=f"aitop-{theme.name}",
        primary=colours["frame-focused"],
        secondary=colours["device-chart"],
        accent=colours["title"],
        warning=colours["state-denied"],
        error=colours["loss"],
        success=colours["gain"],
        foreground=colours["text"],
        background=colours["ground"],
        surface=colours["raised"],
        panel=colours["raised"],
        dark=not theme.light,
        variables={
            "aitop-ground": colours["ground"],
            "aitop-raised": colours["raised"],
            "block-cursor-background": "ansi_white" if theme.mono else colours["selected"],
            "block-cursor-foreground": "ansi_black" if theme.mono else colours["bright"],
            "block-cursor-text-style": "bold",
        },
    )


def _textual_colour(theme: Theme, colour: str) -> str:
    return f"ansi_{colour}" if theme.ansi else colour
