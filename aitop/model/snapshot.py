"""The Snapshot of a tick: immutable, and all that rules, screens and outputs get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from aitop.model.gpu import GpuSample
from aitop.model.host import HostSample, ProcessSample, Role
from aitop.model.ledger import Activity, Handler, Ledger, Position
from aitop.model.past import Past
from aitop.model.ranks import Ranks, Standstill
from aitop.model.run import Run, SoFar
from aitop.model.serving import Serving
from aitop.model.source import SourceName, SourceStatus
from aitop.model.stacks import Frame, StackDump
from aitop.model.steps import AllocatorSample, HookFacts, Kind, StepRecord
from aitop.model.verdict import Diagnosis


class Target(msgspec.Struct, frozen=True, kw_only=True, tag="target"):
    """The process asked for. `ended` says in words how it ended, None while it lives."""

    pid: int
    command: str
    started: float | None = None
    python: str | None = None
    script: str | None = None
    ended: str | None = None
    time: float = 0.0


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Shares (0..1) of step time; None is not measured.

    `others` has the phases of `model.phases` that have no field here and that occurred, by key. They lie in `outside`.
    """

    data_wait: float | None = None
    transfer: float | None = None
    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None
    communication: float | None = None
    outside: float | None = None
    others: dict[str, float] = {}

    def shares(self) -> dict[str, float | None]:
        """All shares by key, in the order of a step. Here "outside" no longer contains the phases of `others`."""
        shares = msgspec.structs.asdict(self)
        others, outside = shares.pop("others"), shares.pop("outside")
        rest = None if outside is None else max(0.0, outside - sum(others.values()))
        return {**shares, **others, "outside": rest}


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the window. `basis` is where the phases come from; without the hook only `phases` and `began` are known.

    `flops_per_second` is the achieved rate, `mfu` its share (0..1) of the device's peak in the dtype it computes in.
    `count` is the number of steps seen since the hook came in. `recent` are the steps of the window, oldest first;
    `spread` are some steps from all over the window, which may have more short steps than are kept.
    `pid` is the process (rank) whose steps these are; `began` is when stacks had shown a first step of it (monotonic).
    """

    basis: str
    phases: Phases
    pid: int | None = None
    began: float | None = None
    count: int | None = None
    p50: float | None = None
    p95: float | None = None
    mean: float | None = None
    per_second: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    flops_per_second: float | None = None
    mfu: float | None = None
    recent: tuple[StepRecord, ...] = ()
    spread: tuple[StepRecord, ...] = ()


class HotLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code that a thread was seen on.

    `share` is its share of the samples of its process's lead thread, corrected for samples that could not be read.
    `phase` is the phase of a step that the libraries on the stack stand for, "outside" where none does; `position` is
    where such a line stands in the function that makes steps (before the model's call, within the step, at its
    gradients, after the update), None where no such function is on the stack. `parts` are shares of the line's time by
    activity, the largest first, and `activity` is the largest one. `work` is what the library below it does (see
    stacks.libraries), None where the line is the user's own code or calls native code directly.
    `via` are the user's frames above it, outermost first. `callers`: how many of the user's frames, counted from the
    outermost (`via`, then the line itself), were entered before the library call that gives the phase. `by_window` is
    the number of its samples in each window of stacks, the oldest first.
    `handler` is what calls it for a request: an event loop, a loop that takes requests, a thread for each of them.
    `below` has the library functions in which most of its samples end, each with its share of them.
    `closure`: it runs in the closure of an optimizer's step. `apart`: it runs in one of several calls of the model for
    the same request, none of which needs what another gave.
    """

    pid: int
    role: Role
    file: str
    line: int
    function: str
    phase: str
    activity: Activity
    samples: int
    share: float
    position: Position | None = None
    parts: tuple[tuple[Activity, float], ...] = ()
    work: str | None = None
    text: str | None = None
    thread: str = "MainThread"
    via: tuple[Frame, ...] = ()
    callers: int = 0
    by_window: tuple[int, ...] = ()
    handler: Handler | None = None
    below: tuple[tuple[Frame, float], ...] = ()
    closure: bool = False
    apart: bool = False

    def part(self, *activities: Activity) -> float:
        """The share (0..1) of the line's time that goes into these activities."""
        if not self.parts:
            return 1.0 if self.activity in activities else 0.0
        return sum(share for activity, share in self.parts if activity in activities)


class CallNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a call tree: samples with this frame on the stack below the parent, heaviest child first."""

    function: str
    file: str
    line: int
    samples: int
    user: bool = False
    children: tuple[CallNode, ...] = ()


class ThreadShare(msgspec.Struct, frozen=True, kw_only=True):
    """One thread of a sampled process, with shares (0..1) of its time; None is not measured.

    `active` is the share in which it ran, or threads of a library ran for it; `gil` the share in which it held the GIL.
    `ran` is how much of the time in which it could run it had a core.
    """

    pid: int
    thread: str
    samples: int
    active: float | None = None
    gil: float | None = None
    ran: float | None = None


class ThreadPool(msgspec.Struct, frozen=True, kw_only=True):
    """Threads that take the same work in turns.

    On average `there` of them are alive at a time, `working` of them work, `asking` of them wait for a service that
    their request needs, and `standing` of them hold a request that has to wait for something that another thread does.
    `threads` are their names; several may have the same one.
    `lines` are the lines of code on which such requests wait, those with most of them first; their shares are of all
    such waits.
    """

    threads: tuple[str, ...]
    there: float
    working: float
    standing: float
    asking: float = 0.0
    lines: tuple[HotLine, ...] = ()


class Lineless(NamedTuple):
    """A share (0..1) of a thread's time without a line of the user's code on its stack.

    `place` is the innermost function that most of its stacks in that phase have in common.
    """

    phase: str
    activity: Activity
    share: float
    place: Frame | None = None


class ProcessStacks(msgspec.Struct, frozen=True, kw_only=True):
    """Stacks of one process in the window. `samples` is the number of samples of its lead thread; `phases` are
    estimated from them.

    `thread` is the lead thread's name: the main thread, unless that only waits while another one runs the model. Where
    threads take turns at that, it is one of the `pool`, and all figures are of the pool as one worker.
    `by_window` is the number of its samples in each window, the oldest first. `lineless` is its time without a line of
    the user's code: all of it, in an engine that is a library.
    """

    pid: int
    role: Role
    samples: int
    phases: Phases
    tree: CallNode | None = None
    idle: float | None = None
    thread: str = "MainThread"
    by_window: tuple[int, ...] = ()
    lineless: tuple[Lineless, ...] = ()
    pool: ThreadPool | None = None


class ThreadTree(msgspec.Struct, frozen=True, kw_only=True):
    """The call tree of a thread that is not the lead thread of its process."""

    pid: int
    role: Role
    thread: str
    samples: int
    tree: CallNode


class Stacks(msgspec.Struct, frozen=True, kw_only=True):
    """All stacks of the window. `lines` are those of all processes, heaviest first.

    `trees` are the call trees of threads other than lead threads, the busiest first; idle ones may be left out.
    """

    seconds: float
    samples: int
    processes: tuple[ProcessStacks, ...] = ()
    lines: tuple[HotLine, ...] = ()
    threads: tuple[ThreadShare, ...] = ()
    trees: tuple[ThreadTree, ...] = ()


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values over time (monotonic seconds), oldest first; None where nothing was measured."""

    times: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()


