"""Questions that several rules ask of a Snapshot. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from aitop.diagnosis.kept import kept
from aitop.model.gpu import GpuDevice
from aitop.model.host import ProcessSample
from aitop.model.ledger import Activity, Entry, Ledger, Phase
from aitop.model.snapshot import ProcessStacks, Snapshot
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
FAR = 0.4
# In about so long a core reads again from memory what its caches hold.
REFILL_SECONDS = 0.001
COLD = "after each wait, or other work, caches are cold: how much faster the little that is left runs is not known"


@dataclass(frozen=True)
class Lines:
    """Entries of the ledger of one kind. `share` is of the time of the process that they belong to."""

    share: float
    entries: tuple[Entry, ...]

    @property
    def lines(self) -> tuple[Entry, ...]:
        """The entries that have a line."""
        return tuple(entry for entry in self.entries if entry.where is not None)

    @property
    def where(self) -> tuple[Where, ...]:
        """The lines as places, the same line counted once, heaviest first."""
        return places(self.lines)

    def part(self, wanted: Callable[[Entry], bool]) -> float:
        """The part (0..1) of their time in entries that are `wanted`."""
        whole = sum(entry.share for entry in self.entries)
        return sum(entry.share for entry in self.entries if wanted(entry)) / whole if whole > 0 else 0.0


NO_LINES = Lines(0.0, ())
# What waits for storage or a service, by the kernel's word or by the library that is called.
STORAGE_WAITS: frozenset[Activity] = frozenset({"wait-disk", "wait-network"})
# A line that waits for storage in this part of its time, and of all time, is one that reads or writes.
LEAST_STORED, LEAST_WAITED = 0.2, 0.015
STORAGE_WORK = frozenset({"file", "network", "database"})
# What waits for others of the run's own, or for whoever hands it work.
HANDED_WAITS: frozenset[Activity] = frozenset({"wait-queue", "wait-lock", "wait-child", "wait"})
BLOCKED: frozenset[Activity] = frozenset({*STORAGE_WAITS, "sleep", "wait"})


def stored(entry: Entry) -> bool:
    """Whether an entry waits for storage or a service, or works in a library for them."""
    return entry.activity in STORAGE_WAITS or entry.work in STORAGE_WORK


def storage_lines(lines: Lines) -> Lines:
    """The entries of lines that wait for storage or a service for a good part of their time, or work for them.

    What such a line runs beside its waits belongs to the same call: a write goes through the kernel.
    """
    whole: dict[tuple[str, int], float] = {}
    of_storage: dict[tuple[str, int], float] = {}
    for entry in lines.entries:
        if entry.activity == "wait-core":
            continue
        key = entry.file, entry.line
        whole[key] = whole.get(key, 0.0) + entry.share
        if stored(entry):
            of_storage[key] = of_storage.get(key, 0.0) + entry.share
    chosen = tuple(
        entry
        for entry in lines.entries
        if of_storage.get((entry.file, entry.line), 0.0)
        >= max(LEAST_WAITED, LEAST_STORED * whole.get((entry.file, entry.line), 0.0))
    )
    return Lines(sum(entry.share for entry in chosen), chosen)


def lead_ledger(snapshot: Snapshot) -> Ledger | None:
    """The ledger of the process to show first."""
    return snapshot.ledgers[0] if snapshot.ledgers else None


def main_stacks(snapshot: Snapshot) -> ProcessStacks | None:
    """Stacks of that process."""
    ledger = lead_ledger(snapshot)
    if ledger is None or snapshot.stacks is None:
        return None
    return next((process for process in snapshot.stacks.processes if process.pid == ledger.pid), None)


def main_lines(snapshot: Snapshot, wanted: Callable[[Entry], bool]) -> Lines:
    """What the stepping thread does that is `wanted`, and that no other cause has claimed."""
    ledger = lead_ledger(snapshot)
    entries = ledger.entries if ledger is not None else ()
    return _lines(entry for entry in entries if entry.lane == "main" and wanted(entry))


def phase_share(snapshot: Snapshot, *phases: Phase) -> float:
    """Share of the stepping thread's time in these phases, that no other cause has claimed."""
    return main_lines(snapshot, lambda entry: entry.phase in phases).share


MAIN = "MainThread"


def worker_lines(snapshot: Snapshot, wanted: Callable[[Entry], bool] = lambda entry: True) -> Lines:
    """What loader workers do, idle waiting left out; `share` is the mean over the workers."""
    ledger = lead_ledger(snapshot)
    if snapshot.stacks is None or ledger is None:
        return NO_LINES
    workers = {process.pid for process in snapshot.stacks.processes if process.role == "loader-worker"}
    working = _lines(
        entry
        for entry in ledger.entries
        if entry.lane == "producers" and entry.pid in workers and entry.activity != "wait-queue" and wanted(entry)
    )
    return Lines(working.share / len(workers) if workers else 0.0, working.entries)


def _lines(entries: Iterable[Entry]) -> Lines:
    ordered = sorted(entries, key=lambda entry: -entry.share)
    return Lines(sum(entry.share for entry in ordered), tuple(ordered))


def places(entries: Sequence[Entry]) -> tuple[Where, ...]:
    """The lines of entries as places: one a line of code, shares relative to all of them, heaviest first."""
    located = [(entry.where, entry.share) for entry in entries if entry.where is not None]
    total = sum(share for _, share in located)
    weights: dict[tuple[str, int], float] = {}
    first: dict[tuple[str, int], Where] = {}
    for where, share in located:
        key = (where.file, where.line)
        weights[key] = weights.get(key, 0.0) + share
        first.setdefault(key, where)
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
    located = lines.lines
    if not located:
        return 1.0
    stacks = [_functions(entry) for entry in located]
    first = stacks[0][-1]
    total = sum(entry.share for entry in located)
    within = sum(entry.share for entry, above in zip(located, stacks, strict=True) if first in above)
    return within / total if total else 1.0


def _functions(entry: Entry) -> list[tuple[str, str]]:
    """The functions on its stack, the outermost first; a comprehension, or a lambda, is a part of what has it."""
    stack = [*((frame.file, frame.function) for frame in entry.via), (entry.file, entry.function)]
    named = [place for place in stack if not place[1].rpartition(".")[2].startswith("<")]
    return named or stack


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
    return None


def _closed(snapshot: Snapshot) -> bool:
    """Whether neither stacks nor steps are to be expected."""
    states = [snapshot.sources[name].state for name in ("stacks", "hook") if name in snapshot.sources]
    return len(states) == 2 and all(state in ("absent", "denied", "failed") for state in states)


def seen_once(snapshot: Snapshot, lines: Lines) -> bool:
    """Whether all samples of these lines may come from one stretch of time: how often it comes is then not known.

    They do where they are of one window of stacks, or of two next to each other.
    """
    if snapshot.stacks is None or not all(entry.by_window for entry in lines.lines):
        return False
    windows = {number for entry in lines.lines for number, count in enumerate(entry.by_window) if count}
    return bool(windows) and len(windows) < SEVERAL_WINDOWS and max(windows) - min(windows) < SEVERAL_WINDOWS - 1


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


def confidence(*signals: bool, base: float = 0.55, steps: int = 0) -> float:
    """How sure a cause is (0..0.95): from independent signals that agree and the number of steps seen.

    How far the gain may be from the predicted one is another matter: see what_if.gain_range.
    """
    seen = 0.1 if steps >= 50 else 0.05 if steps >= 20 else 0.0
    return round(min(0.95, base + 0.12 * sum(signals) + seen), 2)
