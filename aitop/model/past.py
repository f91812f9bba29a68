"""What a run did over hours: sums over stretches of time, the longer the older they are."""

from __future__ import annotations

from typing import Literal

import msgspec

# FILE:LINE; empty where no line of the user's was on the stack.
PastLine = str
PastUnit = Literal["step", "request"]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the time from `start` to `end` (monotonic seconds).

    `sums` has for each name a sum and what to divide it by, for the mean. Per unit (a step or a request), in seconds:
    `seconds` (all of it), each phase by its key in `model.phases`, `queue` of requests, `gc` and `cpu` (which lie
    within the phases); not in seconds: `tokens`, `samples`, `recompiles`. Means over time: `run_delay`, `waited`,
    `others` and `own` (cores), `read` (bytes a second), `clock` (MHz), `throttled`.
    A name is missing where nothing was measured.
    `lines` counts the stack samples of the thread that makes the units by line, `samples` all of them.
    `first` is the number of the first step that ended in it, counted since the hook came in.
    """

    start: float
    end: float
    sums: dict[str, tuple[float, float]]
    lines: dict[PastLine, int] = {}
    samples: int = 0
    first: int | None = None

    def mean(self, name: str) -> float | None:
        """The mean of one of the sums; None where it was not measured."""
        total, weight = self.sums.get(name, (0.0, 0.0))
        return total / weight if weight else None


class Past(msgspec.Struct, frozen=True, kw_only=True):
    """The stretches of the processes that make the units, and of the machine, the oldest first."""

    unit: PastUnit
    stretches: tuple[Stretch, ...] = ()
