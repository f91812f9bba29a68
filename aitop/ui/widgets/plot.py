"""Charts over time with scale, axis and cursor: series in, lines of exact width out. And a pane for them.

Time is divided into slots, two per cell. Slots begin at multiples of their length, so that a curve keeps its shape
while it moves to the left.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import msgspec
from rich.style import Style
from textual.actions import SkipAction
from textual.binding import Binding, BindingType

from aitop.model.snapshot import Series, Snapshot
from aitop.model.units import duration
from aitop.ui.state import View
from aitop.ui.theme.palette import DIM, FAINT, TEXT, lifted
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.pane import Pane

AXIS = 8
SPANS = (30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
# The braille masks of the lowest 0 to 4 dots in the left and in the right column of a cell.
_LEFT, _RIGHT = (0x00, 0x40, 0x44, 0x46, 0x47), (0x00, 0x80, 0xA0, 0xB0, 0xB8)
# A space in place of the blank braille character, which takes three bytes and is not blank in some fonts.
_BRAILLE = [" ", *(chr(0x2800 | mask) for mask in range(1, 256))]
Values = Sequence["float | None"]


class TimeSpan(NamedTuple):
    """The time that a chart shows: it ends at `end` and has `cells` cells of two slots, each `slot` seconds long."""

    end: float
    slot: float
    cells: int

    @property
    def start(self) -> float:
        return self.end - 2 * self.cells * self.slot

    def moments(self) -> list[float]:
        return [self.start + (2 * cell + 1) * self.slot for cell in range(self.cells)]

    def cell(self, moment: float | None) -> int | None:
        """The cell that a moment falls into; None if it is None or outside of the span."""
        if moment is None or not self.start <= moment <= self.end:
            return None
        return min(self.cells - 1, int((moment - self.start) / (2 * self.slot)))


class Curve(NamedTuple):
    """A curve with one value per slot, drawn as an area if `filled`, as every other dot if `dashed`, else as a line."""

    values: Values
    ink: Style
    filled: bool = False
    dashed: bool = False


def span_of(series: Iterable[Series], now: float, cells: int) -> TimeSpan:
    """The shortest of SPANS that covers all values up to `now`, or the longest one."""
    oldest = min((curve.times[0] for curve in series if curve.times), default=now)
    length = next((length for length in SPANS if length >= now - oldest), SPANS[-1])
    slot = length / (2 * max(1, cells))
    return TimeSpan(math.ceil(now / slot) * slot, slot, max(1, cells))


def slots(series: Series, span: TimeSpan, hold: float = 0.0, *, mean: bool = False) -> list[float | None]:
    """The largest value (or the mean) in each slot. Empty slots repeat the last value, for at most `hold` seconds."""
    count = 2 * span.cells
    start, slot = span.start, span.slot
    values: list[float | None] = [None] * count
    seen = [0] * count
    for at in range(bisect_right(series.times, start), len(series.times)):
        value = series.values[at]
        # Times may be out of order in a damaged recording.
        if value is None or series.times[at] < start:
            continue
        place = min(count - 1, int((series.times[at] - start) / slot))
        known = values[place]
        seen[place] += 1
        if known is None:
            values[place] = value
        elif mean:
            values[place] = known + (value - known) / seen[place]
        elif value > known:
            values[place] = value
    reach, left, last = math.ceil(hold / slot), 0, None
    for place, held in enumerate(values):
        if held is not None:
            left, last = reach, held
        elif left > 0:
            left -= 1
            values[place] = last
    return values


def typical_gap(series: Series) -> float:
    """For how long a value is drawn on, in seconds, so that a chart with more slots than values has no holes.

    This is 1.5 times the 90th percentile of the distances between values.
    """
    gaps = sorted(later - earlier for earlier, later in zip(series.times, series.times[1:], strict=False))
    return 1.5 * gaps[int(len(gaps) * 0.9)] if gaps else 0.0


def curves(layers: Sequence[Curve], cells: int, height: int, top: float, cursor: int | None = None) -> list[Line]:
    """The curves as `height` lines of `cells` cells on a scale from 0 to `top`; later curves hide earlier ones.

    `cursor` is the cell to highlight, None for none.
    """
    masks = [bytearray(cells) for _ in range(height)]
    owners = [bytearray(cells) for _ in range(height)]
    for number, layer in enumerate(layers, 1):
        for slot, (low, high) in enumerate(_dots(layer, 2 * cells, 4 * height, top)):
            columns, cell = (_RIGHT if slot % 2 else _LEFT), slot // 2
            for above in range(low // 4, (high + 3) // 4):
                row = height - 1 - above
                masks[row][cell] |= columns[min(4, high - 4 * above)] & ~columns[max(0, low - 4 * above)]
                owners[row][cell] = number
    inks = [FAINT, *(layer.ink for layer in layers)]
    return [_row(mask, owner, inks, cursor) for mask, owner in zip(masks, owners, strict=True)]


def area(values: Values, cells: int, height: int, top: float, ink: Style) -> list[Line]:
    """The last values as an area, two values per cell, the newest at the right edge."""
    shown = list(values[-2 * cells :])
    return curves([Curve([None] * (2 * cells - len(shown)) + shown, ink, filled=True)], cells, height, top)


def _row(masks: bytearray, owners: bytearray, inks: Sequence[Style], cursor: int | None) -> Line:
    """A line of the chart. Adjacent cells of one curve are one span; the cell of the cursor is a span of its own."""
    line, start, count = Line(), 0, len(masks)
    for cell in range(1, count + 1):
        if cell < count and owners[cell] == owners[start] and cursor not in (cell, start):
            continue
        ink = inks[owners[start]]
        if cursor == start:
            line.add(_BRAILLE[masks[start]] if masks[start] else "│", lifted(ink))
        else:
            line.add("".join([_BRAILLE[mask] for mask in masks[start:cell]]), ink)
        start = cell
    return line


def _dots(layer: Curve, count: int, height: int, top: float) -> list[tuple[int, int]]:
    """For each slot the range of dots to draw, from the bottom: the first one, and the one after the last."""
    drawn: list[tuple[int, int]] = []
    before: int | None = None
    for slot in range(count):
        value = layer.values[slot] if slot < len(layer.values) else None
        if value is None or top <= 0 or (layer.dashed and slot % 2):
            drawn.append((0, 0))
            before = before if layer.dashed else None
            continue
        level = max(1 if value > 0 or not layer.filled else 0, min(height, round(value / top * height)))
        if layer.filled:
            drawn.append((0, level))
        elif layer.dashed or before is None:
            drawn.append((level - 1, level))
        else:
            drawn.append((min(level - 1, before), max(level, before - 1)))
        before = level
    return drawn


def scaled(chart: Sequence[Line], labels: Mapping[int, str], axis: int = AXIS) -> list[Line]:
    """The chart with its scale at the left; `labels` are the texts of the scale by row, from the top."""
    return [
        Line(labels.get(row, "").rjust(axis - 2), DIM).add("▕" if len(chart) > 1 else " ", FAINT).add(" ").join(line)
        for row, line in enumerate(chart)
    ]


def scale_labels(height: int, top: float, text_of: Callable[[float], str]) -> dict[int, str]:
    """Labels for `scaled`: `top` in the top row and 0 in the bottom row; in a chart of one row only `top`."""
    return {height - 1: "0", 0: text_of(top)} if height > 1 else {0: text_of(top)}


class Field(msgspec.Struct, frozen=True):
    """What charts of several series on one time axis share: the series, the span, and the cursor.

    `cursor` is the moment pointed at (monotonic seconds), None for none; `scale` is the cells left of the charts.
    """

    series: Mapping[str, Series]
    now: float
    span: TimeSpan
    scale: int
    cursor: float | None = None

    @property
    def cell(self) -> int | None:
        """The cell at the cursor, None without a cursor or if it is outside of the span."""
        return self.span.cell(self.cursor)

    def values(self, name: str, *, mean: bool = False) -> list[float | None]:
        """The value of a series in each slot; a short gap repeats the value before it."""
        series = self.series.get(name, Series())
        return slots(series, self.span, typical_gap(series), mean=mean)

    def at_cursor(self, name: str, *, mean: bool = False) -> float | None:
        return None if self.cursor is None else value_at(self.values(name, mean=mean), self.span, self.cursor)

    def chart(
        self, layers: Sequence[Curve], rows: int, top: float, text_of: Callable[[float], str], word: str = ""
    ) -> list[Line]:
        """The curves with their scale; `word` stands in the scale, in the row below the top."""
        drawn = curves(layers, self.span.cells, rows, top, self.cell)
        labels = scale_labels(rows, top, text_of) | ({1: word} if rows > 2 else {})
        return scaled(drawn, labels, self.scale)

    def axis(self, reading: Callable[[Line], Line], legend: Line | None = None) -> Line:
        """The time axis; with a cursor, how long ago that moment is, followed by what `reading` adds to the line."""
        if self.cursor is None or self.cell is None:
            return time_axis(self.span, self.scale, legend)
        return reading(Line(ago(self.now, self.cursor), TEXT).add("  "))


def time_axis(span: TimeSpan, axis: int = AXIS, legend: Line | None = None) -> Line:
    """The time axis: how long ago the left edge and the middle are, and "now". A `legend` replaces the middle."""
    length = span.end - span.start
    line = Line().to(axis).add(_before(length), FAINT)
    middle = Line(_before(length / 2), FAINT) if legend is None else legend
    if span.cells >= middle.width + 16:
        line.to(axis + span.cells // 2 - middle.width // 2).join(middle)
    return line.to(axis + span.cells - 3).add("now", FAINT)


def _before(seconds: float) -> str:
    minutes = seconds / 60
    return f"-{minutes:.0f} m" if seconds >= 60 and not seconds % 60 else f"-{duration(seconds)}"


def ago(now: float, moment: float) -> str:
    """How long ago a moment is, in whole seconds and in a fixed width."""
    seconds = round(now - moment)
    text = f"{seconds // 60} m {seconds % 60:02d} s" if seconds >= 60 else f"{max(0, seconds)} s"
    return f"{text} ago".rjust(13)


def value_at(values: Values, span: TimeSpan, moment: float) -> float | None:
    """The value drawn at a moment: the larger of the two slots of its cell, None if both are empty."""
    cell = span.cell(moment)
    if cell is None:
        return None
    return max((value for value in values[2 * cell : 2 * cell + 2] if value is not None), default=None)


class ChartPane(Pane):
    """A pane with charts that are read with a cursor.

    `cursor` is a moment (monotonic seconds), so that it moves along with the chart; None without a cursor.
    `draw` of a subclass calls `field`, or sets `moments` to the moments that its columns stand for, oldest first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move_cursor(-1)", "cursor", show=False),
        Binding("right", "move_cursor(1)", "cursor", show=False),
        Binding("shift+left", "move_cursor(-10)", "cursor", show=False),
        Binding("shift+right", "move_cursor(10)", "cursor", show=False),
        Binding("escape", "drop_cursor", "cursor", show=False),
    ]

    cursor: float | None = None
    moments: Sequence[float] = ()

    def field(self, snapshot: Snapshot, names: Iterable[str], width: int, scale: int) -> Field:
        """A Field for charts of these series, `width` cells wide with the `scale`. Sets `moments`."""
        known = [snapshot.series[name] for name in names if name in snapshot.series]
        span = span_of(known, snapshot.time, width - scale)
        self.moments = span.moments() if known else ()
        return Field(snapshot.series, snapshot.time, span, scale, self.cursor)

    def redraw(self) -> None:
        """Draw as any pane does. `moments` stays empty if the new drawing has no charts."""
        self.moments = ()
        super().redraw()

    def action_move_cursor(self, columns: int) -> None:
        """Move the cursor to an earlier (negative) or later column; beyond the newest one it disappears."""
        if not self.moments:
            return
        at = len(self.moments) if self.cursor is None else nearest(self.moments, self.cursor)
        at += columns
        self.cursor = None if at >= len(self.moments) else self.moments[max(0, at)]
        self.redraw()

    def action_drop_cursor(self) -> None:
        """Remove the cursor; without a cursor, leave the key to the screen."""
        if self.cursor is None:
            raise SkipAction
        self.cursor = None
        self.redraw()

    def show(self, view: View) -> None:
        """Take a new view, and remove the cursor if its moment has left the chart."""
        super().show(view)
        if self.cursor is not None and self.moments and self.cursor < self.moments[0]:
            self.cursor = None
            self.redraw()


def nearest(moments: Sequence[float], moment: float) -> int:
    """The index of the closest moment, the earlier one of a tie. `moments` is in order and not empty."""
    return min(range(len(moments)), key=lambda at: abs(moments[at] - moment))
