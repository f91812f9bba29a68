"""Questions that several rules ask of a Snapshot and of its ledger. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from aitop.diagnosis.series import mean_of
from aitop.model.host import ProcessSample
from aitop.model.ledger import HANDED_WAITS, QUEUE_WAITS, RESTS, Activity, Entry, Ledger
from aitop.model.phases import Phase
from aitop.model.snapshot import GrowthSite, HotLine, ProcessStacks, Snapshot
from aitop.model.stacks import Frame
from aitop.model.steps import CallSite, StepRecord, measured_in
from aitop.model.units import percent
from aitop.model.verdict import Base, Where
from aitop.stacks.libraries import COMPUTES, meaning

MIN_STEPS = 8
MIN_SAMPLES = 15
# How many places are named at most, and the least share of their total weight for a place after the first.
MOST_LINES, LEAST_SHARE = 5, 0.03
SEVERAL_WINDOWS = 3
MAIN = "MainThread"
CLOSED = "without stack samples and without the hook nothing tells where the time of a step goes"
ONCE = "seen in one stretch of time so far: how often it comes is not known yet"
RUNNING: frozenset[Activity] = frozenset({"python", "native"})
# What a thread does that has work to do, though it may lack the GIL for it.
AT_WORK = RUNNING | {"wait-gil"}
# Phases of host code around the model. A server's pre- and postprocessing of requests is measured apart.
HOST: frozenset[Phase] = frozenset({"host", "preprocess", "postprocess"})
# Waits for storage or a service: what the kernel says a thread waits for, and what the called library works with.
STORAGE_WAITS: frozenset[Activity] = frozenset({"wait-disk", "wait-network"})
STORAGE_WORK = frozenset({"file", "network", "database"})
# A server that waits for requests for at least this share of its time has capacity to spare: making it faster gives
# no more requests.
AT_LEISURE = 0.3
# A line calls large operations if it holds the GIL for less than this share of its time: nn.GRU holds it for 1 to 5 %.
MOST_HELD = 0.1


class Lines(msgspec.Struct, frozen=True):
    """A selection of ledger entries. `share` (0..1) is what they take of the time of their process."""

    share: float
    entries: tuple[Entry, ...]

    @property
    def lines(self) -> tuple[Entry, ...]:
        """The entries that have a line."""
        return tuple(entry for entry in self.entries if entry.where is not None)

    @property
    def where(self) -> tuple[Where, ...]:
        """The distinct lines as places, heaviest first; each share is of the time of all these lines."""
        first = {entry.at: entry.where for entry in reversed(self.entries) if entry.where is not None}
        return heaviest(shares_by(self.lines, lambda entry: entry.at), first)

    def part(self, wanted: Callable[[Entry], bool]) -> float:
        """The part (0..1) of these entries' time that belongs to the `wanted` ones."""
        whole = sum(entry.share for entry in self.entries)
        return sum(entry.share for entry in self.entries if wanted(entry)) / whole if whole > 0 else 0.0

    @property
    def samples(self) -> float:
        """How many stack samples these entries stand for."""
        return sum(entry.samples for entry in self.entries)


NO_LINES = Lines(0.0, ())
Key = TypeVar("Key")


def shares_by(entries: Iterable[Entry], key: Callable[[Entry], Key]) -> dict[Key, float]:
    """The sum of the entries' shares for each key."""
    shares: dict[Key, float] = {}
    for entry in entries:
        shares[key(entry)] = shares.get(key(entry), 0.0) + entry.share
    return shares


def heaviest(weights: Mapping[Key, float], places: Mapping[Key, Where]) -> tuple[Where, ...]:
    """The heaviest places first, each with its share of the total weight; those below LEAST_SHARE are left out.

    The first is always included.
    """
    total = sum(weights.values())
    ordered = sorted(weights, key=lambda key: -weights[key])[:MOST_LINES]
    return tuple(
        replace(places[key], share=weights[key] / total if total else None)
        for key in ordered
        if key == ordered[0] or weights[key] >= LEAST_SHARE * total
    )


def lines_of(entries: Iterable[Entry]) -> Lines:
    """The Lines of these entries, heaviest first."""
    ordered = tuple(sorted(entries, key=lambda entry: -entry.share))
    return Lines(math.fsum(entry.share for entry in ordered), ordered)


def lead_ledger(snapshot: Snapshot) -> Ledger | None:
    """The ledger of the judged process, which is shown first; None without ledgers."""
    return snapshot.ledgers[0] if snapshot.ledgers else None


