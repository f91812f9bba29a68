"""Charts made of blocks: stacked columns and bars. Pure: numbers in, lines out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from aitop.ui.theme.palette import FAINT, TROUGH, Kind, lifted, over
from aitop.ui.widgets.line import Line, Span

EIGHTHS = " ▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"
_NICE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def nice_ceiling(value: float) -> float:
    """The next round number at or above `value`, so that small changes of the data do not change the scale."""
    if value <= 0:
        return 1.0
    scale = 1.0
    while value > 10 * scale:
        scale *= 10
    while value <= scale:
        scale /= 10
    return next(step * scale for step in _NICE if value <= step * scale * (1 + 1e-9))


def nice_bytes(count: float) -> float:
    """The next number of bytes at or above `count` that is round in the unit it is written in: KiB, MiB, …"""
    unit = 1.0
    while count >= 1024 * unit:
        unit *= 1024
    return nice_ceiling(count / unit) * unit


Parts = Sequence[tuple[Kind, float]]
"""One column of a stacked chart: kinds (phases) and their values, from the bottom up."""


def height_of(column: Parts) -> float:
    """The sum of the values in a column."""
    return sum(value for _, value in column)


def stacked(
    columns: Sequence[Parts], width: int, height: int, top: float, *, letters: bool = False, cursor: int | None = None
) -> list[Line]:
    """A chart of stacked columns, each one cell wide, the last at the right edge; `top` is the value at full height.

    A column above `top` ends in an arrow. `letters` draws each cell as the letter of its largest phase, for themes
    without colours. `cursor` is the index of the column to highlight.
    """
    shown = [_column_cells(column, height, top, letters) for column in columns[-width:]]
    at = None if cursor is None else cursor - max(0, len(columns) - width)
    if at is not None and 0 <= at < len(shown):
        shown[at] = [("│" if glyph == " " else glyph, lifted(style)) for glyph, style in shown[at]]
    return [Line().to(width - len(shown)).extend(column[row] for column in shown) for row in range(height)]


def _column_cells(column: Parts, height: int, top: float, letters: bool) -> list[Span]:
    """The cells of a column from the top down."""
    eighths: list[Kind | None] = []
    reached = 0.0
    for phase, value in column:
        reached += value
        eighths += [phase] * (round(min(1.0, reached / top if top > 0 else 0.0) * 8 * height) - len(eighths))
    eighths += [None] * (8 * height - len(eighths))
    cells = [_cell(eighths[at : at + 8], letters) for at in range(8 * (height - 1), -1, -8)]
    if reached > top * (1 + 0.02 / height) > 0:
        cells[0] = ("▲", max(column, key=lambda part: part[1])[0].ink)
    return cells


def _cell(eighths: Sequence[Kind | None], letters: bool) -> Span:
    """One cell, given the phase in each eighth of it from the bottom up; None is empty.

    A cell can show two phases: those with the smallest parts are dropped.
    """
    shown = list(dict.fromkeys(eighths))
    if len(shown) > 2:
        least = min(shown, key=eighths.count)
        shown.remove(least)
        return _cell([part for part in eighths if part is not least], letters)
    lower, upper = shown[0], shown[-1]
    if lower is None:
        return " ", TROUGH
    part = eighths.count(lower) / len(eighths)
    if letters:
        largest = lower if upper is None or part >= 0.5 else upper
        return ("." if upper is None and part <= 0.25 else largest.letter), largest.ink
    if upper is lower:
        return "█", lower.ink
    glyph = EIGHTHS[max(1, min(7, round(8 * part)))]
    return glyph, lower.ink if upper is None else over(lower.ink, upper.ink)


def bar(share: float | None, width: int, ink: Style) -> Line:
    """A horizontal bar of `width` cells, filled to `share` (0..1) in steps of an eighth of a cell."""
    if share is None:
        return Line("·" * width, TROUGH)
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, part = divmod(eighths, 8)
    line = Line("█" * whole, ink)
    if part:
        line.add(_PARTS[part], over(ink, TROUGH))
        whole += 1
    return line.add(" " * (width - whole), over(TROUGH, TROUGH))


def gauge(head: Line, share: float | None, amounts: Line, width: int, ink: Style) -> Line:
    """A bar that fills the room between `head` and `amounts`. Changes `head`."""
    return head.join(bar(share, max(4, width - head.width - amounts.width), ink)).join(amounts)


def layered_bar(parts: Sequence[tuple[float, Style, str]], width: int) -> Line:
    """A bar of shares (0..1) in whole cells, each with its style and glyph; even a small share gets a cell."""
    line = Line()
    reached = 0.0
    for share, ink, glyph in parts:
        reached += max(0.0, share)
        cells = min(width, round(reached * width)) - line.width
        if share > 0.001 and cells <= 0 and line.width < width:
            cells = 1
        line.add(glyph * cells, ink)
    return line.add(" " * (width - line.width), over(TROUGH, TROUGH))


def phase_bar(shares: Sequence[tuple[Kind, float | None]], width: int, *, letters: bool = False) -> Line:
    """A bar of `width` cells with one field per phase, labelled with its name and share if they fit."""
    line = Line()
    present = [(phase, share) for phase, share in shares if share and share > 0.002]
    total = sum(share for _, share in present)
    reached = 0.0
    for phase, share in present:
        reached += share
        cells = max(1, round(width * reached / total) - line.width)
        cells = min(cells, width - line.width)
        texts = (f" {phase.name} {share * 100:.0f}%", f" {phase.short} {share * 100:.0f}%", f" {phase.short}", "")
        text = next(text for text in texts if len(text) < cells or not text)
        fill = phase.letter if letters else " "
        line.add((text + " " if text and letters else text).ljust(cells, fill)[:cells], phase.fill)
    return line.to(width, "·", FAINT)
