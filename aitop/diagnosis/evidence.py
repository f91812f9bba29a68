"""Questions that several rules ask of a Snapshot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from aitop.diagnosis.kept import kept
from aitop.model.gpu import GpuDevice
from aitop.model.host import ProcessSample
from aitop.model.snapshot import HotLine, ProcessStacks, Snapshot
from aitop.model.steps import StepRecord
from aitop.model.verdict import Where

MIN_STEPS = 8
MIN_SAMPLES = 15
MOST_LINES = 5
LEAST_SHARE = 0.03
SEVERAL_WINDOWS = 3
CLOSED = "without stack samples and without the hook nothing tells where the time of a step goes"
# The most that one is sure of where times of the host are all there is to a run on a GPU.
UNPROVEN = 0.45
NEARLY_ALL, UNCERTAIN = 0.85, 0.45
FAR = 0.4
MOST_CORRECTED, NEARLY = 2.0, 1.25
# In about so long a core reads again from memory what its caches hold.
REFILL_SECONDS = 0.001
COLD = "after each wait, or other work, caches are cold: how much faster the little that is left runs is not known"


@dataclass(frozen=True)
class Lines:
    """Hot lines of one kind. `share` is of the samples of the process they were taken in."""

    share: float
    lines: tuple[HotLine, ...]

    @property
    def where(self) -> tuple[Where, ...]:
        """The lines as places, the same line counted once, heaviest first."""
        return places(self.lines)


def main_stacks(snapshot: Snapshot) -> ProcessStacks | None:
    """Stacks of the process whose steps are shown."""
    if snapshot.stacks is None:
        return None
    pid = snapshot.steps.pid if snapshot.steps and snapshot.steps.pid else snapshot.target.pid
    ranks = [process for process in snapshot.stacks.processes if process.role == "rank"]
    return min(ranks, key=lambda process: (process.pid != pid, -process.samples), default=None)


def main_lines(snapshot: Snapshot, wanted: Callable[[HotLine], bool]) -> Lines:
    """Hot lines of that process's stepping thread (mostly the main one) that are `wanted`."""
    process = main_stacks(snapshot)
    if process is None or snapshot.stacks is None:
        return Lines(0.0, ())
    return _lines(
        line
        for line in snapshot.stacks.lines
        if line.pid == process.pid and line.thread == process.thread and wanted(line)
    )


MAIN = "MainThread"


def worker_lines(snapshot: Snapshot, wanted: Callable[[HotLine], bool] = lambda line: True) -> Lines:
    """Hot lines of loader workers, idle waiting left out; `share` is the mean over the workers."""
    if snapshot.stacks is None:
        return Lines(0.0, ())
    workers = {process.pid for process in snapshot.stacks.processes if process.role == "loader-worker"}
    found = _lines(
        line
        for line in snapshot.stacks.lines
        if line.pid in workers and line.activity not in ("queue", "idle") and wanted(line)
    )
    return Lines(found.share / len(workers) if workers else 0.0, found.lines)


def _lines(lines: Iterable[HotLine]) -> Lines:
    kept = sorted(lines, key=lambda line: -line.samples)
    return Lines(sum(line.share for line in kept), tuple(kept))


def places(lines: Sequence[HotLine]) -> tuple[Where, ...]:
    """Hot lines as places: one a line of code, shares relative to all the given lines, heaviest first."""
    total = sum(line.samples for line in lines)
    weights: dict[tuple[str, int], int] = {}
    first: dict[tuple[str, int], HotLine] = {}
    for line in lines:
        key = (line.file, line.line)
        weights[key] = weights.get(key, 0) + line.samples
        first.setdefault(key, line)
    ordered = sorted(weights, key=lambda key: -weights[key])
    return tuple(
        Where(
            pid=first[key].pid,
            file=first[key].file,
            line=first[key].line,
            function=first[key].function,
            share=weights[key] / total if total else None,
            text=first[key].text,
        )
        for key in ordered[:MOST_LINES]
        if key == ordered[0] or weights[key] >= LEAST_SHARE * total
    )