def entries_of(snapshot: Snapshot) -> tuple[Entry, ...]:
    """The entries of the lead ledger that no other cause has claimed."""
    ledger = lead_ledger(snapshot)
    return ledger.entries if ledger is not None else ()


def judged_pid(snapshot: Snapshot) -> int:
    """The process whose time is judged."""
    ledger = lead_ledger(snapshot)
    if ledger is not None:
        return ledger.pid
    return snapshot.steps.pid if snapshot.steps and snapshot.steps.pid else snapshot.target.pid


def main_stacks(snapshot: Snapshot) -> ProcessStacks | None:
    """The stacks of the judged process; None where it was not sampled."""
    ledger = lead_ledger(snapshot)
    processes = snapshot.stacks.processes if snapshot.stacks is not None else ()
    return next((process for process in processes if ledger and process.pid == ledger.pid), None)


def samples_of(snapshot: Snapshot) -> int:
    """The number of stack samples of the judged process: the evidence for all that the hook did not measure."""
    process = main_stacks(snapshot)
    return process.samples if process is not None else 0


def main_lines(snapshot: Snapshot, wanted: Callable[[Entry], bool]) -> Lines:
    """The entries of the stepping thread that are `wanted` and that no other cause has claimed."""
    ledger = lead_ledger(snapshot)
    return lines_of(filter(wanted, ledger.main)) if ledger is not None else NO_LINES


def producer_entries(snapshot: Snapshot) -> tuple[Entry, ...]:
    """The entries of all threads and processes but the stepping thread; each share is of its own thread's time."""
    return tuple(entry for entry in entries_of(snapshot) if entry.lane == "producers")


def cores_wanted(entries: Iterable[Entry]) -> float:
    """How many cores the threads of these entries want: a running thread either has a core or waits for one."""
    return sum(entry.share for entry in entries if entry.activity in RUNNING)


def worker_lines(snapshot: Snapshot, wanted: Callable[[Entry], bool] = lambda entry: True) -> Lines:
    """The entries of loader workers, without waits for their queue; `share` is the mean over the workers."""
    workers = {process.pid for process in sampled_workers(snapshot)}
    working = lines_of(
        entry
        for entry in producer_entries(snapshot)
        if entry.pid in workers and entry.activity not in QUEUE_WAITS and wanted(entry)
    )
    return Lines(working.share / len(workers) if workers else 0.0, working.entries)


def sampled_workers(snapshot: Snapshot) -> list[ProcessStacks]:
    """The workers of the judged process's loader of which stacks were sampled, those that have ended among them.

    If more live than the loader has, the others are those of another one, such as for validation, and rest.
    """
    feeding = {process.pid for process in loader_workers(snapshot)}
    alive = {process.pid for process in snapshot.processes}
    processes = snapshot.stacks.processes if snapshot.stacks is not None else ()
    workers = [process for process in processes if process.role == "loader-worker"]
    living = sorted((one for one in workers if one.pid in feeding), key=lambda process: process.idle or 0.0)
    ended = (process for process in workers if process.pid not in alive)
    return [*living[: loader_size(snapshot) or None], *ended]


def interval(share: float, samples: int) -> tuple[float, float]:
    """The 95 % interval (Wilson) of a share seen in this many samples."""
    if samples <= 0:
        return 0.0, 1.0
    share = min(1.0, share)
    square = 3.84
    middle = (share + square / (2 * samples)) / (1 + square / samples)
    half = math.sqrt(square * (share * (1 - share) / samples + square / (4 * samples**2))) / (1 + square / samples)
    return max(0.0, middle - half), min(1.0, middle + half)


def stored(entry: Entry) -> bool:
    """Whether an entry waits for storage or a service, or works in a library for them."""
    return entry.activity in STORAGE_WAITS or entry.work in STORAGE_WORK


def hands_over(entry: Entry) -> bool:
    """Whether a process takes over what another one sends, without a line of the user's: it unpickles and copies it."""
    return entry.where is None and bool(entry.below) and meaning(entry.below[0][0]).work == "hand-over"


def computes(entry: Entry) -> bool:
    """Whether an entry computes with arrays: in an array library, or in native code without a known library below.

    A wait below a call of an array library counts, too: it is for the library's own threads or its device.
    """
    if entry.work in COMPUTES:
        return entry.does in (*HANDED_WAITS, "native", "wait-device", "sleep")
    return entry.work is None and entry.does == "native"


