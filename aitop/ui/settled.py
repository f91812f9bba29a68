"""Rows in order of weight that do not change places for a trifle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item")

OVERTAKES = 1.25
MOST_LISTS = 2000


class Settled:
    """Remembers the order of lists. One item moves before another only when it weighs OVERTAKES times as much."""

    def __init__(self) -> None:
        self._before: dict[Hashable, dict[Hashable, int]] = {}

    def order(
        self,
        name: Hashable,
        items: Sequence[Item],
        key: Callable[[Item], Hashable],
        weight: Callable[[Item], float],
    ) -> list[Item]:
        """The items of the list `name`, heaviest first but for the inertia; new ones come in by their weight."""
        before = self._before.get(name, {})
        ordered = sorted((one for one in items if key(one) in before), key=lambda one: before[key(one)])
        for index in range(1, len(ordered)):
            place = index
            while place > 0 and weight(ordered[place]) > OVERTAKES * weight(ordered[place - 1]):
                ordered[place - 1], ordered[place] = ordered[place], ordered[place - 1]
                place -= 1
        for one in sorted((one for one in items if key(one) not in before), key=weight, reverse=True):
            place = next((at for at, other in enumerate(ordered) if weight(other) < weight(one)), len(ordered))
            ordered.insert(place, one)
        if len(self._before) > MOST_LISTS:
            self._before.clear()
        self._before[name] = {key(one): place for place, one in enumerate(ordered)}
        return ordered
