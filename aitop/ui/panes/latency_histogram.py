"""A histogram of request latencies with logarithmic buckets; its tail is coloured by cause. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from aitop.diagnosis.causes.serving.tail import number_of_slow
from aitop.model.units import count, duration, plural
from aitop.model.verdict import Diagnosis
from aitop.ui.theme.palette import DIM, FAINT, LATENCIES, OTHER_CAUSE, TAIL, TAIL_CAUSE, TEXT, Kind
from aitop.ui.widgets.bars import Parts, height_of, stacked
from aitop.ui.widgets.line import Line
from aitop.ui.widgets.plot import scaled
from aitop.ui.words import one_line, share_text

SCALE = 7
PER_DECADE = (48, 24, 12, 6, 3)
"""Possible numbers of buckets per factor of ten: multiples of 3, because the axis ends at thirds of a decade."""
MOST_CELLS = 3
ROUND = (1.0, 2.0, 5.0)
LEAST_ROWS, LEAST_WIDTH = 4, 30
LEAST_PART = 0.05
"""Other causes that explain a smaller share (0..1) of the tail are not named."""


class Cause(NamedTuple):
    """A cause of the slowest requests' latency, and the share (0..1) of their extra time that it explains."""

    words: str
    share: float
    kind: Kind


class Axis(NamedTuple):
    """A logarithmic axis: bucket i, from `first` on, starts at 10 ** (i / per_decade) s and is `cells` cells wide."""

    first: int
    buckets: int
    per_decade: int
    cells: int

    def bucket(self, seconds: float) -> int:
        """The index of a latency's bucket, from 0; beyond the ends of the axis, the first or the last bucket."""
        place = math.floor(math.log10(max(seconds, 1e-9)) * self.per_decade) - self.first
        return max(0, min(self.buckets - 1, place))

    def cell(self, seconds: float) -> int:
        return round((math.log10(seconds) * self.per_decade - self.first) * self.cells)


def axis_for(shortest: float, longest: float, cells: int) -> Axis:
    """An axis in `cells` cells from the shortest to the longest latency (seconds), with the finest buckets that fit."""
    first = math.floor(math.log10(max(shortest, 1e-9)) * 3)
    last = max(first + 1, math.ceil(math.log10(max(longest, 1e-9)) * 3 + 1e-9))
    per_decade = next((one for one in PER_DECADE if (last - first) * one // 3 <= cells), PER_DECADE[-1])
    buckets = min(max(1, cells), (last - first) * per_decade // 3)
    return Axis(first * per_decade // 3, buckets, per_decade, max(1, min(MOST_CELLS, cells // buckets)))


def tail_causes(diagnosis: Diagnosis) -> list[Cause]:
    """The causes of the tail by the verdict latency-tail: its subtype, then at most one other of its parts."""
    verdict = next((one for one in diagnosis.verdicts if one.id == "latency-tail" and one.subtype), None)
    if verdict is None or verdict.share is None:
        return []
    named = Cause(verdict.subtype or "", min(1.0, verdict.share), TAIL_CAUSE)
    others = [
        Cause(part.name, part.share, OTHER_CAUSE)
        for part in verdict.parts
        if part.name != verdict.subtype and part.share >= LEAST_PART
    ]
    return [named, *others[:1]]


def histogram(
    latencies: Sequence[float], causes: Sequence[Cause], width: int, height: int, *, letters: bool = False
) -> list[Line]:
    """The histogram of `latencies` (seconds), with counts on a logarithmic scale and the tail divided by cause.

    Empty if there are no requests or too few cells.
    """
    if not latencies or height < LEAST_ROWS or width < LEAST_WIDTH:
        return []
    ordered = sorted(latencies)
    cells = width - SCALE
    axis = axis_for(ordered[0], ordered[-1], cells)
    slowest = number_of_slow(len(ordered))
    counts = Counter(map(axis.bucket, ordered))
    tail = Counter(map(axis.bucket, ordered[-slowest:]))
    columns = [_column(counts[one], tail[one], causes) for one in range(axis.buckets) for _ in range(axis.cells)]
    rows = height - 2
    drawn = stacked(columns, len(columns), rows, max(map(height_of, columns)), letters=letters)
    lines = scaled(drawn, {0: count(max(counts.values())), rows - 1: "1"}, SCALE)
    return [_caption(len(ordered), slowest, causes, width, letters), *lines, _labels(axis, cells)]


def _column(number: int, slow: int, causes: Sequence[Cause]) -> Parts:
    """A column for a bucket of `number` requests, `slow` of which are in the tail. Its height is log2(1 + number)."""
    if not number:
        return [(LATENCIES, 0.0)]
    height = math.log2(1 + number)
    unit = height / number
    parts, left = [(LATENCIES, unit * (number - slow))], 1.0
    for cause in causes:
        share = min(left, cause.share)
        left -= share
        parts.append((cause.kind, unit * slow * share))
    return [*parts, (TAIL, unit * slow * left)]


def _caption(number: int, slowest: int, causes: Sequence[Cause], width: int, letters: bool) -> Line:
    """The number of requests and of the slowest ones, with the causes of the tail and their shares."""
    slow = count(slowest)
    if not causes:
        mark = Line("  ").add(TAIL.letter if letters else "█", TAIL.ink).add(f" slowest {slow}", FAINT)
        return Line(plural(number, "request"), FAINT).join_fitting([mark], width)
    parts = Line()
    for cause in causes:
        mark = Line(f" {cause.kind.letter if letters else '█'} ", cause.kind.ink)
        parts.join(mark).add(share_text(cause.share).strip(), TEXT).add(f" {one_line(cause.words)}", DIM)
    heads = (f"slowest {slow} of {count(number)}:", f"slowest {slow}:", f"{slow}:")
    head = next((head for head in heads if len(head) + parts.width <= width), heads[-1])
    return Line(head, FAINT).join(parts).fit(width)


def _labels(axis: Axis, cells: int) -> Line:
    """Labels of the axis: powers of ten, then 2 and 5 times these where they fit between."""
    exponents = range(axis.first // axis.per_decade, (axis.first + axis.buckets) // axis.per_decade + 1)
    taken: dict[int, str] = {}
    for digit in ROUND:
        for exponent in exponents:
            seconds = digit * 10.0**exponent
            # Drop needless digits: 5 ms, 200 ms, 1 s.
            text, at = duration(seconds).replace(".00 s", " s").replace(".0 ms", " ms"), axis.cell(seconds)
            if at < 0 or at + len(text) > min(cells, axis.buckets * axis.cells + len(text)):
                continue
            if all(at >= place + len(other) + 2 or place >= at + len(text) + 2 for place, other in taken.items()):
                taken[at] = text
    line = Line().to(SCALE)
    for at in sorted(taken):
        line.to(SCALE + at).add(taken[at], FAINT)
    return line
