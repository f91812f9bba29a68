"""How far the mean of a series that resembles itself may be off. Pure, and without chance: same series, same answer.

Neighbouring steps resemble each other, so they are looked at in blocks. The variance of a circular block bootstrap has
a closed form: that of the means of all blocks of one length, wherever they begin. How long the blocks have to be is not
known, so several lengths are tried and the widest interval counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean

LEAST_VALUES = 20
# So many blocks make up the series. Fewer say too little of their own scatter.
BLOCKS = (5, 8, 12, 24, 48)
RANKED_BLOCKS = 12
# Beyond this part of a run, slower steps are no warm-up.
LONGEST_WARM_UP = 1 / 3
NORMAL = 1.96


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of a series; at least LEAST_VALUES are needed for it to mean anything."""
    count, middle = len(values), fmean(values)
    totals = [0.0, *accumulate(value - middle for value in (*values, *values))]
    widest = 0.0
    for blocks in BLOCKS:
        length = count // blocks
        if length < 1:
            break
        squares = sum(((totals[at + length] - totals[at]) / length) ** 2 for at in range(count)) / count
        # The scatter of so few blocks is itself uncertain, and measured around their own mean.
        number = count / length
        error = math.sqrt(squares / number * number / (number - 1))
        widest = max(widest, student(number - 1) * error)
    return widest


def student(freedom: float) -> float:
    """The 97.5 % point of Student's distribution, by its expansion in 1/freedom (within 0.4 % from 4 on)."""
    z = NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def blocks_of(values: Sequence[float], count: int = RANKED_BLOCKS) -> list[float]:
    """Means of neighbours, in so many blocks, for a rank test; fewer values than that come back as they are."""
    count = min(count, len(values))
    cuts = [number * len(values) // count for number in range(count + 1)]
    return [fmean(values[start:end]) for start, end in pairwise(cuts)]


def warm_up(values: Sequence[float]) -> int:
    """How many values at the start to leave out, so that the mean of the others has the least standard error (MSER)."""
    total = squares = 0.0
    best, best_error = 0, math.inf
    middle = fmean(values) if values else 0.0
    most = int(len(values) * LONGEST_WARM_UP)
    for left_out in range(len(values) - 1, -1, -1):
        value = values[left_out] - middle
        total += value
        squares += value * value
        count = len(values) - left_out
        error = (squares - total * total / count) / count**2
        if left_out <= most and error <= best_error:
            best, best_error = left_out, error
    return best
