"""How often to sample so that watching stays cheap."""

from __future__ import annotations

CORES = 0.015
CREDIT_SECONDS = 0.6
LONGEST_INTERVAL = 8.0
# At first a picture is wanted soon, and a part of few samples is known only so well; so many in all at most.
QUICK_SECONDS, QUICK_RATE, RATE = 15.0, 50, 20
QUICK_IN_ALL = 150


class Budget:
    """CPU time that sampling may take: CORES of a core, and CREDIT_SECONDS more at the start or after a rest.

    Times are monotonic seconds.
    """

    def __init__(self, now: float) -> None:
        self._left = CREDIT_SECONDS
        self._then = now

    @property
    def tight(self) -> bool:
        """Whether the credit is used up."""
        return self._left < 0

    def spend(self, cpu: float, started: float, now: float) -> float:
        """Account for `cpu` seconds of a window that began at `started`: seconds from there to the next one's start."""
        self._left = min(CREDIT_SECONDS, self._left + CORES * (now - self._then)) - cpu
        self._then = now
        if self._left >= 0:
            return 0.0
        return min(LONGEST_INTERVAL, now - started - self._left / CORES)


def rate_of(sampled: float, processes: int) -> int:
    """How often a second to sample each of so many processes, after `sampled` seconds of windows."""
    if sampled >= QUICK_SECONDS:
        return RATE
    return max(RATE, min(QUICK_RATE, QUICK_IN_ALL // max(1, processes)))
