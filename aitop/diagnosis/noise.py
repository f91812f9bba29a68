"""The error of the mean of an autocorrelated series, and whether two series differ by more than chance.

Pure and deterministic: the same series gives the same answer.

Neighbouring steps resemble each other, so they are taken in blocks. The variance of a circular block bootstrap has a
closed form: the variance of the means of all blocks of one length, one from each start. The right length is not known,
so several are tried and the widest interval counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

LEAST_VALUES = 20
# Numbers of blocks into which a series is divided. With fewer, their scatter cannot be estimated well.
BLOCKS = (5, 8, 12, 24, 48)
NORMAL = 1.96
ONE_SIDED = 1.645
# The share of values clipped at either end, so that a few long units neither make nor hide a change.
OUTLIERS = 0.05


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of a series; it means little with fewer than LEAST_VALUES values."""
    count, middle = len(values), fmean(values)
    totals = [0.0, *accumulate(value - middle for value in (*values, *values))]
    widest = 0.0
    for blocks in BLOCKS:
        length = count // blocks
        if length < 1:
            break
        squares = sum(((totals[at + length] - totals[at]) / length) ** 2 for at in range(count)) / count
        # Student's factor, because the scatter of so few blocks is uncertain; one degree of freedom goes to their mean.
        number = count / length
        error = math.sqrt(squares / (number - 1))
        widest = max(widest, student(number - 1) * error)
    return widest


def student(freedom: float) -> float:
    """The 97.5 % point of Student's t, by its expansion in 1/freedom (within 0.4 % from 4 degrees of freedom on)."""
    z = NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def student_chance(value: float, freedom: int) -> float:
    """The two-sided p-value of a Student's t `value`; 1 without degrees of freedom."""
    if freedom < 1:
        return 1.0
    angle = math.atan(abs(value) / math.sqrt(freedom))
    # The integral of cos^(freedom - 1) from 0 to the angle, by its recurrence, as a part of that up to a right angle.
    odd = freedom % 2
    part, term = (2 * angle / math.pi, 2 / math.pi) if odd else (math.sin(angle), 1.0)
    for power in range(2 if odd else 3, freedom, 2):
        term *= 1.0 if power == 2 else (power - 2) / (power - 1)
        part += term * math.sin(angle) * math.cos(angle) ** (power - 1)
    return max(0.0, 1.0 - part)


def least_mean(events: int) -> float:
    """The lower 95 % bound of a Poisson mean, given the number of events that came.

    By the approximation of Wilson and Hilferty: 0.04 for one event, 0.8 for three, 5.4 for ten.
    """
    if events <= 0:
        return 0.0
    return events * (1.0 - 1.0 / (9.0 * events) - ONE_SIDED / (3.0 * math.sqrt(events))) ** 3


def warm_up(values: Sequence[float]) -> int:
    """How many values at the start are warm-up: each is larger than all that follow it; half of all at most."""
    largest = list(accumulate(reversed(values), max))[::-1]
    left_out = 0
    while left_out < len(values) // 2 and values[left_out] > largest[left_out + 1]:
        left_out += 1
    return left_out


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """The p-value of the difference between two series: two-sided Mann-Whitney, normal approximation."""
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


def without_outliers(values: Sequence[float]) -> list[float]:
    """The values in their order, the smallest and largest OUTLIERS of them clipped to the range of the others."""
    if not values:
        return []
    ordered, some = sorted(values), int(OUTLIERS * len(values))
    low, high = ordered[some], ordered[-1 - some]
    return [min(high, max(low, value)) for value in values]