def _large_operations(snapshot: Snapshot) -> Lines:
    """Host entries that compute in large operations; lines that hold the GIL for longer call small ones (MOST_HELD)."""
    host = main_lines(snapshot, lambda entry: entry.phase in HOST).entries
    held = held_by_line(host)
    whole = shares_by(host, lambda entry: entry.at)
    large = {at for at, share in whole.items() if held.get(at, 0.0) < MOST_HELD * share}
    return lines_of(entry for entry in host if computes(entry) and entry.at in large)


def held_by_line(entries: Iterable[Entry]) -> dict[tuple[str, int], float]:
    """The share of the time in which each line, given as (file, number), holds the GIL."""
    return shares_by((entry for entry in entries if entry.does == "python"), lambda entry: entry.at)


def by_hand(snapshot: Snapshot) -> Lines:
    """Large operations of a step outside of nn.Modules and optimizers.

    From the model's call to its backward these are the loss, or a model that is no nn.Module. Libraries through which
    no gradient can flow ("array") do not count. In training without an optimizer, code after the backward is the
    update. If no step was seen, large operations may be what the program is there for: those of a library for models
    ("tensor") if they take more time than the others, else all.
    """
    work = _large_operations(snapshot)
    if not stepping(snapshot):
        models = lines_of(entry for entry in work.entries if entry.work in ("tensor", "eager"))
        return models if models.share > 0.5 * work.share else work
    updates = snapshot.phases.optimizer or snapshot.kind != "training"
    places = ("within",) if updates else ("within", "after")
    return lines_of(
        entry for entry in work.entries if entry.phase == "host" and entry.position in places and entry.work != "array"
    )


def stepping(snapshot: Snapshot) -> bool:
    """Whether a step or a model was seen. Without either, nothing tells useful work from what delays it."""
    return bool(records(snapshot)) or snapshot.kind != "unknown"


def within_first(lines: Lines) -> float:
    """The share (0..1) of the lines' time that is spent in the function of the first line, or in what it calls.

    A fix at the first line can save no more than that.
    """
    located = lines.lines
    if not located:
        return 1.0
    stacks = [_functions(entry) for entry in located]
    total = sum(entry.share for entry in located)
    within = sum(entry.share for entry, above in zip(located, stacks, strict=True) if stacks[0][-1] in above)
    return within / total if total else 1.0


def _functions(entry: Entry) -> list[tuple[str, str]]:
    """The functions on the entry's stack, the outermost first; a comprehension or lambda counts as its function."""
    stack = [*((frame.file, frame.function) for frame in entry.via), (entry.file, entry.function)]
    named = [place for place in stack if not place[1].rpartition(".")[2].startswith("<")]
    return named or stack


def function_of(entry: Entry) -> tuple[str, str]:
    """File and name of the function of the entry's line; a comprehension or lambda counts as its function."""
    return _functions(entry)[-1]


def where_of(pid: int, line: Frame | HotLine | GrowthSite) -> Where:
    """The place (Where) of a line, from a stack or from the source code, in the process with this pid."""
    return Where(pid=pid, file=line.file, line=line.line, function=line.function, text=line.text)


def moved_to(entry: Entry, frame: Frame) -> Entry:
    """The entry moved up its stack, from its own line to `frame`, which called it."""
    return replace(entry, where=where_of(entry.pid, frame))


def above_forward(entry: Entry) -> Entry:
    """The entry, moved from a line within the model to the line that calls the model."""
    if not 0 < entry.callers <= len(entry.via):
        return entry
    return moved_to(entry, entry.via[entry.callers - 1])


def short_place(place: Where | Frame | CallSite) -> str:
    """File name and line, as in "train.py:88"."""
    return f"{place.file.rsplit('/', 1)[-1]}:{place.line}"


def place_of(where: Where) -> str:
    """Function, file name and line, as in "decode (data.py:88)"."""
    return f"{where.function} ({short_place(where)})"


def records(snapshot: Snapshot) -> tuple[StepRecord, ...]:
    """The records of the steps in the window; empty without the hook."""
    return snapshot.steps.recent if snapshot.steps else ()


_SECONDS: Callable[[StepRecord], float] = attrgetter("seconds")


def share_of_steps(
    steps: Sequence[StepRecord], value: Callable[[StepRecord], float | None], least: int = 1
) -> float | None:
    """The share (0..1) of step time that `value` takes; it returns seconds of a step, None where not measured.

    Only steps with a value count; None with fewer than `least` of them.
    """
    timed, known = measured_in(steps, value)
    total = sum(map(_SECONDS, timed))
    return min(1.0, sum(known) / total) if len(known) >= least and total > 0 else None


