"""The bounded history of recent samples: the only state between events and Snapshots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from aitop.engine.past import PastHistory
from aitop.engine.snapshot.steps import quantile
from aitop.engine.totals import Sums, UnitTotals, add_cores, shares_of_time
from aitop.model.event import Event, Sample
from aitop.model.gpu import GpuSample
from aitop.model.host import HostSample
from aitop.model.ranks import ExchangeNotes
from aitop.model.serving import IterationRecord, Pause, RequestRecord, ServerSample
from aitop.model.snapshot import GrowthSites, Series, Target, Tick, series_of
from aitop.model.source import SourceName, SourceStatus
from aitop.model.stacks import StackDump, StackWindow
from aitop.model.steps import AllocatorSample, HookFacts, HookSample, StepRecord
from aitop.stacks.position import STEPPING, UPDATES
from aitop.stacks.view import MOST_WINDOWS, StackView

KEEP_SECONDS = 300.0
DENSE_SECONDS, APART_SECONDS = 30.0, 0.5
CHART_SECONDS = 300
# How far a Snapshot looks back, and how far where few steps or requests fall into that.
WINDOW_SECONDS, LONG_WINDOW_SECONDS = 30.0, 120.0
KEEP_STEPS = 4096
# `HookHistory.spread` keeps at most one step per this time: a trend needs a long time, not many steps.
SPREAD_SECONDS = 0.025
# Half a minute of an engine that makes 200 iterations a second.
KEEP_REQUESTS = KEEP_ITERATIONS = 6144
KEEP_PAUSES = 1024
KEEP_RECOMPILES = 256
KEEP_LOOKS = 256
MOST_RANKS = 4096
ENDING_SECONDS = 3.0
# A process with requests under way reports at every read of its hook. After this time without a word it has none.
SILENT_SECONDS = 3.0
_SOURCES: dict[type[Sample], SourceName] = {
    HostSample: "host",
    GpuSample: "gpu",
    StackWindow: "stacks",
    HookSample: "hook",
    ServerSample: "server",
}


SampleType = TypeVar("SampleType", HostSample, GpuSample)
Row = TypeVar("Row")


@dataclass
class RecentSamples(Generic[SampleType]):
    """Samples of the last minutes, oldest first: all of the newest, and as many older ones as a chart can show.

    Of samples older than `DENSE_SECONDS`, the first in each interval of `APART_SECONDS` stays. The choice depends on
    their times alone, so that a replay shows the same from wherever it started to read.
    """

    _older: deque[SampleType] = field(default_factory=deque)
    _newest: deque[SampleType] = field(default_factory=deque)
    # The cache of `rows`: sample and row by the id of the sample.
    _rows: dict[int, tuple[SampleType, Any]] = field(default_factory=dict, compare=False)

    def append(self, sample: SampleType) -> None:
        """Add a sample, which must be newer than all others."""
        self._newest.append(sample)

    def forget(self, now: float) -> None:
        """Drop samples older than `KEEP_SECONDS`, and thin out those older than `DENSE_SECONDS`."""
        while self._newest and self._newest[0].time < now - DENSE_SECONDS:
            sample = self._newest.popleft()
            if not self._older or sample.time // APART_SECONDS != self._older[-1].time // APART_SECONDS:
                self._older.append(sample)
        while self._older and self._older[0].time < now - KEEP_SECONDS:
            self._older.popleft()

    @property
    def last(self) -> SampleType | None:
        """The newest sample, None where there is none."""
        samples = self._newest or self._older
        return samples[-1] if samples else None

    def rows(self, read: Callable[[SampleType], Row]) -> list[Row]:
        """`read(sample)` of each sample, oldest first. It is cached, so `read` must always be the same function."""
        before, self._rows = self._rows, {}
        for sample in self:
            known = before.get(id(sample))
            # The row holds its sample, so that the id cannot be reused for another one.
            row = known[1] if known is not None and known[0] is sample else read(sample)
            self._rows[id(sample)] = sample, row
        return [row for _, row in self._rows.values()]

    def __len__(self) -> int:
        return len(self._older) + len(self._newest)

    def __iter__(self) -> Iterator[SampleType]:
        return chain(self._older, self._newest)

    def __reversed__(self) -> Iterator[SampleType]:
        return chain(reversed(self._newest), reversed(self._older))


class Second(NamedTuple):
    """Figures of the steps that ended in one second. `time` is the end of that second (monotonic).

    `p50` and `p95` are step times in milliseconds; `save` and `evaluation` are sums in seconds.
    """

    time: float
    p50: float
    p95: float
    save: float
    evaluation: float


@dataclass
class StepSeconds:
    """Steps of one process, summed up by the second in which they ended, for as many seconds as a chart can show."""

    done: deque[Second] = field(default_factory=lambda: deque(maxlen=CHART_SECONDS))
    current: list[StepRecord] = field(default_factory=list)

    def add(self, records: Iterable[StepRecord]) -> None:
        """Take steps, oldest first."""
        for record in records:
            if self.current and int(record.end) != int(self.current[-1].end):
                self.done.append(_second(self.current))
                self.current = []
            self.current.append(record)

    def series(self) -> dict[str, Series]:
        """A series of each field of the seconds; empty before the first second is over."""
        return series_of(("step_p50", "step_p95", "step_save", "step_evaluation"), self.done)


def _second(records: Sequence[StepRecord]) -> Second:
    ordered = sorted(record.seconds for record in records)
    return Second(
        float(int(records[-1].end) + 1),
        quantile(ordered, 0.5) * 1e3,
        quantile(ordered, 0.95) * 1e3,
        sum(record.save for record in records),
        sum(record.evaluation for record in records),
    )


class ServedSecond(NamedTuple):
    """Requests and iterations that ended in the second that begins at `second` (monotonic), for charts.

    `p50` and `p99` are the latencies (seconds) of the `requests` that ended, `queue` the sum of their seconds in the
    queue. `waiting` is the mean number of queued requests that the engine's iterations report. None is not measured.
    """

    second: int
    requests: int = 0
    p50: float | None = None
    p99: float | None = None
    queue: float | None = None
    waiting: float | None = None


@dataclass
class ServedHistory:
    """Requests, iterations and pauses of one process, oldest first. `since` is when watching them began.

    `alive` is the number of requests under way at the last sample; None where requests are not watched. `busy` is since
    when there have been some at every sample; None while there are none.
    """

    requests: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=KEEP_REQUESTS))
    iterations: deque[IterationRecord] = field(default_factory=lambda: deque(maxlen=KEEP_ITERATIONS))
    pauses: deque[Pause] = field(default_factory=lambda: deque(maxlen=KEEP_PAUSES))
    alive: int | None = None
    busy: float | None = None
    heard: float | None = None
    since: float | None = None
    # For charts: the finished seconds, and the requests and iterations of the seconds that are still open.
    done: deque[ServedSecond] = field(default_factory=lambda: deque(maxlen=CHART_SECONDS))
    current: tuple[RequestRecord, ...] = ()
    turns: tuple[IterationRecord, ...] = ()

    @property
    def watches_requests(self) -> bool:
        """Whether requests of this process are watched, and not only an engine's iterations."""
        return self.alive is not None or bool(self.requests)

    def add(self, sample: HookSample) -> None:
        """Take what came out of the process's ring."""
        silent = self.heard is None or sample.time - self.heard > SILENT_SECONDS
        if not sample.alive:
            self.busy = None
        elif self.busy is None or silent:
            self.busy = sample.time
        self.alive, self.heard = sample.alive, sample.time
        if self.since is None and (sample.requests or sample.iterations or sample.alive is not None):
            # A request counts when it ends, whenever it began.
            ends = [request.end for request in sample.requests]
            self.since = min([sample.time, *ends, *(turn.end - turn.seconds for turn in sample.iterations)])
        self.requests.extend(replace(request, pid=sample.pid) for request in sample.requests)
        self.iterations.extend(sample.iterations)
        self.pauses.extend(replace(pause, pid=sample.pid) for pause in sample.pauses)
        self._sum_up(sample)

    def _sum_up(self, sample: HookSample) -> None:
        """Close each second that ended at least a second ago: by now all records of it have arrived."""
        requests, turns = (*self.current, *sample.requests), (*self.turns, *sample.iterations)
        first_open = int(sample.time) - 1
        ended: dict[int, tuple[list[RequestRecord], list[IterationRecord]]] = {}
        for record in requests:
            if record.end < first_open:
                ended.setdefault(int(record.end), ([], []))[0].append(record)
        for turn in turns:
            if turn.end < first_open:
                ended.setdefault(int(turn.end), ([], []))[1].append(turn)
        self.done.extend(_served_second(second, *ended[second]) for second in sorted(ended))
        self.current = tuple(record for record in requests if record.end >= first_open)
        self.turns = tuple(turn for turn in turns if turn.end >= first_open)