def within_first(lines: Lines) -> float:
    """How much of those lines' time (0..1) goes by in the function of the first one and below: what a fix can end."""
    if not lines.where:
        return 1.0
    places = [_functions(line) for line in lines.lines]
    first = places[0][-1]
    total = sum(line.samples for line in lines.lines)
    within = sum(line.samples for line, above in zip(lines.lines, places, strict=True) if first in above)
    return within / total if total else 1.0


def _functions(line: HotLine) -> list[tuple[str, str]]:
    """The functions on its stack, the outermost first; a comprehension, or a lambda, is a part of what has it."""
    found = [*((frame.file, frame.function) for frame in line.via), (line.file, line.function)]
    named = [place for place in found if not place[1].rpartition(".")[2].startswith("<")]
    return named or found


def records(snapshot: Snapshot) -> tuple[StepRecord, ...]:
    """Steps of the window; empty without the hook."""
    return snapshot.steps.recent if snapshot.steps else ()


def summed(steps: Sequence[StepRecord], value: Callable[[StepRecord], float]) -> float | None:
    """Share of the steps' time that `value` (seconds of a step) makes up; None without steps."""
    total = sum(step.seconds for step in steps)
    return sum(value(step) for step in steps) / total if total > 0 else None


def part(snapshot: Snapshot, name: str) -> float | None:
    """Share of the steps' time that the phase of this name makes up; None without the hook."""
    return _part(records(snapshot), name)


@kept
def _part(steps: tuple[StepRecord, ...], name: str) -> float | None:
    # Without a call of ours for each of thousands of steps.
    total = sum(map(attrgetter("seconds"), steps))
    return sum(map(attrgetter(name), steps)) / total if total > 0 else None


def outside_work(snapshot: Snapshot) -> float | None:
    """Share of the steps' time outside of every phase that was no saving and no evaluation; None without the hook."""
    return _outside_work(records(snapshot))


@kept
def _outside_work(steps: tuple[StepRecord, ...]) -> float | None:
    return summed(steps, lambda step: max(0.0, step.outside - step.save - step.evaluation))


def on_core(snapshot: Snapshot) -> list[StepRecord]:
    """The steps of which the thread's CPU time is known."""
    return _on_core(records(snapshot))


@kept
def _on_core(steps: tuple[StepRecord, ...]) -> list[StepRecord]:
    return [step for step in steps if step.cpu is not None]


def mean_of(snapshot: Snapshot, name: str, seconds: float = 30.0) -> float | None:
    """Mean of a series over the last `seconds`; None where there is nothing."""
    one = snapshot.series.get(name)
    if one is None:
        return None
    values = [
        value
        for time, value in zip(one.times, one.values, strict=True)
        if value is not None and time >= snapshot.time - seconds
    ]
    return sum(values) / len(values) if values else None


def running(snapshot: Snapshot) -> float:
    """Which part (0..1] of the time in which the stepping thread could run it had a core: less on a crowded machine.

    What is held against absolute times has to be multiplied by it. 1 where nobody measured it.
    """
    delayed = mean_of(snapshot, "run_delay", 20.0)
    ran = summed(on_core(snapshot), lambda step: min(step.cpu or 0.0, step.seconds))
    if ran is None:
        ran = mean_of(snapshot, "main_thread", 20.0)
    if delayed is None or not ran:
        return 1.0
    return max(0.05, min(1.0, ran / (ran + delayed)))


def loader_workers(snapshot: Snapshot) -> tuple[ProcessSample, ...]:
    """Loader worker processes that live now."""
    if snapshot.host is None:
        return ()
    return tuple(process for process in snapshot.host.processes if process.role == "loader-worker")


