"""What is written to the terminal: the same picture in fewer bytes, and the terminal taken and given back only once.

Textual sets every colour anew for each piece of text. Without the repetitions an update takes 2.5 KB instead of 4.2 at
120x36, 0.8 instead of 1.1 at 80x24 and 7 instead of 14 at 200x50 (means of 24 updates of a replay), for 0.2 ms of CPU
(0.65 ms at 200x50). At one update a second that is what a slow link has to carry.
"""

from __future__ import annotations

import contextlib
import os
import re
import termios
from functools import lru_cache
from typing import Any, NamedTuple

from textual.driver import Driver

_STYLE = re.compile(r"\x1b\[([0-9;]*)m")
_MOVES = re.compile(r"(?:\x1b\[[0-9;]*H)+")
_LOOKS = frozenset({"1", "2", "3", "4", "5", "7", "9"})
_REVERSE_OR_LINED = frozenset({"4", "7", "9"})


class Pen(NamedTuple):
    """How a terminal draws: colours as its own codes (empty: its default), and looks such as bold."""

    ink: str = ""
    ground: str = ""
    looks: frozenset[str] = frozenset()


PLAIN = Pen()


def condensed(output: str) -> str:
    """The shortest output that draws the same. Before and after it the terminal has its default colours.

    Only select graphic rendition (SGR) is rewritten; everything else is passed on.
    """
    pieces = _STYLE.split(output)
    out = [pieces[0]]
    has, wanted = PLAIN, PLAIN
    for codes, text in zip(pieces[1::2], pieces[2::2], strict=True):
        wanted = _after(wanted, codes)
        if not text:
            continue
        if wanted != has and not _MOVES.fullmatch(text):
            # Blanks look the same in any ink, so they keep that of their neighbours.
            if text.isspace() and not (wanted.looks | has.looks) & _REVERSE_OR_LINED:
                drawn = Pen(has.ink, wanted.ground, has.looks)
            else:
                drawn = wanted
            out.append(_change(has, drawn))
            has = drawn
        out.append(text)
    if has != PLAIN:
        out.append("\x1b[0m")
    return "".join(out)


@lru_cache(maxsize=4096)
def _after(pen: Pen, codes: str) -> Pen:
    """The pen after a terminal has read these codes."""
    ink, ground, looks = pen
    left = codes.split(";")
    while left:
        code = left.pop(0)
        if code in ("", "0"):
            ink, ground, looks = PLAIN
        elif code in ("38", "48"):
            count = {"2": 4, "5": 2}.get(left[0] if left else "", 1)
            colour = ";".join([code, *left[:count]])
            del left[:count]
            ink, ground = (colour, ground) if code == "38" else (ink, colour)
        elif code == "39":
            ink = ""
        elif code == "49":
            ground = ""
        elif code in _LOOKS:
            looks |= {code}
        elif code[0] == "4" or code[:2] == "10":
            ground = code
        else:
            ink = code
    return Pen(ink, ground, looks)


@lru_cache(maxsize=4096)
def _change(has: Pen, wanted: Pen) -> str:
    """What makes a terminal draw as wanted, in as few bytes as it takes."""
    if has == wanted:
        return ""
    afresh = ";".join(["0", *sorted(wanted.looks), *filter(None, (wanted.ink, wanted.ground))])
    if has.looks - wanted.looks:
        return f"\x1b[{afresh}m"
    changes = sorted(wanted.looks - has.looks)
    if has.ink != wanted.ink:
        changes.append(wanted.ink or "39")
    if has.ground != wanted.ground:
        changes.append(wanted.ground or "49")
    return f"\x1b[{min(';'.join(changes), afresh, key=len)}m"


def _attributes(driver: Any) -> list[Any] | None:
    """The settings of the driver's terminal, None where it has none."""
    try:
        return termios.tcgetattr(driver.fileno)
    except (AttributeError, OSError, ValueError, termios.error):
        return None


def _in_background(terminal: int) -> bool:
    """Whether another job of the shell has the terminal: changing its settings would stop us."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False  # no job control


@lru_cache(maxsize=4)
def condensing(driver: type[Driver]) -> type[Driver]:
    """The same driver, writing condensed output."""

    class Condensing(driver):  # type: ignore[misc, valid-type]
        """Writes what it is given in fewer bytes, and takes the terminal only once."""

        _drawing = False

        def write(self, data: str) -> None:
            super().write(condensed(data) if "\x1b[" in data else data)

        def start_application_mode(self) -> None:
            """Take the terminal. Textual calls this on every SIGCONT, also on one that follows no suspension of ours:
            taking the terminal twice would read keys twice, and restore the wrong settings at the end.
            """
            if self._drawing:
                self._draw_again()
                return
            self._drawing = True
            super().start_application_mode()
            self._as_drawn = _attributes(self)

        def stop_application_mode(self) -> None:
            """Give the terminal back."""
            if self._drawing:
                # A terminal without a second screen (GNU screen by default) would keep our picture.
                super().write("\x1b[H\x1b[2J")
            self._drawing = False
            super().stop_application_mode()

        def _draw_again(self) -> None:
            """Restore settings and picture: somebody may have used the terminal while we were stopped from outside."""
            if self._as_drawn is not None and not _in_background(self.fileno):
                with contextlib.suppress(OSError, termios.error):
                    # If the terminal is gone, the next write says so.
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self._as_drawn)
            self.send_message(self.SignalResume())

    return Condensing