def _served_second(second: int, requests: Sequence[RequestRecord], turns: Sequence[IterationRecord]) -> ServedSecond:
    ordered = sorted(record.seconds for record in requests)
    queued = [record.queue for record in requests if record.queue is not None]
    waiting = [record.waiting for record in turns if record.waiting is not None]
    return ServedSecond(
        second,
        requests=len(ordered),
        p50=quantile(ordered, 0.5) if ordered else None,
        p99=quantile(ordered, 0.99) if ordered else None,
        queue=sum(queued) if queued else None,
        waiting=sum(waiting) / len(waiting) if waiting else None,
    )


@dataclass
class HookHistory:
    """What the hook of one process reported. `spread` is thinned out, so that it reaches further back than `steps`.

    `began` and `time` are the times of the hook's first and last sample; `allocators` are those of the last minutes.
    """

    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=KEEP_STEPS))
    spread: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=KEEP_STEPS))
    count: int = 0
    facts: HookFacts | None = None
    allocators: deque[tuple[float, tuple[AllocatorSample, ...]]] = field(default_factory=deque)
    began: float = 0.0
    time: float = 0.0
    sequence: int | None = None
    seconds: StepSeconds = field(default_factory=StepSeconds)
    recompiles: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=KEEP_RECOMPILES))
    served: ServedHistory = field(default_factory=ServedHistory)
    totals: UnitTotals = field(default_factory=UnitTotals)


