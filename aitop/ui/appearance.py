"""Which theme and which characters suit a terminal. Pure: an environment and an encoding in, a look out."""

from __future__ import annotations

from collections.abc import Mapping

from textual.theme import Theme as TextualTheme

from aitop.model.settings import Settings
from aitop.ui.themes import DARK, LIGHT, MONO, SIXTEEN, THEMES, Theme
from aitop.ui.view import Look

NO_UNICODE = frozenset({"linux", "dumb", "vt100", "vt102", "vt220"})
NO_COLOURS = frozenset({"dumb", "vt100", "vt102", "vt220"})
LIGHT_GROUNDS = frozenset({"7", "15"})


def look_for(settings: Settings, environment: Mapping[str, str], encoding: str | None) -> Look:
    """What the settings ask for; what they leave open is told from the terminal and the locale's `encoding`."""
    theme = THEMES[settings.theme] if settings.theme else theme_for(environment)
    plain = settings.ascii
    if plain is None:
        plain = environment.get("TERM", "") in NO_UNICODE or "utf" not in (encoding or "utf-8").lower()
    return Look(theme, plain)


def theme_for(environment: Mapping[str, str]) -> Theme:
    """By NO_COLOR, TERM, COLORTERM and COLORFGBG, the last of which some terminals use to tell what they stand on."""
    terminal = environment.get("TERM", "")
    if environment.get("NO_COLOR") or terminal in NO_COLOURS:
        return MONO
    many = environment.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    if not many and terminal and not any(word in terminal for word in ("256color", "kitty", "direct", "ghostty")):
        return SIXTEEN
    return LIGHT if environment.get("COLORFGBG", "").rpartition(";")[2] in LIGHT_GROUNDS else DARK


def textual_theme(theme: Theme) -> TextualTheme:
    """The same for what Textual itself draws: the command palette, and the ground under the panes."""
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
