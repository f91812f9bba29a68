"""The figures of a server, a row for each subject, with their changes since the mark. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.style import Style

from aitop.model.serving import Percentiles, Serving
from aitop.model.snapshot import Snapshot
from aitop.model.units import NOT_SUPPORTED, duration
from aitop.ui.panes.since_mark import change, serving_change
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, TEXT
from aitop.ui.widgets.line import Line
from aitop.ui.words import share_text, significant

LABEL = 8
GAP = 2
BETWEEN = 3
"""Cells between two rows that stand side by side."""
LATENCIES = (("latency", "latency"), ("TTFT", "first_token"), ("ITL", "inter_token"))
"""The name of a row, and the field of Serving that it shows."""


class Row(NamedTuple):
    """Figures of one subject, the most important first. `measured`: at least one of them is known."""

    name: str
    parts: tuple[Line, ...]
    measured: bool

    @property
    def width(self) -> int:
        return LABEL + sum(part.width for part in self.parts) + GAP * (len(self.parts) - 1)

    def line(self, width: int) -> Line:
        return Line(self.name.ljust(LABEL), DIM).join_fitting(self.parts, width, " " * GAP)


def figure_lines(view: View, serving: Serving, width: int, most: int) -> list[Line]:
    """The rows in at most `most` lines: side by side where there is room; what is not measured goes first."""
    left = [_traffic(view, serving), _engine(view, serving), _now(serving)]
    right = [_percentiles(view, serving, name, field) for name, field in LATENCIES]
    first, second = (max(row.width for row in rows) for rows in (left, right))
    if first + BETWEEN + second <= width:
        pairs = _most_important(list(zip(left, right, strict=True)), most)
        at = max(first, (width - second) // 2)
        return [one.line(first).to(at + BETWEEN).join(other.line(second)) for one, other in pairs]
    single = [(row,) for row in (left[0], right[0], left[1], *right[1:], left[2])]
    return [row.line(width) for (row,) in _most_important(single, most)]


def _most_important(lines: Sequence[tuple[Row, ...]], most: int) -> list[tuple[Row, ...]]:
    """At most so many of the lines, in their order."""
    ranked = sorted(range(len(lines)), key=lambda at: (not any(row.measured for row in lines[at]), at))
    return [lines[at] for at in sorted(ranked[: max(0, most)])]


def _traffic(view: View, serving: Serving) -> Row:
    return _row(
        serving,
        "traffic",
        requests_per_second=_amount(view, "requests_per_second", " req/s", style=BRIGHT),
        tokens_per_second=_amount(view, "tokens_per_second", " tokens/s", cells=5),
        concurrency=_amount(view, "concurrency", " active"),
        queue=_amount(view, "queue", " queued"),
    )


def _engine(view: View, serving: Serving) -> Row:
    return _row(
        serving,
        "engine",
        batch_mean=_amount(view, "batch_mean", " a batch"),
        kv_used=_amount(view, "kv_used", " KV used", points=True),
        preemptions_per_second=_amount(view, "preemptions_per_second", " preempted/s"),
    )


def _row(serving: Serving, name: str, **parts: Line) -> Row:
    return Row(name, tuple(parts.values()), any(getattr(serving, field) is not None for field in parts))


def _now(serving: Serving) -> Row:
    alive = NOT_SUPPORTED if serving.alive is None else str(serving.alive)
    parts = (
        Line(alive.rjust(4), TEXT).add(" under way", DIM),
        Line("last ended ", DIM).add(duration(serving.still).rjust(7), TEXT).add(" ago", DIM),
    )
    return Row("now", parts, serving.alive is not None or serving.still is not None)


def _percentiles(view: View, serving: Serving, name: str, field: str) -> Row:
    """Seconds below which half, 95 % and 99 % of the values lie."""
    known: Percentiles | None = getattr(serving, field)

    def part(percentile: str) -> Line:
        def value_of(snapshot: Snapshot) -> float | None:
            values = getattr(snapshot.serving, field) if snapshot.serving else None
            return getattr(values, percentile) if values else None

        value = getattr(known, percentile) if known else None
        return Line(f"{percentile} ", DIM).add(duration(value).rjust(7), TEXT).join(change(view, value_of))

    return Row(name, tuple(part(percentile) for percentile in ("p50", "p95", "p99")), known is not None)


def _amount(view: View, field: str, unit: str, *, cells: int = 4, style: Style = TEXT, points: bool = False) -> Line:
    """A figure with its unit and its change; `points`: it is a share."""
    value = getattr(view.snapshot.serving, field) if view.snapshot else None
    text = share_text(value) if points else significant(value, cells)
    return Line(text, style).add(unit, DIM).join(serving_change(view, field, points=points))