def series_of(names: Iterable[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, Series]:
    """One series per name, from rows of a time and a value for each name. Names without any value are left out."""
    if not rows:
        return {}
    times, *columns = zip(*rows, strict=True)
    return {
        name: Series(times=times, values=values)
        for name, values in zip(names, columns, strict=True)
        if any(value is not None for value in values)
    }


class GrowthSite(msgspec.Struct, frozen=True, kw_only=True):
    """A line in the user's training code that makes something longer at every step, found by reading the code.

    `keeps_graph`: what it adds keeps the autograd graph of its step alive.
    """

    file: str
    line: int
    function: str
    text: str
    keeps_graph: bool = False


class GrowthSites(msgspec.Struct, frozen=True, kw_only=True, tag="growth"):
    """The growth sites in the files that the target was seen to run."""

    time: float
    sites: tuple[GrowthSite, ...] = ()


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What watching costs. `monitor_cpu` is the CPU use of aitop and its children in cores.

    `hook_us_per_step` is the hook's time per step in microseconds, `target_slowdown` its share (0..1) of a step.
    `seldom` says that aitop looks less often than it was asked to, as no core is idle.
    """

    monitor_cpu: float | None = None
    hook_us_per_step: float | None = None
    target_slowdown: float | None = None
    seldom: bool | None = None


class Tick(msgspec.Struct, frozen=True, kw_only=True, tag="tick"):
    """The sampler's clock: `time` monotonic, `wall` since the epoch; aitop's own CPU in cores since the last tick.

    `seldom`: no core is idle, so the next tick comes later than usual.
    """

    time: float
    wall: float
    monitor_cpu: float | None = None
    seldom: bool | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything known at one tick. Two snapshots are the same only if they are the same object.

    `series` has over the last minutes, where measured:
    of steps queue_ready; of the seconds in which steps ended step_p50 and step_p95 (milliseconds), step_save and
    step_evaluation (seconds); recompiles (torch.compile's counter);
    of ranks rss, mapped (address space, see ProcessSample), run_delay, main_thread (cores that main threads
    used); of loader workers workers_rss, workers_mapped, workers_cpu, workers_delay, and of
    each, sixteen at most, worker<pid>.cpu (cores) and worker<pid>.idle (share of its stacks in which it had no work);
    of the run and the machine memory_left (bytes that the run can still take), swap_in, throttled, cores_wanted,
    cores_waited, cores_used, cores_idle;
    of device i gpu<i>.busy, .memory, .power, .ecc_uncorrected, .pcie_received and GPM's shares .sm, .tensor, .dram,
    .fp64, .fp32; of the allocator of what the leading process knows as cuda:i alloc<i>.allocated, .reserved,
    .retries, .ooms;
    of the seconds of a server request_p50 and request_p99 (milliseconds), request_rate, request_queue.

    `ranks` has the ranks of the job on this machine, None where the job has only one; `standstill` is where all of them
    stand while none moves. `dump` is the last dump of all threads, which the user or a standstill asked for.
    `working` are the processes that do the work, the one to show first in front; empty where nothing was sampled.
    `ledgers` has the account of each of them, in that order. `serving` has the figures of a server, None where nothing
    is served; `engine` names its software and version. `past` and `so_far` are summed up since the watching began,
    while all else is of the window or of the last minutes. `before` is an earlier run to compare with.
    """

    tick: int
    time: float
    wall: float
    window: float
    target: Target
    kind: Kind = "unknown"
    sources: dict[SourceName, SourceStatus] = {}
    host: HostSample | None = None
    gpu: GpuSample | None = None
    steps: Steps | None = None
    facts: HookFacts | None = None
    allocators: tuple[AllocatorSample, ...] = ()
    stacks: Stacks | None = None
    dump: StackDump | None = None
    ranks: Ranks | None = None
    standstill: Standstill | None = None
    growth_sites: tuple[GrowthSite, ...] = ()
    series: dict[str, Series] = {}
    cost: Cost = Cost()
    working: tuple[int, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    serving: Serving | None = None
    engine: str | None = None
    past: Past | None = None
    so_far: SoFar = SoFar()
    before: Run | None = None
    diagnosis: Diagnosis = Diagnosis()

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """The processes of the target's tree; empty where they were not read."""
        return self.host.processes if self.host is not None else ()

    @property
    def phases(self) -> Phases:
        """The shares of step time by phase, each None without steps."""
        return self.steps.phases if self.steps is not None else Phases()
