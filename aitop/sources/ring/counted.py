"""Fills in steps that the hook only counted, by steps that were timed shortly before.

Those are repeated, and scaled to the time that all counted steps took together. So the number of steps and the sum of
their lengths are exact; single lengths and phases are estimates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, cycle, islice

from aitop.sources.ring.parts import Made, Parts

MOST_TEMPLATES = 64
# Counting lasts a fraction of a second: more steps between two reads cannot be what a hook has seen.
MOST_AT_ONCE = 65536


class CountedSteps:
    """Repeats the steps timed last in place of counted ones. `room` is how many more may be made in this read."""

    def __init__(self) -> None:
        self.room = MOST_AT_ONCE
        self._timed: deque[Made] = deque(maxlen=MOST_TEMPLATES)
        self._templates: list[Made] = []

    def met(self, made: Made) -> None:
        """Remember a timed step, unless it contains what would have ended the counting, such as saving."""
        parts = made.parts
        if not (made.estimated or made.skipped or parts.save or parts.loader_start or parts.evaluation):
            self._timed.append(made)

    def begin(self, longest: int) -> None:
        """Choose the steps that stand for counted ones, none of which is longer than `longest`."""
        self._templates = [made for made in self._timed if 0 < made.length <= longest] or self._templates

    def stand_ins(self, number: int, start: int, end: int, count: int) -> Iterator[Made]:
        """Yield `count` steps from `start` to `end`, numbered after `number`; none without a timed step to repeat."""
        templates = self._templates[:count]
        if not templates or count > self.room or end - start < count:
            return
        self.room -= count
        rounds, rest = divmod(count, len(templates))
        whole = rounds * sum(made.length for made in templates) + sum(made.length for made in templates[:rest])
        scale = (end - start) / whole
        parts = cycle([made.parts.scaled(scale) for made in templates])
        before = start
        for passed in islice(accumulate(cycle([made.length for made in templates])), count):
            number += 1
            # Not beyond the end, by rounding.
            now = min(end, start + round(passed * scale))
            yield Made(number, "train", now, now - before, next(parts), estimated=True)
            before = now

    def unseen(self, length: int, whole: bool) -> Parts | None:
        """Estimate where `length` ns of a step went: of the `whole` step, or of its part from the first forward on."""
        template = self._templates[-1] if self._templates else None
        if template is None:
            return None
        parts = template.parts
        span = template.length if whole else template.length - parts.data_wait - parts.prepare
        if span <= 0:
            return None
        if not whole:
            return replace(parts, data_wait=0, prepare=0).scaled(length / span)
        # Not scaled up: why the step was longer than others is not known.
        return parts.scaled(min(1.0, length / span))