def operations_of_step(snapshot: Snapshot) -> float | None:
    """How many operations the forward passes of a step have on average; None where those of its graph were not counted.

    The graph is that of one backward pass. A pass without gradient is taken to have as many.
    """
    ops, steps = snapshot.facts.ops if snapshot.facts else None, records(snapshot)
    if not ops:
        return None
    passes = sum(max(1, step.backwards) + step.no_grad_forwards for step in steps)
    return ops * passes / len(steps) if steps else float(ops)


def batch_of(step: StepRecord) -> float:
    """The samples of a step's batch; 0 where they are not known. A step that adds up gradients has several batches."""
    return (step.samples or 0) / max(1, step.backwards)


def running(snapshot: Snapshot) -> float:
    """The part (0..1] of its runnable time in which the stepping thread had a core: less on a crowded machine.

    Multiply measured times by it before comparing them with fixed thresholds. 1 where it was not measured.
    """
    process = main_stacks(snapshot)
    if process is not None and process.thread != MAIN:
        names = process.pool.threads if process.pool is not None else (process.thread,)
        threads = snapshot.stacks.threads if snapshot.stacks is not None else ()
        known = [(one.ran, one.active or 0.0) for one in threads if one.pid == process.pid and one.thread in names]
        parts = [(ran, active) for ran, active in known if ran is not None]
        whole = sum(active for _, active in parts)
        return max(0.05, sum(ran * active for ran, active in parts) / whole) if whole > 0.0 else 1.0
    delayed = run_delay(snapshot, judged_pid(snapshot))
    ran = share_of_steps(records(snapshot), attrgetter("cpu"))
    if ran is None:
        ran = mean_of(snapshot, "main_thread")
    return max(0.05, ran / (ran + delayed)) if delayed is not None and ran else 1.0


def run_delay(snapshot: Snapshot, pid: int) -> float | None:
    """The share of the time in which a process's main thread could run but had no core; None where not measured.

    Of several ranks each has its own. Else it is that of the process that waits most.
    """
    views = snapshot.ranks.ranks if snapshot.ranks else ()
    own = next((view.run_delay for view in views if view.pid == pid), None)
    return mean_of(snapshot, "run_delay") if own is None else own


def loader_workers(snapshot: Snapshot) -> tuple[ProcessSample, ...]:
    """The processes that work for a loader of the judged process, and live now.

    Those of other ranks do not count.
    """
    judged = judged_pid(snapshot)
    rank = next((process.rank for process in snapshot.processes if process.pid == judged), None)
    return tuple(
        process
        for process in snapshot.processes
        if process.role == "loader-worker" and (rank is None or process.rank == rank)
    )


def loader_size(snapshot: Snapshot) -> int:
    """How many workers one loader of the judged process has: as the hook knows it, else all of its workers."""
    info = snapshot.facts.main_loader if snapshot.facts else None
    return info.workers if info else len(loader_workers(snapshot))


def free_cores(snapshot: Snapshot) -> float | None:
    """Idle cores that the target may use; None where that is not known."""
    host = snapshot.host
    if host is None or (idle := host.idle_cores) is None:
        return None
    if host.usable_cores is None:
        return idle
    return max(0.0, min(idle, host.usable_cores - (host.cores_used or 0.0)))


def others_cores(snapshot: Snapshot) -> float | None:
    """Cores of the run that processes outside of it take, without this monitor; None where that is not known."""
    others = snapshot.host.cores_taken if snapshot.host is not None else None
    return None if others is None else max(0.0, others - (snapshot.cost.monitor_cpu or 0.0))


def too_little_seen(snapshot: Snapshot) -> str | None:
    """Say what is missing before steps can be judged; None if enough was seen."""
    steps, process, serving = records(snapshot), main_stacks(snapshot), snapshot.serving
    if len(steps) >= MIN_STEPS or (process is not None and process.samples >= MIN_SAMPLES):
        return None
    if serving is not None and max(len(serving.requests), len(serving.iterations)) >= MIN_STEPS:
        return None
    states = [snapshot.sources[name].state for name in ("stacks", "hook") if name in snapshot.sources]
    closed = len(states) == 2 and all(state in ("absent", "denied", "failed") for state in states)
    if not steps and process is None and closed:
        return CLOSED
    needed = f"{MIN_STEPS} steps or {MIN_SAMPLES} samples are needed"
    return f"{len(steps)} steps and {samples_of(snapshot)} stack samples so far; {needed}"


