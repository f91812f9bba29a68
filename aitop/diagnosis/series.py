"""Questions about a series of measurements: its mean, its rise, a straight line through it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from aitop.model.snapshot import Series, Snapshot


class Trend(msgspec.Struct, frozen=True):
    """Least-squares line: `slope` per second, `growth` over `seconds`, `fit` the share of variance explained (0..1).

    `rising` is the share of successive differences that go up, `late_slope` the slope of the second half alone.
    """

    slope: float
    growth: float
    seconds: float
    fit: float
    rising: float
    late_slope: float


def values_since(snapshot: Snapshot, name: str, seconds: float) -> list[tuple[float, float]]:
    """Times and values of a series that were measured in the last `seconds`."""
    series = snapshot.series.get(name)
    pairs = zip(series.times, series.values, strict=True) if series is not None else ()
    return [(time, value) for time, value in pairs if value is not None and time >= snapshot.time - seconds]


def mean_of(snapshot: Snapshot, name: str, seconds: float = 30.0) -> float | None:
    """Mean of a series over the last `seconds`; None where there is nothing."""
    values = [value for _, value in values_since(snapshot, name, seconds)]
    return sum(values) / len(values) if values else None


def rise(snapshot: Snapshot, name: str, seconds: float) -> float | None:
    """By how much a counter went up within the last `seconds`; None without two readings of it."""
    values = values_since(snapshot, name, seconds)
    return values[-1][1] - values[0][1] if len(values) >= 2 else None


def trend(series: Series | None, since: float) -> Trend | None:
    """The line through the values newer than `since`; None with fewer than four."""
    pairs = zip(series.times, series.values, strict=True) if series is not None else ()
    recent = [(time, float(value)) for time, value in pairs if value is not None and time >= since]
    if len(recent) < 4:
        return None
    times, values = [time - recent[0][0] for time, _ in recent], [value for _, value in recent]
    slope, fit = line_through(times, values)
    ups = sum(1 for before, after in pairwise(values) if after > before)
    half = len(values) // 2
    late_slope, _ = line_through(times[half:], values[half:])
    return Trend(slope, slope * times[-1], times[-1], fit, ups / (len(values) - 1), late_slope)


def line_through(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Slope and share of variance explained (0..1) of the least-squares line."""
    middle_time, middle = sum(times) / len(times), sum(values) / len(values)
    spread = sum((time - middle_time) ** 2 for time in times)
    if spread <= 0:
        return 0.0, 0.0
    both = sum((time - middle_time) * (value - middle) for time, value in zip(times, values, strict=True))
    variance = sum((value - middle) ** 2 for value in values)
    return both / spread, (both * both / (spread * variance) if variance > 0 else 0.0)
