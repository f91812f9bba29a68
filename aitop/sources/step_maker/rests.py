"""Steps that a hook only counted: in their place stand steps that were timed shortly before, scaled to the time that
all of them took together. Their number, and the sum of their lengths, are exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate, cycle, islice
from typing import Any

from aitop.sources.step_maker.sums import Made, Parts

MOST_MODELS = 64
# A pause is over in a fraction of a second: more steps between two looks are nothing that a hook has seen.
MOST_AT_ONCE = 65536

_COUNTS = frozenset(
    ("forwards", "backwards", "transfer_bytes", "blockings", "collectives", "samples", "tokens", "queue_ready", "calls")
)
_SCALED = tuple(name not in _COUNTS for name in Parts._fields)


class Rests:
    """The steps timed last that are like those of a rest. `room` is for so many more steps."""

    def __init__(self) -> None:
        self.room = MOST_AT_ONCE
        self._timed: deque[Made] = deque(maxlen=MOST_MODELS)
        self._models: list[Made] = []

    def met(self, made: Made) -> None:
        """A step was timed. What ends a rest is not in a step of one."""
        parts = made.parts
        if not (made.estimated or made.skipped or parts.save or parts.loader_start or parts.evaluation):
            self._timed.append(made)

    def begin(self, longest: int) -> None:
        """Steps of a rest are no longer than that."""
        self._models = [made for made in self._timed if 0 < made.length <= longest] or self._models

    def stand_ins(self, number: int, start: int, end: int, count: int) -> Iterator[Made]:
        """`count` steps from `start` to `end`, the first after `number`; none where nothing like them is known."""
        models = self._models[:count]
        if not models or count > self.room or end - start < count:
            return
        self.room -= count
        rounds, rest = divmod(count, len(models))
        whole = rounds * sum(made.length for made in models) + sum(made.length for made in models[:rest])
        scale = (end - start) / whole
        parts = cycle([_scaled(made.parts, scale) for made in models])
        before = start
        for passed in islice(accumulate(cycle([made.length for made in models])), count):
            number += 1
            # A whole number where all have passed.
            now = min(end, start + round(passed * scale))
            yield Made(number, "train", now, now - before, next(parts), estimated=True)
            before = now

    def unseen(self, length: int, whole: bool) -> Parts | None:
        """Where so much time of a step probably went: of all of it, or from the beginning of its first forward on."""
        model = self._models[-1] if self._models else None
        if model is None:
            return None
        parts = model.parts
        span = model.length if whole else model.length - parts.data_wait - parts.prepare
        if span <= 0:
            return None
        if not whole:
            return _scaled(parts._replace(data_wait=0, prepare=0), length / span)
        # What makes a step longer than others is not more of the same: that stays unknown.
        return _scaled(parts, min(1.0, length / span))


def _scaled(parts: Parts, scale: float) -> Parts:
    """Times are scaled, counts are kept; single calls are not known."""
    values: tuple[Any, ...] = parts
    scaled: list[Any] = [int(value * scale) if times else value for value, times in zip(values, _SCALED, strict=True)]
    return Parts(*scaled)._replace(calls=())