def free_cores(snapshot: Snapshot) -> float | None:
    """Cores that the target may use and that nobody uses now."""
    host = snapshot.host
    if host is None or host.machine.core_busy is None:
        return None
    idle = sum(max(0.0, 1.0 - busy) for busy in host.machine.core_busy)
    if host.usable_cores is None:
        return idle
    used = sum(process.cpu or 0.0 for process in host.processes)
    return max(0.0, min(idle, host.usable_cores - used))


def own_devices(snapshot: Snapshot) -> tuple[GpuDevice, ...]:
    """Devices that the watched tree is on and that still answer."""
    devices = snapshot.gpu.devices if snapshot.gpu else ()
    return tuple(device for device in devices if device.mine and not device.lost)


def on_gpu(snapshot: Snapshot) -> bool:
    """Whether the steps may run on a GPU: what the host does then overlaps with what the device does."""
    return bool(snapshot.facts is not None and snapshot.facts.cuda) or bool(own_devices(snapshot))


def device_busy(snapshot: Snapshot) -> float | None:
    """Mean share of time in which the devices of the run had work; None where that is not measured, or not its own."""
    found = [mean_of(snapshot, f"gpu{one.index}.busy") for one in own_devices(snapshot) if not _others_compute(one)]
    known = [busy for busy in found if busy is not None]
    return sum(known) / len(known) if known else None


def _others_compute(device: GpuDevice) -> bool:
    return any(process.sm for process in device.processes or () if not process.mine)


def timed_on_device(snapshot: Snapshot) -> bool:
    """Whether the phases are on the device clock."""
    return sum(step.device_forward is not None for step in records(snapshot)) >= MIN_STEPS


def device_idle(snapshot: Snapshot) -> float:
    """The most (0..1) of a step that any work of the host can hold up: all of it, but on a GPU what the device idles.

    There, host times are launch times, and a wait for the device may fall on any line.
    """
    busy = device_busy(snapshot) if on_gpu(snapshot) else None
    return 1.0 if busy is None else max(0.0, 1.0 - busy)


def host_limit(snapshot: Snapshot) -> float:
    """The same of work outside of the phases, for which the device clock leaves so much at most."""
    outside = snapshot.steps.phases.outside if snapshot.steps else None
    idle = device_idle(snapshot)
    return idle if outside is None or not timed_on_device(snapshot) else min(idle, outside)


def host_unproven(snapshot: Snapshot) -> bool:
    """Whether steps run on a GPU and nothing tells how much of its time it idles."""
    return on_gpu(snapshot) and device_busy(snapshot) is None and not timed_on_device(snapshot)


def enough(snapshot: Snapshot) -> str | None:
    """None where there is enough to judge steps by; else what is missing, in words."""
    steps = records(snapshot)
    if len(steps) >= MIN_STEPS:
        return None
    process = main_stacks(snapshot)
    seen = process.samples if process else 0
    if not steps and process is None and _closed(snapshot):
        return CLOSED
    if process is None or seen < MIN_SAMPLES:
        needed = f"{MIN_STEPS} steps or {MIN_SAMPLES} samples are needed"
        return f"{len(steps)} steps and {seen} stack samples so far; {needed}"
    if not steps and not _steps_in(snapshot, process):
        return f"none of {seen} stack samples so far shows a part of a step: it may still be starting"
    return None


def _closed(snapshot: Snapshot) -> bool:
    """Whether neither stacks nor steps are to be expected."""
    states = [snapshot.sources[name].state for name in ("stacks", "hook") if name in snapshot.sources]
    return len(states) == 2 and all(state in ("absent", "denied", "failed") for state in states)


def _steps_in(snapshot: Snapshot, process: ProcessStacks) -> bool:
    """Whether stacks show that steps are made: setting up, too, reads data and computes."""
    found = [process.phases, *([snapshot.steps.phases] if snapshot.steps else [])]
    if any(phases.data_wait or phases.forward or phases.backward or phases.optimizer for phases in found):
        return True
    return any(line.pid == process.pid and line.phase == "evaluation" for line in _all_lines(snapshot))


