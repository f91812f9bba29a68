"""Predicted speed-ups: Amdahl's law on the critical path of a step. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_SPEEDUP = 100.0
MOST_WORKERS = 32
HEADROOM = 0.9


def without(share: float) -> float:
    """The factor in steps per second if `share` (0..1) of each step's time were gone."""
    left = max(1.0 - share, 1.0 / MOST_SPEEDUP)
    return 1.0 / left


@dataclass(frozen=True)
class Loading:
    """A loader that a step waits for. Seconds per step.

    `step` is the whole step, `wait` what it waits for data, `workers` how many make it (0: the main process),
    `cores_per_worker` how much of a core each one uses, `free_cores` what could be used on top (None: unknown).
    `at_work` is the part of their time (0..1] in which the workers there are make data: less where nobody asks.
    """

    step: float
    wait: float
    workers: int
    cores_per_worker: float
    free_cores: float | None
    at_work: float = 1.0

    @property
    def compute(self) -> float:
        """The step without the wait."""
        return max(self.step - self.wait, self.step / MOST_SPEEDUP)

    @property
    def load(self) -> float:
        """Seconds of one worker to load one batch: saturated workers each take as many steps as there are workers."""
        return self.step * self.workers * self.at_work if self.workers else self.wait

    def step_with(self, workers: int) -> float:
        """Predicted step time with that many workers, loading and computing overlapped, within the cores there are."""
        return max(self.compute, self.load / workers, self._core_bound())

    def _core_bound(self) -> float:
        """The shortest step in which the cores in reach can do the CPU work of loading and computing."""
        if self.free_cores is None:
            return 0.0
        in_reach = 1.0 + self.workers * self.cores_per_worker + self.free_cores
        return (self.compute + self.load * self.cores_per_worker) / in_reach

    def affordable_workers(self) -> int:
        """How many workers the cores allow: those there are plus what free cores carry."""
        if self.cores_per_worker < 0.05 or self.free_cores is None:
            return MOST_WORKERS
        more = self.free_cores / self.cores_per_worker
        return min(MOST_WORKERS, self.workers + math.floor(more + 0.3))

    def best_workers(self) -> int:
        """The fewest workers that hide loading, with a little headroom, within what the cores allow."""
        wanted = math.ceil(self.load / (self.compute * HEADROOM))
        return max(self.workers, min(wanted, self.affordable_workers()), 1)

    def speedup_with(self, workers: int) -> float:
        """The factor that `workers` workers would give."""
        return self.step / self.step_with(workers)
