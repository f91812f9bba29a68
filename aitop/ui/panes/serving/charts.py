"""Latency, rate and queue of a server over minutes, on one axis of time. Pure."""

from __future__ import annotations

from collections.abc import Callable

from rich.style import Style

from aitop.model.snapshot import Series
from aitop.model.units import count, duration
from aitop.ui.theme.palette import BRIGHT, DEVICE_CHART, DIM, FAINT, HOST_CHART, HOST_SOFT, TEXT, WAITING
from aitop.ui.widgets.bars import nice_ceiling
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.plot import Curve, Field
from aitop.ui.words import significant

SCALE = 9
"""Cells at the left of the charts."""
SERIES = ("request_p50", "request_p99", "request_rate", "request_queue")
LEAST_WITH_HEAD = 4
ROOM_FOR_RATE, ROOM_FOR_QUEUE = 6, 11
"""Rows from which on there is a second and a third chart."""


def over_time(field: Field, height: int, mark: float | None) -> list[Line]:
    """The charts that `height` (two rows at least) has room for, latency first, with one axis below them.

    An arrow points to the mark.
    """
    known = [name for name in ("request_rate", "request_queue") if _is_known(field, name)]
    known = known[: (height >= ROOM_FOR_RATE) + (height >= ROOM_FOR_QUEUE)]
    lines = [_head(field, mark, rated="request_rate" in known)] if height >= LEAST_WITH_HEAD else []
    rows = height - len(lines) - 1
    lower = rows // (2 + len(known)) if known else 0
    lines += _latency(field, rows - lower * len(known))
    for name in known:
        ink, words = (DEVICE_CHART, "/s") if name == "request_rate" else (WAITING, " wait")
        lines += _amount(field, name, lower, ink, words)
    return [*lines, field.axis(lambda line: _reading(field, line))]


def _is_known(field: Field, name: str) -> bool:
    return any(value is not None for value in field.series.get(name, Series()).values)


def _head(field: Field, mark: float | None, *, rated: bool) -> Line:
    """What is drawn, or, while a mark is in sight, an arrow at its moment."""
    line, marked = Line("latency".rjust(SCALE - 2), DIM).add("  "), field.span.cell(mark)
    if marked is None:
        line.add("█", HOST_SOFT).add(" p50  ", FAINT).add("─", HOST_CHART).add(" p99  ", FAINT)
        return line.add("█", DEVICE_CHART).add(" req/s", FAINT) if rated else line
    line.to(SCALE + marked).add("▼", BRIGHT)
    return line.add(" mark", DIM) if marked + 6 <= field.span.cells else line


def _latency(field: Field, rows: int) -> list[Line]:
    """p50 as an area and p99 as a line over it, scaled to the largest value so that the tail is not cut off."""
    layers = (
        Curve(field.values("request_p50"), HOST_SOFT, filled=True),
        Curve(field.values("request_p99"), HOST_CHART),
    )
    return field.chart(layers, rows, _top(layers), lambda value: duration(value / 1e3))


def _amount(field: Field, name: str, rows: int, ink: Style, words: str) -> list[Line]:
    layers = (Curve(field.values(name), ink, filled=True),)
    text_of: Callable[[float], str] = lambda value: f"{count(value) if value >= 1 else f'{value:g}'}{words}"  # noqa: E731
    return field.chart(layers, rows, _top(layers), text_of)


def _top(layers: tuple[Curve, ...]) -> float:
    return nice_ceiling(max((value for layer in layers for value in layer.values if value is not None), default=0.0))


def _reading(field: Field, line: Line) -> Line:
    for name in ("p50", "p99"):
        value = field.at_cursor(f"request_{name}")
        line.add(f"{name} ", DIM).add(duration(None if value is None else value / 1e3).rjust(7), TEXT).add("  ")
    line.add(significant(field.at_cursor("request_rate")), TEXT).add(" req/s  ", DIM)
    return line.add(significant(field.at_cursor("request_queue")), TEXT).add(" queued", DIM)