class Reach(NamedTuple):
    """How far back a Snapshot looks for stacks, and when data counts as old. Longer where sampling is rare.

    `sampled`  the newest stack windows are used until they make up this number of seconds, however old
    `stale`    seconds without news after which a source is stale
    `again`    seconds after which the stacks of a job that stands still are read again
    """

    sampled: float = 0.0
    stale: float = 10.0
    again: float = 10.0


@dataclass
class History:
    """Samples of the last minutes by source. `add` takes events in order; nothing here grows without bound."""

    target: Target
    reach: Reach = field(default_factory=Reach)
    statuses: dict[SourceName, SourceStatus] = field(default_factory=dict)
    last_ok: dict[SourceName, SourceStatus] = field(default_factory=dict)
    hosts: RecentSamples[HostSample] = field(default_factory=RecentSamples)
    cores: Sums = field(default_factory=dict)
    gpus: RecentSamples[GpuSample] = field(default_factory=RecentSamples)
    windows: deque[StackWindow] = field(default_factory=lambda: deque(maxlen=MOST_WINDOWS))
    hooks: dict[int, HookHistory] = field(default_factory=dict)
    servers: dict[int, deque[ServerSample]] = field(default_factory=dict)
    growth: GrowthSites | None = None
    past: PastHistory = field(default_factory=PastHistory)
    dump: StackDump | None = None
    exchange_notes: ExchangeNotes | None = None
    rank_numbers: dict[int, int] = field(default_factory=dict)
    # The part of each process in a server, by pid, of ended processes too.
    parts: dict[int, str] = field(default_factory=dict)
    # When stacks first showed a step of a process, by pid: the end of that window.
    stepped: dict[int, float] = field(default_factory=dict)
    # Whether the stacks of any process have shown a backward pass or an update.
    updated: bool = False
    ticks: deque[Tick] = field(default_factory=lambda: deque(maxlen=30))
    tick_count: int = 0
    first_time: float | None = None
    newest: dict[SourceName, float] = field(default_factory=dict)
    # A cache, so it does not count in comparisons.
    stacks: StackView = field(default_factory=StackView, compare=False)

    def add(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Tick):
            self.ticks.append(event)
            self.tick_count += 1
            self.first_time = event.time if self.first_time is None else self.first_time
            self._forget(event.time)
        elif isinstance(event, SourceStatus):
            before = self.statuses.get(event.source)
            if before is not None and before.state == "ok":
                self.last_ok[event.source] = before
            self.statuses[event.source] = event
        elif isinstance(event, Target):
            self.target = event
            if event.ended is not None:
                self._ignore_failures_at_the_end(event.time)
        elif isinstance(event, GrowthSites):
            self.growth = event
        elif isinstance(event, StackDump):
            self.dump = event
        elif isinstance(event, ExchangeNotes):
            self.exchange_notes = event
        else:
            self._add_sample(event)

    def _add_sample(self, sample: Sample) -> None:
        self.past.add(sample, self.stacks)
        self.newest[_SOURCES[type(sample)]] = sample.time
        if isinstance(sample, HostSample):
            self.hosts.append(sample)
            self.cores = add_cores(self.cores, sample)
            for pid, shares in shares_of_time(sample).items():
                if pid in self.hooks:
                    self.hooks[pid].totals.shares = shares
            self._number(sample)
            if len(self.parts) > MOST_RANKS:
                self.parts.clear()
            self.parts |= {process.pid: process.part for process in sample.processes if process.part is not None}
        elif isinstance(sample, GpuSample):
            self.gpus.append(sample)
        elif isinstance(sample, StackWindow):
            self.windows.append(sample)
            self._note_steps(sample)
        elif isinstance(sample, HookSample):
            self._add_hook(sample)
        else:
            self.servers.setdefault(sample.pid, deque(maxlen=KEEP_LOOKS)).append(sample)

    def _number(self, host: HostSample) -> None:
        """Remember the first number seen of each rank, until none of them is left and others have started.

        Ranks started by `spawn` have no number of their own: they are counted, and counted anew when one ends.
        """
        living = {process.pid for process in host.living_ranks}
        started_anew = bool(living) and living.isdisjoint(self.rank_numbers)
        if started_anew or len(self.rank_numbers) > MOST_RANKS:
            self.rank_numbers.clear()
        for process in host.processes:
            if process.role == "launcher":
                # A launcher looks like a rank until its children turn out to be the ranks.
                self.rank_numbers.pop(process.pid, None)
            elif process.pid in living and process.rank is not None:
                self.rank_numbers.setdefault(process.pid, process.rank)

    def _note_steps(self, window: StackWindow) -> None:
        """Note the time of the window for each process of which it is the first to show a step."""
        if len(self.stepped) > MOST_RANKS:
            self.stepped.clear()
        for pid, phases in self.stacks.phases_in(window).items():
            if phases & STEPPING:
                self.stepped.setdefault(pid, window.time)
            self.updated = self.updated or bool(phases & UPDATES)

    def _add_hook(self, sample: HookSample) -> None:
        hook = self.hooks.setdefault(sample.pid, HookHistory(began=sample.time))
        hook.steps.extend(sample.steps)
        for record in sample.steps:
            # Chosen by time alone, so that a replay shows the same from wherever it started to read.
            if not hook.spread or record.end // SPREAD_SECONDS != hook.spread[-1].end // SPREAD_SECONDS:
                hook.spread.append(record)
        hook.seconds.add(sample.steps)
        hook.served.add(sample)
        hook.totals.take(sample)
        hook.count += len(sample.steps)
        hook.facts = sample.facts or hook.facts
        hook.time = sample.time
        hook.sequence = sample.sequence or hook.sequence
        if sample.facts is not None and sample.facts.recompiles is not None:
            hook.recompiles.append((sample.time, sample.facts.recompiles))
        if sample.allocators:
            hook.allocators.append((sample.time, sample.allocators))

    def _ignore_failures_at_the_end(self, time: float) -> None:
        """Set sources that failed in the last seconds back to their last `ok`: they failed because the target ended."""
        for name, before in self.last_ok.items():
            if self.statuses[name].time > time - ENDING_SECONDS:
                self.statuses[name] = before

    def _forget(self, now: float) -> None:
        oldest = now - KEEP_SECONDS
        self.hosts.forget(now)
        self.gpus.forget(now)
        for hook in self.hooks.values():
            # What it told last stays: a process that hangs tells nothing.
            while len(hook.allocators) > 1 and hook.allocators[0][0] < oldest:
                hook.allocators.popleft()
        # A process that hangs or is busy with one call tells nothing for long, but what it told before still counts.
        alive = {process.pid for process in self.hosts.last.processes} if self.hosts.last is not None else self.hooks
        for pid in [pid for pid, hook in self.hooks.items() if hook.time < oldest and pid not in alive]:
            del self.hooks[pid]
        for pid in [pid for pid, looks in self.servers.items() if looks[-1].time < oldest and pid not in alive]:
            del self.servers[pid]
