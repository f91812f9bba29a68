"""Themes: the colour of each role, the choice of a theme for a terminal, and the themes for Textual's own widgets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec
from rich.color import Color, blend_rgb
from rich.style import Style
from textual.theme import Theme as TextualTheme

from aitop.model.settings import Settings

FADED = "/faded"
LIFTED = "/lifted"
FADE = 0.62
LIFT = 0.45

# In the colour-blind theme all phases can be told apart with normal sight and with each of the three kinds of colour
# blindness; loss and gain are orange and blue.
_TABLE = {
    # role: dark, light, colour-blind, 16-colour
    "ground": ("#10141a", "#fbfcfd", "#10141a", "black"),
    "raised": ("#1b212a", "#eef1f4", "#1b212a", "black"),
    "selected": ("#243041", "#dbe7f5", "#243041", "blue"),
    "text": ("#c9d1d9", "#24292f", "#c9d1d9", "white"),
    "bright": ("#f0f4f8", "#0b0e12", "#f0f4f8", "bright_white"),
    "dim": ("#98a2ae", "#4f5862", "#98a2ae", "white"),
    "faint": ("#77818d", "#68717b", "#77818d", "bright_black"),
    "frame": ("#39424f", "#c3cbd4", "#39424f", "bright_black"),
    "frame-focused": ("#8fa3ba", "#57677a", "#8fa3ba", "bright_white"),
    "title": ("#aab6c3", "#3a4653", "#aab6c3", "white"),
    "notice": ("#d8dee6", "#2c3744", "#d8dee6", "white"),
    "on-notice": ("#10141a", "#ffffff", "#10141a", "black"),
    "loss": ("#f0625a", "#b3261e", "#ff9140", "bright_red"),
    "loss-ground": ("#b5342f", "#b3261e", "#a34700", "red"),
    "on-loss": ("#ffffff", "#ffffff", "#ffffff", "bright_white"),
    "loss-soft-ground": ("#43211f", "#f8d9d6", "#46290f", "bright_red"),
    "on-loss-soft": ("#f59089", "#8f1c15", "#ffb37a", "black"),
    "calm-ground": ("#2b3a35", "#d5e6dc", "#1f3a55", "bright_green"),
    "on-calm": ("#dbe6df", "#1d4a33", "#dce9f7", "black"),
    "gain": ("#6fd09a", "#14703c", "#7cc4ff", "bright_green"),
    "state-denied": ("#e3c65b", "#7a5c00", "#f0e442", "bright_yellow"),
    "state-stale": ("#8f9fd0", "#4553a5", "#9a9fb8", "bright_cyan"),
    "state-failed": ("#ef8f3f", "#a14700", "#ff9140", "bright_red"),
    "host-chart": ("#8a9bb0", "#64768c", "#8a9bb0", "white"),
    "host-soft": ("#55657a", "#a9b7c6", "#55657a", "bright_black"),
    "device-chart": ("#5f9fc4", "#2f7fae", "#5f9fc4", "bright_cyan"),
    "device-soft": ("#34546a", "#a9cfe4", "#34546a", "bright_black"),
    "trough": ("#2a323d", "#e3e8ed", "#2a323d", "black"),
    "waiting": ("#7d5a28", "#d9b27a", "#7d5a28", "yellow"),
    "on-phase": ("#10141a", "#ffffff", "#10141a", "black"),
    "phase-data": ("#e3a44a", "#9a5b00", "#c2bd3b", "bright_yellow"),
    "phase-transfer": ("#d98cb3", "#a8326f", "#ffe0ff", "bright_magenta"),
    "phase-forward": ("#56a8e0", "#0b66a8", "#5ab4ff", "bright_cyan"),
    "phase-backward": ("#8e82e6", "#5a46c0", "#6c70ff", "bright_blue"),
    "phase-optimizer": ("#a9bf57", "#54690a", "#b0ff04", "bright_green"),
    "phase-communication": ("#c77fe0", "#8b2fb0", "#ff76d4", "magenta"),
    "phase-save": ("#45b5aa", "#0b6e66", "#27f3b3", "cyan"),
    "phase-outside": ("#858e99", "#5f6873", "#868e98", "white"),
    "code-user": ("#e8c170", "#8a5a00", "#f0e442", "bright_yellow"),
    "code-torch": ("#d98a6c", "#a3421d", "#ff9a5c", "bright_magenta"),
    "code-library": ("#7fa6c9", "#2b6296", "#5ab4ff", "bright_cyan"),
    "code-stdlib": ("#8fae8b", "#3c6b36", "#b8bec6", "white"),
    "code-native": ("#9a94b8", "#5f5690", "#8a86d8", "bright_blue"),
    "process-rank": ("#7fb2e5", "#0b66a8", "#5ab4ff", "bright_cyan"),
    "process-worker": ("#d3ab6a", "#8a5a00", "#e5b94e", "bright_yellow"),
    "syntax-string": ("#a8c690", "#3c6b1e", "#a8c690", "bright_green"),
    "syntax-number": ("#d8b48a", "#94520f", "#d8b48a", "bright_yellow"),
    "syntax-keyword": ("#c59ad6", "#7a3596", "#c59ad6", "bright_magenta"),
    "syntax-builtin": ("#8cb8d8", "#1f5f92", "#8cb8d8", "bright_cyan"),
}


class Theme(msgspec.Struct, frozen=True, eq=False):
    """A colour for each role, as #rrggbb or as the name of one of the 16 ANSI colours; `words` describe the theme.

    `ansi` themes use the terminal's own colours. `mono` themes have none, and use letters, bold and reverse instead.
    Panes draw Rich styles, so roles are resolved to Rich colours here; `textual_theme` uses the same table.
    """

    name: str
    words: str
    colours: Mapping[str, str]
    light: bool = False
    ansi: bool = False
    mono: bool = False


def _column(number: int) -> dict[str, str]:
    return {role: colours[number] for role, colours in _TABLE.items()}


DARK = Theme("dark", "light text on a dark background", _column(0))
LIGHT = Theme("light", "dark text on a light background", _column(1), light=True)
COLOUR_BLIND = Theme("colour-blind", "dark, with hues that every eye can tell apart", _column(2))
SIXTEEN = Theme("16-colour", "the sixteen colours that every terminal has", _column(3), ansi=True)
MONO = Theme(
    "monochrome", "no colours: letters, bold and reverse", dict.fromkeys(_TABLE, "default"), ansi=True, mono=True
)
THEMES = {theme.name: theme for theme in (DARK, LIGHT, COLOUR_BLIND, SIXTEEN, MONO)}
"""By name, in the order in which the key for the next theme goes through them."""
_UNDERLAID = frozenset({"ground", "raised", "trough"})
_SOFT = frozenset({"faint", "frame", "dim"})


@lru_cache(maxsize=4096)
def colour_of(theme: Theme, name: str) -> Color:
    """The colour of a role in a theme; with FADED after the name it is closer to "ground", with LIFTED to "bright".

    A name that is not a role is taken as a colour: #rrggbb, or a colour's name.
    """
    base, _, how = name.partition("/")
    colour = Color.parse(theme.colours.get(base, base))
    if not how or theme.mono:
        return colour
    if theme.ansi:
        return Color.parse(theme.colours["faint" if f"/{how}" == FADED else "bright"])
    towards, far = (theme.colours["ground"], FADE) if f"/{how}" == FADED else (theme.colours["bright"], LIFT)
    return Color.from_triplet(blend_rgb(colour.get_truecolor(), Color.parse(towards).get_truecolor(), far))


def _ground_of(theme: Theme, name: str) -> Color:
    """The colour of a role as a background. With sixteen colours all inks that are FADED or LIFTED look alike, so what
    is behind them has a colour that none of them has.
    """
    how = name.partition("/")[2]
    if theme.ansi and how:
        name = "ground" if f"/{how}" == FADED else "selected"
    return colour_of(theme, name)


@lru_cache(maxsize=4096)
def themed(style: Style, theme: Theme) -> Style:
    """A style of the palette with its roles replaced by the colours of a theme."""
    ink, ground = style.color, style.bgcolor
    if theme.mono:
        # Without colours: reverse video for coloured backgrounds, dim for less important text.
        name, under = ink.name if ink else "", ground.name if ground else "ground"
        reverse = under.partition("/")[0] not in _UNDERLAID and (name.startswith("on-") or under.startswith("selected"))
        soft = name.partition("/")[0] in _SOFT or name.endswith(FADED)
        return style + Style(color="default", bgcolor="default", reverse=reverse or None, dim=soft or None)
    return style + Style(
        color=colour_of(theme, ink.name) if ink else None, bgcolor=_ground_of(theme, ground.name) if ground else None
    )


class Appearance(msgspec.Struct, frozen=True):
    """How to draw for this terminal: the theme, and whether to use only `ascii` characters."""

    theme: Theme = DARK
    ascii: bool = False

    @property
    def mono(self) -> bool:
        """Whether the theme has no colours; letters then tell the phases apart."""
        return self.theme.mono


NO_UNICODE = frozenset({"linux", "dumb", "vt100", "vt102", "vt220"})
NO_COLOURS = frozenset({"dumb", "vt100", "vt102", "vt220"})
LIGHT_GROUNDS = frozenset({"7", "15"})


def appearance_for(settings: Settings, environment: Mapping[str, str], encoding: str | None) -> Appearance:
    """The appearance that the settings want; environment and the output's `encoding` decide what they leave open."""
    theme = THEMES[settings.theme] if settings.theme else theme_for(environment)
    plain = settings.ascii
    if plain is None:
        plain = environment.get("TERM", "") in NO_UNICODE or "utf" not in (encoding or "utf-8").lower()
    return Appearance(theme, plain)


def theme_for(environment: Mapping[str, str]) -> Theme:
    """The theme for a terminal by NO_COLOR, TERM, COLORTERM and COLORFGBG (which may tell the background colour)."""
    terminal = environment.get("TERM", "")
    if environment.get("NO_COLOR") or terminal in NO_COLOURS:
        return MONO
    many = environment.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    if not many and terminal and not any(word in terminal for word in ("256color", "kitty", "direct", "ghostty")):
        return SIXTEEN
    return LIGHT if environment.get("COLORFGBG", "").rpartition(";")[2] in LIGHT_GROUNDS else DARK


def textual_theme(theme: Theme) -> TextualTheme:
    """The Textual theme for what Textual draws itself: the command palette, and the background behind the panes."""
    colours = {name: f"ansi_{colour}" if theme.ansi else colour for name, colour in theme.colours.items()}
    return TextualTheme(
        name=f"aitop-{theme.name}",
        primary=colours["frame-focused"],
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
