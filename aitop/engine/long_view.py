"""What charts of minutes need: steps second by second, and what each loader worker did. Bounded; no second pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aitop.model.host import HostSample
from aitop.model.snapshot import Series
from aitop.model.stacks import StackWindow
from aitop.model.steps import StepRecord
from aitop.stacks.view import StackView

KEEP_SECONDS = 300
MOST_LANES = 16
LANE_SAMPLES = 120


class Second(NamedTuple):
    """The steps that ended in one second, `time` its end (monotonic): their times in seconds, and what they contain."""

    time: float
    p50: float
    p95: float
    save: float
    evaluation: float


@dataclass
class StepSeconds:
    """Steps of one process by the second in which they ended; as many seconds as a chart can show."""

    done: deque[Second] = field(default_factory=lambda: deque(maxlen=KEEP_SECONDS))
    _open: list[StepRecord] = field(default_factory=list)

    def add(self, records: Iterable[StepRecord]) -> None:
        """Take steps, oldest first."""
        for record in records:
            if self._open and int(record.end) != int(self._open[-1].end):
                self.done.append(_second(self._open))
                self._open = []
            self._open.append(record)

    def series(self) -> dict[str, Series]:
        """Times in milliseconds, and seconds of saving and evaluating; empty before the first second is over."""
        if not self.done:
            return {}
        times, p50, p95, save, evaluation = zip(*self.done, strict=True)
        return {
            "step_p50": Series(times=times, values=tuple(value * 1e3 for value in p50)),
            "step_p95": Series(times=times, values=tuple(value * 1e3 for value in p95)),
            "step_save": Series(times=times, values=save),
            "step_evaluation": Series(times=times, values=evaluation),
        }


def _second(records: Sequence[StepRecord]) -> Second:
    ordered = sorted(record.seconds for record in records)
    return Second(
        float(int(records[-1].end) + 1),
        ordered[len(ordered) // 2],
        ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))],
        sum(record.save for record in records),
        sum(record.evaluation for record in records),
    )


def worker_lanes(hosts: Iterable[HostSample], windows: Sequence[StackWindow], stacks: StackView) -> dict[str, Series]:
    """Of each loader worker (the first sixteen) the cores it used and, where stacks tell, how far it had no work."""
    kept = list(hosts)[-LANE_SAMPLES:]
    if not kept:
        return {}
    pids = [process.pid for process in kept[-1].processes if process.role == "loader-worker"][:MOST_LANES]
    wanted = set(pids)
    used: dict[int, list[float | None]] = {pid: [None] * len(kept) for pid in pids}
    for number, host in enumerate(kept):
        for process in host.processes:
            if process.pid in wanted:
                used[process.pid][number] = process.cpu
    times = tuple(host.time for host in kept)
    found = {f"worker{pid}.cpu": Series(times=times, values=tuple(values)) for pid, values in used.items()}
    for pid, idle in stacks.idle_over_time(windows, wanted).items():
        found[f"worker{pid}.idle"] = idle
    return found
