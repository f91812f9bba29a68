"""What the terminal can show. Output that goes elsewhere is no fault."""

from __future__ import annotations

import locale
import os
import sys
from collections.abc import Mapping

from aitop.commands.doctor.check import Check, fault, not_needed, works

SMALLEST_SCREEN = (80, 24)
FULL_SCREEN = (120, 36)


def checks() -> list[Check]:
    """Of the terminal that the output goes to."""
    try:
        size = os.get_terminal_size(sys.__stdout__.fileno()) if sys.__stdout__ and sys.__stdout__.isatty() else None
    except (OSError, ValueError):
        size = None
    encoding = locale.getpreferredencoding(False)
    return judge(None if size is None else (size.columns, size.lines), os.environ, encoding)


def judge(size: tuple[int, int] | None, environment: Mapping[str, str], encoding: str) -> list[Check]:
    """`size` in columns and lines, None where the output goes elsewhere; `encoding` is the locale's."""
    if size is None:
        words = "output is not a terminal: diagnose, record and doctor need none"
        return [not_needed("terminal", words), *(not_needed(name, "no terminal") for name in ("colours", "utf-8"))]
    return [_screen(size, environment.get("TERM", "")), _colours(environment), _characters(environment, encoding)]


def _screen(size: tuple[int, int], name: str) -> Check:
    if name == "dumb":
        return fault("terminal", "TERM=dumb cannot show the screen", "export TERM=xterm-256color")
    shown = f"{size[0]}x{size[1]}, {name or 'unnamed'}"
    if size[0] < SMALLEST_SCREEN[0] or size[1] < SMALLEST_SCREEN[1]:
        remedy = "make it at least {}x{}".format(*SMALLEST_SCREEN)
        return fault("terminal", f"{shown}: too small for the screen", remedy)
    roomy = size[0] >= FULL_SCREEN[0] and size[1] >= FULL_SCREEN[1]
    return works("terminal", shown + ("" if roomy else "; every pane fits from {}x{} on".format(*FULL_SCREEN)))


def _colours(environment: Mapping[str, str]) -> Check:
    from aitop.ui.theme.themes import theme_for

    theme = theme_for(environment)
    if environment.get("NO_COLOR"):
        return not_needed("colours", "NO_COLOR is set: letters, bold and reverse instead")
    if theme.mono:
        return not_needed("colours", f"TERM={environment.get('TERM')} has none: letters, bold and reverse instead")
    if theme.ansi:
        return works("colours", "sixteen (export COLORTERM=truecolor where the terminal has more)")
    return works("colours", f"{theme.name} theme; C on the screen goes through the others")


def _characters(environment: Mapping[str, str], encoding: str) -> Check:
    from aitop.model.settings import Settings
    from aitop.ui.theme.themes import look_for

    if "utf" not in encoding.lower():
        return fault("utf-8", f"the locale is {encoding}: ASCII is drawn", "export LC_ALL=C.UTF-8")
    if look_for(Settings(), environment, encoding).ascii:
        return not_needed("utf-8", f"TERM={environment.get('TERM')} has few characters: ASCII is drawn")
    return works("utf-8", "charts are drawn with braille and block characters")
