"""Are steps faster or slower than they were, and by how much more than chance explains? Pure.

Neighbouring steps resemble each other (a loader that falls behind, a device that warms up), so single steps would make
any difference look certain. They are put together into blocks, and blocks are compared: by a rank test, which a few
long steps do not mislead, and by their medians, with an interval from how far they scatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Literal

import msgspec

from aitop.model.steps import StepRecord

LEAST_STEPS = 20
LEAST_BLOCKS, MOST_BLOCKS = 10, 24
LEAST_CHANGE = 0.01
CERTAIN = 0.01
# The standard deviation of a normal distribution by its median absolute deviation, and a median's error by a mean's.
BY_DEVIATION, BY_MEAN = 1.4826, 1.2533
HALF_WIDTH = 2.2

Outcome = Literal["faster", "slower", "same", "unknown"]


class Comparison(msgspec.Struct, frozen=True):
    """`factor` is the speed since relative to the speed before (2.0: twice as fast), `margin` the half width of its
    95 % interval; both None while the outcome is unknown. `before` and `after` are typical step times in seconds.

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
        """The outcome for a person: '1.32× faster (±0.05)'."""
        if self.factor is None or self.margin is None:
            return f"not enough steps yet ({self.steps} of {LEAST_STEPS})"
        if self.outcome == "same":
            return f"no change beyond noise (±{max(1.0, self.margin * 100):.0f} %)"
        factor = self.factor if self.outcome == "faster" else 1 / self.factor
        margin = self.margin * factor / self.factor
        return f"{factor:.2f}× {self.outcome} (±{max(0.01, margin):.2f})"


def compare(before: Sequence[StepRecord], after: Sequence[StepRecord]) -> Comparison:
    """Steps before a change with those since. Saving and evaluating are not part of a step's speed."""
    old, new = _seconds(before), _seconds(after)
    fewer = min(len(old), len(new))
    if fewer < LEAST_STEPS:
        return Comparison("unknown", fewer)
    old_blocks, new_blocks = _blocks(old), _blocks(new)
    was, now = median(old_blocks), median(new_blocks)
    factor = was / now
    margin = HALF_WIDTH * factor * math.hypot(_error(old_blocks, was), _error(new_blocks, now))
    certain = chance(old_blocks, new_blocks) < CERTAIN and abs(factor - 1) > max(margin, LEAST_CHANGE)
    outcome: Outcome = "same" if not certain else "faster" if factor > 1 else "slower"
    return Comparison(outcome, fewer, factor, margin, was, now)


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """How likely a difference like this is where there is none: two-sided Mann-Whitney, normal approximation."""
    ranked = sorted([(value, 0) for value in first] + [(value, 1) for value in second])
    total, ties, at = 0.0, 0.0, 0
    while at < len(ranked):
        end = at
        while end < len(ranked) and ranked[end][0] == ranked[at][0]:
            end += 1
        total += sum(1 for _, side in ranked[at:end] if side == 0) * (at + 1 + end) / 2
        ties += (end - at) ** 3 - (end - at)
        at = end
    n, m = len(first), len(second)
    count = n + m
    variance = n * m / 12 * (count + 1 - ties / (count * (count - 1)))
    if variance <= 0:
        return 1.0
    distance = abs(total - n * (count + 1) / 2) - 0.5
    return math.erfc(max(0.0, distance) / math.sqrt(2 * variance))


def _seconds(records: Sequence[StepRecord]) -> list[float]:
    times = [record.seconds - record.save - record.evaluation for record in records]
    return [seconds for seconds in times if seconds > 0]


def _blocks(seconds: Sequence[float]) -> list[float]:
    """Means of neighbouring steps: at most MOST_BLOCKS blocks, at least LEAST_BLOCKS."""
    count = max(LEAST_BLOCKS, min(MOST_BLOCKS, len(seconds) // 5))
    cuts = [number * len(seconds) // count for number in range(count + 1)]
    return [sum(seconds[start:end]) / (end - start) for start, end in pairwise(cuts)]


def _error(blocks: Sequence[float], middle: float) -> float:
    """The relative standard error of the blocks' median."""
    deviation = median(abs(value - middle) for value in blocks)
    return BY_MEAN * BY_DEVIATION * deviation / math.sqrt(len(blocks)) / middle
