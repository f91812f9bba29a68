"""Whether a wait for data is none of the run's steady state: past, at its start, or made by other programs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.diagnosis.causes.oversubscription import others_have_cores
from aitop.diagnosis.evidence import loader_workers, records
from aitop.diagnosis.rule import CRITICAL_SHARE
from aitop.model.snapshot import Snapshot

LEAST_SECONDS = 1.5
# Windows that must have shown next to nothing of a wait for it to be over, and shown it for it to be told from a start.
QUIET_WINDOWS = 2
SEEN_WINDOWS = 4
# A window counts as quiet if it holds less than this part of the mean wait, or of its loudest window's: a window of
# stacks has a few dozen samples, of which one or two in a batch come by chance.
QUIET, QUIET_BESIDE_LOUDEST = 0.35, 0.25

FIRST_TIME = "seen too briefly to tell it from how a run begins: what is read for the first time may be cached later"
FEW_SECONDS = "seen for hardly more than a second: whether the wait lasts is not known yet"
STARVED = "other programs use the cores that the loader's workers wait for: left alone, they may well keep up"
PASSED = "steps have not waited lately: data that were read for the first time may come from memory now"


def why_transient(snapshot: Snapshot, share: float, *, in_loader: bool, by_others: bool) -> str | None:
    """Why a wait of `share` of the time may not last, in words; None where it does.

    Waits are `in_loader`, which is timed by itself, or anywhere beside the phases. `by_others`: others make the data.
    """
    quiet = _quiet_windows(snapshot, share, in_loader=in_loader)
    loud = [index for index, still in enumerate(quiet) if not still]
    # A wait that comes and goes, as one at each epoch's start, has been quiet before.
    came_back = bool(loud) and _in_a_row(quiet[loud[0] : loud[-1]], QUIET_WINDOWS)
    if loud and not came_back and len(quiet) - 1 - loud[-1] >= QUIET_WINDOWS:
        return PASSED
    steps, workers = records(snapshot), loader_workers(snapshot)
    watched = sum(step.seconds for step in steps) if steps else snapshot.stacks.seconds if snapshot.stacks else 0.0
    if watched < LEAST_SECONDS:
        return FEW_SECONDS
    if share < CRITICAL_SHARE and workers and others_have_cores(snapshot):
        return STARVED
    brief = bool(quiet) and len(loud) < SEEN_WINDOWS and not came_back
    return FIRST_TIME if brief and not workers and not by_others else None


def _quiet_windows(snapshot: Snapshot, share: float, *, in_loader: bool) -> list[bool]:
    """For each second of steps, else for each window of stacks, whether there was next to nothing of the wait in it."""
    steps, beside = records(snapshot), snapshot.series.get("beside")
    windows = [value for value in beside.values if value is not None] if beside is not None else []
    if steps:
        waited: dict[int, float] = {}
        whole: dict[int, float] = {}
        for step in steps:
            second, wait = int(step.end), step.data_wait + step.loader_start
            waited[second] = waited.get(second, 0.0) + (wait if in_loader else wait + step.outside)
            whole[second] = whole.get(second, 0.0) + step.seconds
        windows = [waited[second] / whole[second] if whole[second] > 0 else 0.0 for second in sorted(whole)]
    least = max(QUIET * share, QUIET_BESIDE_LOUDEST * max(windows, default=0.0))
    return [value < least for value in windows]


def _in_a_row(values: Sequence[bool], count: int) -> bool:
    return any(all(values[start : start + count]) for start in range(len(values) - count + 1))
