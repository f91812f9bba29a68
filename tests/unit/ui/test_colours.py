"""Themes can be read and told apart, by every eye."""

import itertools
import math

import pytest
from rich.color import Color
from rich.style import Style

from aitop.model.settings import THEME_NAMES, Settings
from aitop.ui.theme.palette import BRIGHT, CODE_KINDS, DIM, PHASES, TEXT, TROUGH, clickable, dimmed, lifted, over
from aitop.ui.theme.themes import (
    COLOUR_BLIND,
    DARK,
    LIGHT,
    MONO,
    SIXTEEN,
    THEMES,
    appearance_for,
    colour_of,
    theme_for,
    themed,
)

# Machado, Oliveira and Fernandes 2009, complete loss of one kind of cone, for linear RGB.
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
XTERM = {
    "black": "000000", "red": "cd0000", "green": "00cd00", "yellow": "cdcd00", "blue": "0000ee", "magenta": "cd00cd",
    "cyan": "00cdcd", "white": "e5e5e5", "bright_black": "7f7f7f", "bright_red": "ff0000", "bright_green": "00ff00",
    "bright_yellow": "ffff00", "bright_blue": "5c5cff", "bright_magenta": "ff00ff", "bright_cyan": "00ffff",
    "bright_white": "ffffff",
}  # fmt: skip
"""What xterm draws for the sixteen."""

ON_THE_GROUND = (
    "text", "bright", "dim", "faint", "title", "loss", "gain", "state-denied", "state-stale",
    "state-failed", "process-rank", "process-worker",
    *(role for role in sorted(DARK.colours) if role.startswith("syntax-")),
    *(kind.hue for kind in (*PHASES, *CODE_KINDS)),
)  # fmt: skip
ON_LABELS = (
    ("on-notice", "notice"), ("on-notice", "title"), ("on-loss", "loss-ground"), ("on-loss-soft", "loss-soft-ground"),
    ("on-calm", "calm-ground"), *(("on-phase", kind.hue) for kind in (*PHASES, *CODE_KINDS)),
)  # fmt: skip
COLOURED = [theme for theme in THEMES.values() if not theme.mono]


def linear(theme, role):
    colour = theme.colours[role]
    digits = colour[1:] if colour.startswith("#") else XTERM[colour]
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def contrast(theme, first, second):
    """The ratio of WCAG 2."""
    dark, light = sorted(
        0.2126 * red + 0.7152 * green + 0.0722 * blue
        for red, green, blue in (linear(theme, first), linear(theme, second))
    )
    return (light + 0.05) / (dark + 0.05)


def seen(theme, role, sight):
    """A colour as somebody with this sight sees it, in Oklab."""
    rgb = [sum(a * b for a, b in zip(row, linear(theme, role), strict=True)) for row in SIGHTS[sight]]
    red, green, blue = (min(1.0, max(0.0, share)) for share in rgb)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def closest_phases(theme, sight):
    hues = dict.fromkeys(phase.hue for phase in PHASES)
    return min(math.dist(seen(theme, a, sight), seen(theme, b, sight)) for a, b in itertools.combinations(hues, 2))


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_all_text_has_enough_contrast(theme):
    # Two of the colours that xterm has for the sixteen are a hair below; other terminals draw them brighter.
    least = 4.4 if theme.ansi else 4.5
    pairs = [*((role, "ground") for role in ON_THE_GROUND), *ON_LABELS]
    assert {pair: contrast(theme, *pair) for pair in pairs if contrast(theme, *pair) < least} == {}
    # Help and selected rows.
    assert min(contrast(theme, "text", "raised"), contrast(theme, "bright", "selected")) >= 4.5


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
@pytest.mark.parametrize("changed", [dimmed, lifted])
def test_what_is_old_or_at_the_cursor_stands_out_from_its_ground(theme, changed):
    fills = [kind.fill for kind in (*PHASES, *CODE_KINDS)]
    halves = [over(kind.ink, TROUGH) for kind in PHASES]
    drawn = [themed(changed(style), theme) for style in (*fills, *halves)]
    assert all(style.color != style.bgcolor for style in drawn)
    assert themed(dimmed(over(TROUGH, TROUGH)), theme).bgcolor != themed(dimmed(PHASES[0].ink), theme).color


def test_without_colours_old_text_is_no_brighter_than_before():
    assert all(themed(dimmed(style), MONO).dim for style in (TEXT, DIM, BRIGHT))


@pytest.mark.parametrize("sight", list(SIGHTS))
def test_every_eye_tells_the_phases_apart(sight):
    assert closest_phases(COLOUR_BLIND, sight) > 0.085
    lost, won = (seen(COLOUR_BLIND, role, sight) for role in ("loss", "gain"))
    assert math.dist(lost, won) > 0.15


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_the_other_themes_differ_for_normal_sight_at_least(theme):
    assert closest_phases(theme, "normal") > 0.05


def test_every_theme_has_every_role_and_a_name_in_the_settings():
    assert {frozenset(theme.colours) for theme in THEMES.values()} == {frozenset(DARK.colours)}
    assert tuple(THEMES) == THEME_NAMES


def test_a_theme_keeps_what_a_click_does_and_draws_back_what_is_old():
    ink = clickable(PHASES[0].ink, "screen.why")
    for theme in THEMES.values():
        assert themed(ink, theme).meta == {"@click": "screen.why"}
    assert dimmed(ink).meta == lifted(ink).meta == {"@click": "screen.why"}
    assert themed(ink, LIGHT).color == Color.parse(LIGHT.colours["phase-data"])
    assert themed(dimmed(ink), LIGHT).color not in (themed(ink, LIGHT).color, colour_of(LIGHT, "ground"))
    assert themed(lifted(ink), SIXTEEN).color == Color.parse("bright_white")
    assert themed(PHASES[0].fill, MONO) == Style(color="default", bgcolor="default", bold=True, reverse=True)


@pytest.mark.parametrize(
    ("environment", "theme"),
    [
        ({"TERM": "xterm-256color"}, DARK),
        ({"TERM": "xterm-256color", "COLORFGBG": "0;15"}, LIGHT),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, MONO),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, DARK),
        ({"TERM": "screen"}, SIXTEEN),
        ({"TERM": "screen", "COLORTERM": "truecolor"}, DARK),
        ({"TERM": "linux"}, SIXTEEN),
        ({"TERM": "vt100"}, MONO),
        ({}, DARK),
    ],
    ids=str,
)
def test_the_terminal_chooses_the_theme(environment, theme):
    assert theme_for(environment) is theme


def test_settings_override_what_the_terminal_says():
    appearance = appearance_for(Settings(theme="light", ascii=False), {"TERM": "vt100", "NO_COLOR": "1"}, "ascii")
    assert (appearance.theme, appearance.ascii) == (LIGHT, False)


@pytest.mark.parametrize(
    ("term", "encoding", "ascii_only"),
    [("xterm", "utf-8", False), ("xterm", "ANSI_X3.4-1968", True), ("linux", "utf-8", True), ("xterm", None, False)],
)
def test_ascii_where_the_locale_or_the_terminal_has_nothing_else(term, encoding, ascii_only):
    assert appearance_for(Settings(), {"TERM": term}, encoding).ascii is ascii_only
