"""Whether a wait for data has passed: data that are read for the first time often come from memory later. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.diagnosis.evidence import records
from aitop.diagnosis.kept import kept
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord

# Windows that must have shown next to nothing of a wait for it to be over, and shown it for it to be told from a start.
QUIET_WINDOWS = 2
SEEN_WINDOWS = 4
# What is less than this part of the whole wait is quiet, and what is less than that part of its loudest window: a
# window of stacks has a few dozen samples, of which one or two in a batch come by chance.
QUIET, QUIET_BESIDE_LOUDEST = 0.35, 0.25


def over(snapshot: Snapshot, share: float, *, in_loader: bool) -> bool:
    """Whether a wait of `share` of all time is over: none in the newest windows, and it never came back after a rest.

    A wait that comes and goes, as one at each epoch's start, has been quiet before. Waits are `in_loader`, which is
    timed by itself, or anywhere beside the phases.
    """
    windows = _windows(snapshot, in_loader)
    quiet = [value < _quiet(windows, share) for value in windows]
    loud = [index for index, still in enumerate(quiet) if not still]
    if not loud or len(quiet) - 1 - loud[-1] < QUIET_WINDOWS:
        return False
    return not _came_back(quiet, loud)


def brief(snapshot: Snapshot, share: float, *, in_loader: bool) -> bool:
    """Whether the wait was seen in so few windows yet that it may be how the run begins: none, if it came back."""
    windows = _windows(snapshot, in_loader)
    quiet = [value < _quiet(windows, share) for value in windows]
    loud = [index for index, still in enumerate(quiet) if not still]
    return bool(windows) and len(loud) < SEEN_WINDOWS and not _came_back(quiet, loud)


def _came_back(quiet: Sequence[bool], loud: Sequence[int]) -> bool:
    return bool(loud) and _in_a_row(quiet[loud[0] : loud[-1]], QUIET_WINDOWS)


def _quiet(windows: Sequence[float], share: float) -> float:
    """Below what a window is quiet."""
    return max(QUIET * share, QUIET_BESIDE_LOUDEST * max(windows, default=0.0))


def _windows(snapshot: Snapshot, in_loader: bool) -> list[float]:
    """The most that waiting for data may have been of each second of steps, else of each window of stacks."""
    steps = records(snapshot)
    if steps:
        return _by_second(steps, in_loader)
    beside = snapshot.series.get("beside")
    return [value for value in beside.values if value is not None] if beside is not None else []


@kept
def _by_second(steps: tuple[StepRecord, ...], in_loader: bool) -> list[float]:
    # One loop without calls: a fast run has thousands of steps.
    waited: dict[int, float] = {}
    whole: dict[int, float] = {}
    for step in steps:
        second, wait = int(step.end), step.data_wait + step.loader_start
        waited[second] = waited.get(second, 0.0) + (wait if in_loader else wait + step.outside)
        whole[second] = whole.get(second, 0.0) + step.seconds
    return [waited[second] / whole[second] if whole[second] > 0 else 0.0 for second in sorted(whole)]


def _in_a_row(values: Sequence[bool], count: int) -> bool:
    run = 0
    for value in values:
        run = run + 1 if value else 0
        if run >= count:
            return True
    return False
