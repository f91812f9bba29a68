"""How figures have changed since the mark that the user set. Pure: a view in, parts of lines of fixed width out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from rich.style import Style

from aitop.diagnosis.mark_comparison import Comparison, compare
from aitop.model.serving import Serving
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, moment
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DIM, FAINT, GAIN, LOSS, TEXT
from aitop.ui.widgets.line import Line
from aitop.ui.words import significant

WIDTH = 6
NO_CHANGE = Line()
POINT = 0.01
"""A percentage point of a share (0..1)."""
MOST = 999
SETTLING_SECONDS = 10.0
MINUTE = 59.5
ValueOf = Callable[[Snapshot], "float | None"]
"""Reads a figure from a Snapshot; None if it was not measured."""
OUTCOMES: dict[str, Style] = {"faster": GAIN, "slower": LOSS, "same": TEXT, "unknown": DIM, "cannot-tell": DIM}


def change(view: View, value_of: ValueOf, *, is_speed: bool = False, points: bool = False, unit: float = POINT) -> Line:
    """The change of a figure since the mark; empty without a mark.

    It is coloured only if the figure `is_speed` and steps became faster or slower by more than noise, because a single
    figure proves nothing. `points` and `unit` are those of `difference`.
    """
    if view.mark is None:
        return Line()
    now = value_of(view.snapshot) if view.snapshot else None
    is_speed = is_speed and judged(view.mark, view.snapshot).outcome in ("faster", "slower")
    return difference(now, value_of(view.mark), is_speed=is_speed, points=points, unit=unit)


def difference(
    now: float | None, then: float | None, *, is_speed: bool = False, points: bool = False, unit: float = POINT
) -> Line:
    """The change from `then` to `now` in WIDTH cells: in percent of `then` or, with `points`, in multiples of `unit`
    (percentage points of a share, if it is left out). A dash if one of them is None or `then` is negative.

    The change of a speed is coloured as gain or loss.
    """
    if now is None or then is None or then < 0:
        return Line("–".rjust(WIDTH), FAINT)
    if not points and then == 0:
        return Line(("▲" if now else "=").rjust(WIDTH), DIM if now else FAINT)
    by = (now - then) / unit if points else (now / then - 1) * 100
    if abs(by) < 0.5:
        return Line("=".rjust(WIDTH), FAINT)
    style = DIM if not is_speed else GAIN if by > 0 else LOSS
    amount = f"{abs(by):.0f}" if abs(by) < MOST else f">{MOST}"
    return Line(f"{'▲' if by > 0 else '▼'}{amount}{'' if points else '%'}".rjust(WIDTH), style)


def figure(
    view: View, value_of: ValueOf, text_of: Callable[[float | None], str], style: Style = TEXT, *, points: bool = False
) -> Line:
    """A figure of the Snapshot, followed by its change since the mark."""
    value = value_of(view.snapshot) if view.snapshot else None
    return Line(text_of(value), style).join(change(view, value_of, points=points))


def field_of(path: str) -> ValueOf:
    """A reader of the figure at a path of fields such as "steps.mfu"; it returns None if a field there is None."""

    def value_of(snapshot: Snapshot) -> float | None:
        value: Any = snapshot
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        return cast("float | None", value)

    return value_of


def recent(snapshot: Snapshot, name: str) -> float | None:
    """The mean of a series over the last SETTLING_SECONDS, so that normal fluctuation does not look like a change.

    None if it has no value in that time.
    """
    series = snapshot.series.get(name)
    if series is None:
        return None
    known = zip(series.times, series.values, strict=False)
    values = [value for time, value in known if value is not None and time > snapshot.time - SETTLING_SECONDS]
    return sum(values) / len(values) if values else None


@lru_cache(maxsize=1)
def judged(mark: Snapshot, snapshot: Snapshot | None) -> Comparison:
    """Compares the steps since the mark with those before it."""
    before = mark.steps.recent if mark.steps else ()
    recent = snapshot.steps.recent if snapshot and snapshot.steps else ()
    return compare(before, [record for record in recent if record.end - record.seconds >= mark.time])


def since_mark(view: View, width: int) -> Line | None:
    """A line that says how the speed of steps or requests has changed since the mark; None without a mark."""
    if view.mark is None or view.snapshot is None:
        return None
    line = Line(f"since the mark{_when(view.mark, view.snapshot)}: ", DIM)
    if view.snapshot.serving is not None and view.mark.serving is not None:
        return line.join(_served(view.mark.serving, view.snapshot.serving, width - line.width))
    comparison = judged(view.mark, view.snapshot)
    if view.snapshot.steps is None or not view.snapshot.steps.recent:
        return line.add("step times need the hook", DIM)
    line.add(comparison.words, OUTCOMES[comparison.outcome])
    if comparison.before is not None and comparison.after is not None:
        times = f"  {duration(comparison.before)} → {duration(comparison.after)} a step"
        line.join_fitting([Line(times, BRIGHT)], width)
    verdicts = (snapshot.diagnosis.verdicts for snapshot in (view.mark, view.snapshot))
    was, now = (each[0].id if each else None for each in verdicts)
    if was is not None and was != now:
        line.join_fitting([Line("  was ", DIM).add(was, BRIGHT)], width)
    return line


def _when(mark: Snapshot, now: Snapshot) -> str:
    """How long ago the mark was set; for a mark from an earlier run, when that was."""
    if mark.time == -math.inf:
        return f" of the run at {moment(mark.wall, now.wall)}"
    seconds = max(0.0, now.time - mark.time)
    return f", {seconds:.0f} s" if seconds < MINUTE else f", {duration(round(seconds))}"


def _served(before: Serving, after: Serving, width: int) -> Line:
    """Request rate, p50 and p99 of a server at the mark and now, as many as fit."""
    rates = (f"{significant(serving.requests_per_second).strip()}" for serving in (before, after))
    line = Line(" → ".join(rates), BRIGHT).add(" req/s", DIM)
    for percentile in ("p50", "p99"):
        values = (getattr(serving.latency, percentile) if serving.latency else None for serving in (before, after))
        line.join_fitting([Line(f"  {percentile} ", DIM).add(" → ".join(map(duration, values)), BRIGHT)], width)
    return line