def _all_lines(snapshot: Snapshot) -> tuple[HotLine, ...]:
    return snapshot.stacks.lines if snapshot.stacks else ()


def seen_once(snapshot: Snapshot, lines: Lines) -> bool:
    """Whether all samples of these lines may come from one stretch of time: how often it comes is then not known.

    They do where they are of one window of stacks, or of two next to each other.
    """
    if snapshot.stacks is None or not all(line.seen_in for line in lines.lines):
        return False
    windows = {number for line in lines.lines for number in line.seen_in}
    return bool(windows) and len(windows) < SEVERAL_WINDOWS and max(windows) - min(windows) < SEVERAL_WINDOWS - 1


def by_samples(share: float, samples: int) -> float:
    """A sampled share pulled in by half a sample, so that nothing unseen counts as nothing there."""
    return min(share, (share * samples + 0.5) / (samples + 1)) if samples else share


def as_measured(share: float, sampled: float, measured: float) -> float:
    """A sampled part of what is `sampled` as a whole and was `measured` more exactly, as a part of that (0..1).

    Where far more was measured than seen, the process was held up at the edges of what is timed, by a lock say: of
    that no part of the samples tells.
    """
    return min(1.0, share * min(MOST_CORRECTED, measured / sampled)) if sampled > 0 else share


def of_outside(snapshot: Snapshot, lines: Lines, most: float = MOST_CORRECTED) -> float:
    """Share of step time of these lines outside of the phases: what the process measured there, as they divide it.

    At most so many times what was seen of them.
    """
    measured = outside_work(snapshot)
    if measured is None:
        return lines.share
    outside = main_lines(snapshot, lambda line: line.phase == "outside").share
    outside += sum(_not_timed(snapshot, phase) for phase in ("save", "evaluation"))
    return min(most * lines.share, as_measured(lines.share, outside, measured))


def _not_timed(snapshot: Snapshot, phase: str) -> float:
    """What stacks show of a phase beyond what the process timed of it: that was measured as outside of the phases."""
    return max(0.0, main_lines(snapshot, lambda line: line.phase == phase).share - (part(snapshot, phase) or 0.0))


def left_cold(snapshot: Snapshot, share: float, *, computed: bool = False) -> bool:
    """Whether so little is run after each wait that filling caches again may be a good part of what is left of a step.

    `share` (0..1) is what the waits take; where the thread that steps `computed` it, that used the caches once a step.
    Not where the kernel did not count how often that thread waits.
    """
    pid = snapshot.steps.pid if snapshot.steps and snapshot.steps.pid else snapshot.target.pid
    processes = snapshot.host.processes if snapshot.host else ()
    waits = next((process.voluntary_switches for process in processes if process.pid == pid), None)
    steps = snapshot.steps.per_second if snapshot.steps else None
    often = steps if computed else min(waits, steps or waits) if waits else None
    if not often or not 0.0 < share < 1.0:
        return False
    return FAR * (1.0 - share) / often < REFILL_SECONDS


def samples_of(snapshot: Snapshot) -> int | None:
    """How many stack samples of the stepping thread what was not measured rests on; None without any."""
    process = main_stacks(snapshot)
    return process.samples if process is not None else None


def confidence(
    *signals: bool, base: float = 0.55, steps: int = 0, share: float = 0.0, samples: int | None = None
) -> float:
    """Confidence 0..0.95 from independent signals that agree and the number of steps seen.

    Where the `share` to be gained leaves little of a step, what no fix takes away decides how much faster it gets.
    Where it was only sampled, so do too few `samples`: twice their error may not be more than FAR of what is left.
    """
    agreed = sum(signals)
    little = share >= NEARLY_ALL
    few = samples is not None and 4.0 * share > FAR**2 * samples * (1.0 - share)
    most = UNCERTAIN if little or few else 0.95
    return round(min(most, base + 0.12 * agreed + (0.1 if steps >= 50 else 0.05 if steps >= 20 else 0.0)), 2)
