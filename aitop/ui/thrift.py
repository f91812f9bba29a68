"""The same picture in fewer bytes, for slow links: a terminal is told only what changes from one piece to the next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import termios
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.driver import Driver

try:
    from textual._compositor import ChopsUpdate
except ImportError:  # a private part of the toolkit's, that may go: then what it writes by itself has to do
    ChopsUpdate = type("ChopsUpdate", (), {})  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    from rich.console import Console

_STYLE = re.compile(r"\x1b\[([0-9;]*)m")
_MOVES = re.compile(r"(?:\x1b\[[0-9;]*H)+")
MOST_WAITING = 2
_LOOKS = frozenset({"1", "2", "3", "4", "5", "7", "9"})
_REVERSE_OR_LINED = frozenset({"4", "7", "9"})


class Pen(NamedTuple):
    """How a terminal draws: colours as its own codes (empty: its default), and looks such as bold."""

    ink: str = ""
    ground: str = ""
    looks: frozenset[str] = frozenset()


PLAIN = Pen()


def condensed(output: str) -> str:
    """Output that draws the same. It begins and ends with a terminal that draws plainly, like what it is made from.

    Only select graphic rendition is rewritten (codes that a program like this one writes); the rest is passed on.
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


class Changes(ChopsUpdate):
    """The toolkit's update, written from where a change begins: its own writes from the left edge of the widget."""

    def render_segments(self, console: Console) -> str:
        """What a terminal is told: for each span its place, and nothing but what stands in it."""
        written: list[str] = []
        for y, first, beyond in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                start, stop = max(x, first), min(end, beyond)
                if strip is None or start >= stop:
                    continue
                piece = strip if (start, stop) == (x, end) else strip.crop(start - x, stop - x)
                written.append(f"\x1b[{y + 1};{start + 1}H{piece.render(console)}")
        return "".join(written)


def narrowed(update: Any) -> Any:
    """An update of the toolkit that writes no more than changes; anything else as it is."""
    parts: list[Any] = [getattr(update, name, None) for name in ("chops", "spans", "chop_ends")]
    if type(update) is ChopsUpdate and all(parts):
        return Changes(*parts)
    return update


def _attributes(driver: Any) -> list[Any] | None:
    """How the driver's terminal is set, None where it has none."""
    try:
        return termios.tcgetattr(driver.fileno)
    except (AttributeError, OSError, ValueError, termios.error):
        return None


def _in_background(terminal: int) -> bool:
    """Whether the terminal belongs to another job of the shell's, which setting it would stop us for."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:
        return False  # a terminal without jobs


@lru_cache(maxsize=4)
def thrifty(driver: type[Driver]) -> type[Driver]:
    """The same driver, writing condensed output."""

    class Thrifty(driver):  # type: ignore[misc, valid-type]
        """Writes what it is given in fewer bytes, and knows whether the terminal has taken it."""

        @property
        def behind(self) -> bool:
            """Whether earlier output still waits for the terminal."""
            waiting = getattr(getattr(self, "_writer_thread", None), "_queue", None)
            return waiting is not None and waiting.qsize() > MOST_WAITING

        _drawing = False

        def write(self, data: str) -> None:
            super().write(condensed(data) if "\x1b[" in data else data)

        def start_application_mode(self) -> None:
            """Take the terminal. A SIGCONT that follows no suspension of ours asks for it, too: it is ours already, and
            to take it twice would read keys twice and give it back as it never was.
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
                # Where there is no other screen to go back to (GNU screen as it comes), nothing of ours is left behind.
                super().write("\x1b[H\x1b[2J")
            self._drawing = False
            super().stop_application_mode()

        def _draw_again(self) -> None:
            """Somebody may have used the terminal while we were stopped from outside."""
            if self._as_drawn is not None and not _in_background(self.fileno):
                with contextlib.suppress(OSError, termios.error):
                    # One that is gone is told of by what is written next.
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self._as_drawn)
            loop = asyncio.get_running_loop()
            asyncio.run_coroutine_threadsafe(self._app._post_message(self.SignalResume()), loop)

    return Thrifty
