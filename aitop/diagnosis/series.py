"""Questions about a series of measurements: its mean, its rise, a straight line through it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import pvariance
from typing import TypeVar

import msgspec

from aitop.diagnosis.noise import ONE_SIDED
from aitop.model.snapshot import Series, Snapshot

Value = TypeVar("Value")


class Trend(msgspec.Struct, frozen=True):
    """Least-squares line: `slope` per second, `growth` over `seconds`, `fit` the share of variance explained (0..1).

    `rising` is the share of successive differences that go up, `late_slope` the slope of the second half alone. `least`
    is the lower 95 % bound of the slope, if the values are a random walk with a drift.
    """

    slope: float
    growth: float
    seconds: float
    fit: float
    rising: float
    late_slope: float
    least: float


def values_since(snapshot: Snapshot, name: str, seconds: float) -> list[tuple[float, float]]:
    """Times and values of a series that were measured in the last `seconds`."""
    series = snapshot.series.get(name)
    pairs = zip(series.times, series.values, strict=True) if series is not None else ()
    return [(time, value) for time, value in pairs if value is not None and time >= snapshot.time - seconds]


def mean_of(snapshot: Snapshot, name: str, seconds: float | None = None) -> float | None:
    """Mean of a series over the last `seconds`, by default the Snapshot's window; None where there is nothing."""
    values = [value for _, value in values_since(snapshot, name, snapshot.window if seconds is None else seconds)]
    return sum(values) / len(values) if values else None


def rise(snapshot: Snapshot, name: str, seconds: float) -> float | None:
    """By how much a series rose within the last `seconds`; None with fewer than two readings."""
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
    rising = ups / (len(values) - 1)
    return Trend(slope, slope * times[-1], times[-1], fit, rising, late_slope, _least_slope(times, values))


def _least_slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The lower 95 % bound of the drift of a random walk: a few jumps in a short time are no lasting slope."""
    seconds, count = times[-1] - times[0], len(values) - 1
    if seconds <= 0:
        return 0.0
    drift = (values[-1] - values[0]) / seconds
    steps = zip(pairwise(times), pairwise(values), strict=True)
    scatter = sum(
        (to - at - drift * (end - start)) ** 2 / (end - start) for (start, end), (at, to) in steps if end > start
    )
    return drift - ONE_SIDED * math.sqrt(scatter / (count - 1) / seconds)


def line_through(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Slope and share of variance explained (0..1) of the least-squares line."""
    middle_time, middle = sum(times) / len(times), sum(values) / len(values)
    spread = sum((time - middle_time) ** 2 for time in times)
    if spread <= 0:
        return 0.0, 0.0
    both = sum((time - middle_time) * (value - middle) for time, value in zip(times, values, strict=True))
    variance = sum((value - middle) ** 2 for value in values)
    return both / spread, (both * both / (spread * variance) if variance > 0 else 0.0)


def in_parts(values: Sequence[Value], number: int) -> list[Sequence[Value]]:
    """The values in their order, divided into `number` parts of (nearly) equal length."""
    cuts = [len(values) * part // number for part in range(number + 1)]
    return [values[start:end] for start, end in pairwise(cuts)]


def gradual(values: Sequence[float], changes: Iterable[int]) -> bool:
    """Whether a straight line fits the values better than two levels do, at whichever of these indices they change."""
    beside_line = (1.0 - line_through(range(len(values)), values)[1]) * pvariance(values) * len(values)
    return all(
        beside_line < pvariance(values[:at]) * at + pvariance(values[at:]) * (len(values) - at) for at in changes
    )
