"""Charts made of characters: braille areas and lines, stacked columns, bars. Pure: numbers in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.style import Style

from aitop.ui.theme.palette import TROUGH, Kind, lifted, over
from aitop.ui.widgets.line import Line, Span

_LEFT_DOTS = (0x40, 0x04, 0x02, 0x01)
_RIGHT_DOTS = (0x80, 0x20, 0x10, 0x08)
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"
_NICE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
Values = Sequence["float | None"]


def nice_ceiling(value: float) -> float:
    """The next round number at or above `value`, so that a scale stays while its data moves a little."""
    if value <= 0:
        return 1.0
    scale = 1.0
    while value > 10 * scale:
        scale *= 10
    while value <= scale:
        scale /= 10
    return next(step * scale for step in _NICE if value <= step * scale * (1 + 1e-9))


def nice_bytes(count: float) -> float:
    """The same for bytes, round in the powers of 1024 in which they are written."""
    unit = 1.0
    while count >= 1024 * unit:
        unit *= 1024
    return nice_ceiling(count / unit) * unit


def braille(values: Values, width: int, height: int, top: float, *, filled: bool = True) -> list[str]:
    """A chart of the last `2 * width` values, the newest at the right edge, in `height` rows, the topmost first.

    The scale runs from 0 to `top`. `filled` draws an area, otherwise only the uppermost dot of each value is set.
    A value that is None leaves its column empty; a value above zero shows at least one dot.
    """
    dots = height * 4
    shown = list(values[-2 * width :])
    levels = [0] * (2 * width - len(shown))
    for value in shown:
        level = 0 if value is None or top <= 0 else round(min(1.0, value / top) * dots)
        levels.append(max(level, 1) if value else level)
    rows = [[0x2800] * width for _ in range(height)]
    for column, level in enumerate(levels):
        marks = _RIGHT_DOTS if column % 2 else _LEFT_DOTS
        for dot in range(0 if filled else max(0, level - 1), level):
            rows[height - 1 - dot // 4][column // 2] |= marks[dot % 4]
    return ["".join(map(chr, row)).replace("\u2800", " ") for row in rows]


class Column(NamedTuple):
    """One column of a stacked chart: phases and their values from the bottom up."""

    parts: tuple[tuple[Kind, float], ...]

    @property
    def total(self) -> float:
        """Height of the whole column."""
        return sum(value for _, value in self.parts)


def stacked(
    columns: Sequence[Column],
    width: int,
    height: int,
    top: float,
    *,
    letters: bool = False,
    cursor: int | None = None,
) -> list[Line]:
    """Columns stacked by phase, one cell wide, the newest at the right edge; `top` is the value of full height.

    A cell holds at most two hues: the glyph's and its background's. A column above `top` ends in an arrow.
    `letters` draws each cell as the letter of its largest phase, for terminals without colours. `cursor` is the column
    to be lit up.
    """
    cursor = None if cursor is None else cursor - max(0, len(columns) - width)
    shown = columns[-width:]
    grid: list[list[Span]] = [[] for _ in range(height)]
    for number, column in enumerate(shown):
        cells = _column_cells(column, height, top, letters)
        if number == cursor:
            cells = [("│" if glyph == " " else glyph, lifted(style)) for glyph, style in cells]
        for row in range(height):
            grid[row].append(cells[height - 1 - row])
    return [_merged(Line().to(width - len(shown)), cells) for cells in grid]


def _column_cells(column: Column, height: int, top: float, letters: bool) -> list[tuple[str, Style]]:
    """The cells of a column from the bottom up."""
    scale = height / top if top > 0 else 0.0
    edges: list[tuple[float, Kind]] = []
    reached = 0.0
    for phase, value in column.parts:
        if value > 0:
            reached += value * scale
            edges.append((reached, phase))
    cells = [_cell(row, edges, reached, letters) for row in range(height)]
    if reached > height * 1.02 and edges:
        cells[-1] = ("▲", max(column.parts, key=lambda part: part[1])[0].ink)
    return cells


def _cell(row: int, edges: Sequence[tuple[float, Kind]], reached: float, letters: bool) -> tuple[str, Style]:
    """The glyph of one cell: the two phases with most of it, the lower one drawn over the upper one."""
    if reached <= row:
        return " ", TROUGH
    bottom = 0.0
    for edge, phase in edges:
        if edge > row:
            if edge >= row + 1 and bottom <= row and not letters:
                return "█", phase.ink
            break
        bottom = edge
    low = float(row)
    inside: list[tuple[float, Kind]] = []
    for edge, phase in edges:
        amount = min(edge, row + 1) - max(low, float(row))
        if amount > 0:
            inside.append((amount, phase))
        low = max(low, edge)
    empty = max(0.0, row + 1 - reached)
    if letters:
        largest = max(inside, key=lambda part: part[0])[1]
        return (largest.letter if empty < 0.75 else "."), largest.ink
    if len(inside) > 2:
        largest_two = sorted(inside, key=lambda part: -part[0])[:2]
        inside = [part for part in inside if part in largest_two]
    if len(inside) == 1:
        amount, phase = inside[0]
        return _EIGHTHS[8 if empty < 0.0625 else max(1, round(amount * 8))], phase.ink
    (first, lower), (_, upper) = inside
    if empty > 0.35:
        return _EIGHTHS[max(1, round((1 - empty) * 8))], (lower if first >= 1 - empty - first else upper).ink
    level = round(first * 8)
    if level in (0, 8):
        return "█", (lower if level else upper).ink
    return _EIGHTHS[level], over(lower.ink, upper.ink)


def _merged(line: Line, cells: Sequence[Span]) -> Line:
    """The line with these cells appended; neighbours of one style become one piece."""
    run, ink = "", TROUGH
    for glyph, style in cells:
        if style is not ink and run:
            line.add(run, ink)
            run = ""
        run, ink = run + glyph, style
    return line.add(run, ink)


def bar(share: float | None, width: int, ink: Style, trough: Style = TROUGH) -> Line:
    """A horizontal bar of `width` cells, filled to `share` (0..1) in steps of an eighth of a cell."""
    if share is None:
        return Line("·" * width, trough)
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, part = divmod(eighths, 8)
    line = Line("█" * whole, ink)
    if part:
        line.add(_PARTS[part], over(ink, trough))
        whole += 1
    return line.add(" " * (width - whole), over(trough, trough))


def layered_bar(parts: Sequence[tuple[float, Style, str]], width: int, trough: Style = TROUGH) -> Line:
    """Shares (0..1) side by side in whole cells, each with its style and glyph; what is small but there gets a cell."""
    line = Line()
    reached = 0.0
    for share, ink, glyph in parts:
        reached += max(0.0, share)
        cells = min(width, round(reached * width)) - line.width
        if share > 0.001 and cells <= 0 and line.width < width:
            cells = 1
        line.add(glyph * cells, ink)
    return line.add(" " * (width - line.width), over(trough, trough))
