"""Straight lines through noisy series. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from aitop.model.snapshot import Series


@dataclass(frozen=True)
class Trend:
    """Least-squares line: `slope` per second, `growth` over `seconds`, `fit` the share of variance explained (0..1).

    `rising` is the share of successive differences that go up, `late_slope` the slope of the second half alone.
    """

    slope: float
    growth: float
    seconds: float
    fit: float
    rising: float
    points: int
    late_slope: float


def trend(series: Series | None, since: float) -> Trend | None:
    """The line through the values newer than `since`; None with fewer than four."""
    if series is None:
        return None
    kept = [
        (time, value)
        for time, value in zip(series.times, series.values, strict=True)
        if value is not None and time >= since
    ]
    if len(kept) < 4:
        return None
    times = [time - kept[0][0] for time, _ in kept]
    values = [float(value) for _, value in kept]
    slope, fit = line_through(times, values)
    ups = sum(1 for before, after in pairwise(values) if after > before)
    seconds = times[-1]
    half = len(values) // 2
    late_slope, _ = line_through(times[half:], values[half:])
    return Trend(slope, slope * seconds, seconds, fit, ups / (len(values) - 1), len(values), late_slope)


def line_through(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Slope and share of variance explained (0..1) of the least-squares line."""
    middle_time, middle = sum(times) / len(times), sum(values) / len(values)
    spread = sum((time - middle_time) ** 2 for time in times)
    if spread <= 0:
        return 0.0, 0.0
    both = sum((time - middle_time) * (value - middle) for time, value in zip(times, values, strict=True))
    variance = sum((value - middle) ** 2 for value in values)
    slope = both / spread
    return slope, (both * both / (spread * variance) if variance > 0 else 0.0)
