"""Tells whether steps became faster or slower since the user's mark, by more than noise explains. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import msgspec

from aitop.diagnosis.noise import LEAST_VALUES, chance, half_width, without_outliers
from aitop.model.steps import StepRecord

LEAST_CHANGE = 0.01
MAX_P_VALUE = 0.01

Outcome = Literal["faster", "slower", "same", "unknown"]


class Comparison(msgspec.Struct, frozen=True):
    """`factor` is the speed since relative to the speed before (2.0: twice as fast), `margin` the half width of its
    95 % interval; both None while the outcome is unknown. `before` and `after` are mean step times in seconds, with
    outliers clipped.

    `steps` is how many there are on the side that has fewer.
    """

    outcome: Outcome
    steps: int
    factor: float | None = None
    margin: float | None = None
    before: float | None = None
    after: float | None = None

    @property
    def words(self) -> str:
        """The outcome in words, as in '1.32× faster (±0.05)'."""
        if self.factor is None or self.margin is None:
            return f"not enough steps yet ({self.steps} of {LEAST_VALUES})"
        if self.outcome == "same":
            return f"no change beyond noise (±{max(1.0, self.margin * 100):.0f} %)"
        factor = self.factor if self.outcome == "faster" else 1 / self.factor
        margin = self.margin * factor / self.factor
        return f"{factor:.2f}× {self.outcome} (±{max(0.01, margin):.2f})"


def compare(before: Sequence[StepRecord], after: Sequence[StepRecord]) -> Comparison:
    """Compare the steps before a mark with those since. Time spent saving and evaluating does not count."""
    old, new = _seconds(before), _seconds(after)
    fewer = min(len(old), len(new))
    if fewer < LEAST_VALUES:
        return Comparison("unknown", fewer)
    was, now = fmean(old), fmean(new)
    factor = was / now
    margin = factor * math.hypot(half_width(old) / was, half_width(new) / now)
    certain = chance(old, new) < MAX_P_VALUE and abs(factor - 1) > max(margin, LEAST_CHANGE)
    outcome: Outcome = "same" if not certain else "faster" if factor > 1 else "slower"
    return Comparison(outcome, fewer, factor, margin, was, now)


def _seconds(records: Sequence[StepRecord]) -> list[float]:
    times = [record.seconds - record.save - record.evaluation for record in records]
    return without_outliers([seconds for seconds in times if seconds > 0])