def seen_once(snapshot: Snapshot, lines: Lines) -> bool:
    """Whether all samples of these lines come from one window of stacks, or from two next to each other.

    They may then be of one event, and how often it happens is not known.
    """
    if snapshot.stacks is None or not all(entry.by_window for entry in lines.lines):
        return False
    windows = {number for entry in lines.lines for number, count in enumerate(entry.by_window) if count}
    return bool(windows) and len(windows) < SEVERAL_WINDOWS and max(windows) - min(windows) < SEVERAL_WINDOWS - 1


def samples_by_window(entries: Iterable[Entry]) -> list[int]:
    """How many samples these entries' lines have in each window of stacks, the oldest first."""
    # Entries that differ only in activity have the counts of their line in common: count them once.
    counts = {
        (entry.pid, entry.thread, entry.at, entry.function, entry.phase, entry.position, entry.work, entry.by_window)
        for entry in entries
    }
    return [sum(numbers) for numbers in zip_longest(*(each for *_, each in counts), fillvalue=0)]


def by_window(entries: Iterable[Entry], process: ProcessStacks) -> list[float]:
    """The part (0..1) of the samples of each window of stacks that these entries' lines take, the oldest first.

    `process` is the judged one.
    """
    counts = samples_by_window(entries)
    return [count / whole if whole else 0.0 for count, whole in zip_longest(counts, process.by_window, fillvalue=0)]


def serves(snapshot: Snapshot) -> bool:
    """Whether the process answers requests. If so, a wait outside of all phases is a wait for the next request."""
    return snapshot.kind == "inference" or (snapshot.serving is not None and snapshot.kind != "training")


def base_of(snapshot: Snapshot) -> Base:
    """What the shares of the judged process are parts of."""
    ledger = lead_ledger(snapshot)
    return ledger.base if ledger is not None else "step"


def each_unit(snapshot: Snapshot) -> str:
    """The words for what a share is a part of: "each step" or "the time"."""
    return "each step" if base_of(snapshot) == "step" else "the time"


def server_idle_share(snapshot: Snapshot) -> float:
    """Share of the time (0..1) in which a server waits for requests; 0 for anything but a server."""
    return main_lines(snapshot, takes_request).share if serves(snapshot) else 0.0


def of_unit(snapshot: Snapshot, share: float) -> tuple[float, str | None]:
    """Convert a share of the time into a share (0..1) of the time that a unit takes, with a sentence of evidence.

    They differ for a server that waits for requests for AT_LEISURE of its time or more. The sentence then says that
    saving the time makes requests faster, but gives no more of them; otherwise it is None.
    """
    rests = server_idle_share(snapshot)
    if rests < AT_LEISURE:
        return min(0.99, share), None
    words = f"{percent(rests)} of the time is waiting for requests: they get faster, not more"
    return min(0.99, share / max(0.01, 1.0 - rests)), words


def blocks_loop(entry: Entry) -> bool:
    """Whether a handler in an event loop waits for storage or a service, and so blocks all other requests."""
    return entry.handler == "event-loop" and stored(entry)


def stands_in_line(entry: Entry) -> bool:
    """Whether a request queues here: its handler, not in an event loop, waits for another thread or process."""
    if entry.handler in (None, "event-loop") or entry.work is not None:
        return False
    return entry.activity in HANDED_WAITS or entry.activity == "wait-network"


def fills_batch(entry: Entry) -> bool:
    """Whether an engine waits for more requests, with some in the batch that it makes."""
    return entry.phase == "schedule" and entry.activity == "wait-queue"


def waits_for_requests(entry: Entry) -> bool:
    """Whether a thread that runs the model has nothing to do: there is no request, or not yet enough for its batch."""
    return entry.phase == "queue" or takes_request(entry) or fills_batch(entry)


def takes_request(entry: Entry) -> bool:
    """Whether an entry of a server waits for the next request, or rests outside of every phase.

    A network wait below a client library is for data, one on a bare socket is for requests. A handler never rests: the
    request that it was called for waits as well.
    """
    if entry.phase == "idle":
        return True
    if entry.phase not in HOST or entry.work == "log" or entry.handler is not None or entry.activity == "wait-room":
        return False
    return entry.activity in RESTS and (entry.activity != "wait-network" or entry.work is None)
