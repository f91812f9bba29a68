"""Reduces what Textual writes to the terminal to the cells that change and the colour codes that differ.

Textual writes a changed row from the left edge of its widget on, and each piece of it with all its colours. In a replay
of the first demo at 120x36 in true colours that is 16.5 kB a tick; the changes are 1.9 kB, for 2 ms of CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len

_MOVE = re.compile(r"\x1b\[(\d+);(\d+)H")
_PIECE = re.compile(_MOVE.pattern + r"|\x1b\[([0-9;]*)m|([^\x1b\n]+)|\n")
_STYLE_CODE = re.compile(r"[34]8;(?:2;\d+;\d+;\d+|5;\d+)|\d+")
_SEEN_ON_BLANKS = frozenset({"4", "7", "9", "21", "53"})
"""SGR codes that are visible even on a space: underline, reverse, strike-through, double underline, overline."""


class Pen(NamedTuple):
    """How a terminal draws text: both colours as SGR codes, and the SGR codes of attributes such as bold."""

    ink: str = "39"
    ground: str = "49"
    attributes: frozenset[str] = frozenset()


PLAIN = Pen()


class Run(NamedTuple):
    """Text to write with a pen, from a row and column (both from 1) on."""

    pen: Pen
    row: int
    column: int
    text: str


class ChangedCells:
    """Remembers what every cell of the terminal shows, and reduces an update to the cells that it changes.

    The terminal's pen must be plain before an update, and is plain after it. Text with characters that are not one
    cell wide is always written.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, tuple[str, Pen]]] = {}

    def forget(self) -> None:
        """Forget what the terminal shows, so that the next update is written in full."""
        self._rows.clear()

    def changes(self, update: str) -> str:
        """The output that draws `update` over the earlier ones; unchanged if it does not begin with a cursor move."""
        if not _MOVE.match(update):
            return update
        out: list[str] = []
        runs: list[Run] = []
        pen, row, column, end = PLAIN, 0, 0, 0
        for piece in _PIECE.finditer(update):
            if piece.start() != end:
                break
            end = piece.end()
            to_row, to_column, codes, text = piece.groups()
            if to_row:
                if (int(to_row), int(to_column)) < (row, column):
                    # The update goes back and may overwrite its own text, so keep the order: flush what came before.
                    out.append(_written(runs))
                    runs = []
                row, column = int(to_row), int(to_column)
            elif codes is not None:
                pen = _after(pen, codes)
            elif text:
                runs += [Run(pen, row, at, changed) for at, changed in self._changed(row, column, text, pen)]
                column += cell_len(text)
        if end != len(update):
            # It contains output that this class does not understand.
            self.forget()
            return update
        written = "".join([*out, _written(runs)])
        return written + _move((0, 0), (row, column)) if written else ""

    def _changed(self, row: int, column: int, text: str, pen: Pen) -> Iterator[tuple[int, str]]:
        """The parts of a text that the terminal does not show yet, with their columns. Records them as shown."""
        cells = self._rows.setdefault(row, {})
        if not text.isascii() and any(cell_len(character) != 1 for character in text):
            for at in range(column, column + cell_len(text)):
                cells.pop(at, None)
            yield column, text
            return
        # A space looks the same in any foreground colour.
        blank = pen if pen.attributes & _SEEN_ON_BLANKS else Pen(ground=pen.ground)
        changed = []
        for at, character in enumerate(text):
            cell = character, blank if character == " " else pen
            if cells.get(column + at) != cell:
                cells[column + at] = cell
                changed.append(at)
        start = 0
        for number, at in enumerate(changed, 1):
            if number == len(changed) or changed[number] != at + 1:
                yield column + changed[start], text[changed[start] : at + 1]
                start = number


def _written(runs: list[Run]) -> str:
    """The output that draws these runs and ends with a plain pen.

    Runs are sorted by pen, because changing the pen takes more bytes than moving the cursor: in screen order the output
    would be 1.4 to 1.8 times as long (replays of three recordings at 120x36).
    """
    out: list[str] = []
    has, cursor = PLAIN, (0, 0)
    for run in sorted(runs, key=lambda run: (run.pen.ground, sorted(run.pen.attributes), run.pen.ink)):
        drawn = run.pen
        if run.text.isspace() and not (drawn.attributes | has.attributes) & _SEEN_ON_BLANKS:
            drawn = has._replace(ground=drawn.ground)
        out += _move(cursor, (run.row, run.column)), _change(has, drawn), run.text
        has, cursor = drawn, (run.row, run.column + cell_len(run.text))
    if has != PLAIN:
        out.append("\x1b[0m")
    return "".join(out)


def _move(cursor: tuple[int, int], place: tuple[int, int]) -> str:
    """The shortest output that moves the cursor to a place."""
    if cursor == place:
        return ""
    if cursor[0] == place[0] and cursor[1] < place[1]:
        return f"\x1b[{place[1] - cursor[1]}C"
    return f"\x1b[{place[0]};{place[1]}H"


@lru_cache(maxsize=4096)
def _after(pen: Pen, codes: str) -> Pen:
    """The pen after the terminal has read these SGR codes."""
    for code in _STYLE_CODE.findall(codes) or ["0"]:
        kind = int(code.partition(";")[0])
        if kind == 0:
            pen = PLAIN
        elif 30 <= kind <= 39 or 90 <= kind <= 97:
            pen = pen._replace(ink=code)
        elif 40 <= kind <= 49 or 100 <= kind <= 107:
            pen = pen._replace(ground=code)
        else:
            pen = pen._replace(attributes=pen.attributes | {code})
    return pen


@lru_cache(maxsize=4096)
def _change(has: Pen, wanted: Pen) -> str:
    """The output that turns one pen into another."""
    codes = []
    if has.attributes - wanted.attributes:
        codes, has = ["0"], PLAIN
    codes += sorted(wanted.attributes - has.attributes)
    codes += [now for was, now in zip(has[:2], wanted[:2], strict=True) if was != now]
    return f"\x1b[{';'.join(codes)}m" if codes else ""
