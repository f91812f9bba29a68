"""The metric families of all jobs on this machine: names, labels and values as SCRIPTING.md lists them.

What is not measured has no sample. prometheus_client escapes labels; here they are made printable and bounded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from aitop.diagnosis.evidence import shares_by
from aitop.model.job import Job
from aitop.model.ranks import RankPhases
from aitop.model.snapshot import Phases, Snapshot
from aitop.model.source import SourceState
from aitop.model.text import printable
from aitop.model.verdict import Base, Verdict
from aitop.outputs.prometheus.counters import BOUNDS, RankCounters, Tally

LONGEST_LABEL = 256
OF_JOB = ("node", "job")
OF_RANK = (*OF_JOB, "rank", "UUID")
OF_VERDICT = ("verdict", "subtype", "severity", "file", "line")
OF_INFO = ("user", "launcher", "scheduler", "step", "pod", "container", "ray_job")
# A share of these is a share of all time; one of requests, or of the slowest, says nothing of the device.
OF_TIME: tuple[Base, ...] = ("step", "time")
UNSEEN: tuple[SourceState, ...] = ("denied", "failed")


class Rank(msgspec.Struct, frozen=True):
    """A process that has series of its own. `devices` are the UUIDs of the devices that it computes on.

    `label` is its rank number in the whole job, empty for an only process without a number, and `pid` with its pid
    where several processes would have the same label.
    """

    pid: int
    label: str
    number: int | None = None
    devices: tuple[str, ...] = ()


class WatchedJob:
    """The newest Snapshot of a job, and the counters of its ranks."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ranks: tuple[Rank, ...] = ()
        self.snapshot: Snapshot | None = None
        self.counters: dict[str, RankCounters] = {}

    def take(self, snapshot: Snapshot) -> None:
        """Take the next Snapshot."""
        self.snapshot, self.ranks = snapshot, ranks_here(snapshot)
        # A process keeps its counters when its label changes. One that replaces an ended process goes on with its.
        own = {one.pid: one for one in self.counters.values()}
        left = {label: one for label, one in self.counters.items() if all(one.pid != rank.pid for rank in self.ranks)}
        self.counters = {rank.label: own.get(rank.pid) or left.get(rank.label) or RankCounters() for rank in self.ranks}
        for rank in self.ranks:
            self.counters[rank.label].take(rank.pid, snapshot)

    def ranks_among(self, labels: Counter[tuple[str, str, str]]) -> dict[Rank, RankCounters]:
        """The ranks with their counters, by labels that are theirs alone.

        `labels` counts node, job and label of all ranks: jobs that one batch script or pod starts have one name.
        """
        node, name = self.job.node, self.job.id
        return {
            rank if labels[node, name, rank.label] == 1 else msgspec.structs.replace(rank, label=f"pid{rank.pid}"): one
            for rank, one in zip(self.ranks, self.counters.values(), strict=True)
        }


class JobsCollector(Collector):
    """Collects the metric families of all watched jobs. Any thread may call. `cpu` is aitop's own CPU use in cores."""

    def __init__(self, node: str) -> None:
        self.cpu: float | None = None
        self.node = node
        self._lock = threading.Lock()
        self._jobs: dict[int, WatchedJob] = {}
        self._closed: dict[int, Job] = {}

    def take(self, job: Job, snapshot: Snapshot) -> None:
        """Take the next Snapshot of a job."""
        with self._lock:
            self._closed.pop(job.pid, None)
            watched = self._jobs.get(job.pid)
            if watched is None or watched.job != job:
                watched = self._jobs[job.pid] = WatchedJob(job)
            watched.take(snapshot)

    def close(self, job: Job) -> None:
        """Note a job that aitop may not look into."""
        with self._lock:
            self._closed[job.pid] = job

    def drop(self, pid: int) -> None:
        """Forget the job whose topmost process this was: its series end."""
        with self._lock:
            self._jobs.pop(pid, None)
            self._closed.pop(pid, None)

    def collect(self) -> Iterable[Metric]:
        """All families that have a sample."""
        with self._lock:
            jobs, closed = list(self._jobs.values()), list(self._closed.values())
            families = list(self._families(jobs, closed))
        return [family for family in families if family.samples]

    def _families(self, jobs: Sequence[WatchedJob], closed: Sequence[Job]) -> Iterator[Metric]:
        families = _Families()
        for info in dict.fromkeys(map(_of_info, [*closed, *(watched.job for watched in jobs if watched.snapshot)])):
            families.info.add_metric(info, 1.0)
        for job in closed:
            families.up.add_metric((*_of_job(job), "", "", str(job.pid)), 0.0)
        labels = Counter((watched.job.node, watched.job.id, rank.label) for watched in jobs for rank in watched.ranks)
        for watched in jobs:
            if watched.snapshot is not None:
                families.add(watched.job, watched.ranks_among(labels), watched.snapshot)
        families.jobs.add_metric((_label(self.node),), float(len(jobs) + len(closed)))
        if self.cpu is not None:
            families.cpu.add_metric((_label(self.node),), self.cpu)
        return families.all()


class _Families:
    """One family for each metric, to be filled with the samples of all jobs."""

    def __init__(self) -> None:
        self.up = _gauge("aitop_up", "1: this rank is watched; 0: it is there, but aitop cannot look into it.", "pid")
        self.info = _gauge("aitop_job_info", "Always 1: whose job it is.", *OF_INFO, of=OF_JOB)
        self.order = _gauge(
            "aitop_verdict_order", "Place of a verdict in the diagnosis: 1 is the one that costs most.", *OF_VERDICT
        )
        self.share = _gauge("aitop_verdict_share", "Share of the time that the verdict's cause takes.", *OF_VERDICT)
        self.speedup = _gauge("aitop_verdict_speedup", "Factor in units per second if the cause were gone.", "verdict")
        self.full = _gauge(
            "aitop_memory_full_seconds", "Time that is left until memory is full, of a verdict on memory.", "verdict"
        )
        self.wasted = _gauge(
            "aitop_wasted_gpu_ratio",
            "Share of a device's time that is lost to the first verdict whose share is of the time.",
        )
        self.stalled = _gauge("aitop_stalled", "1 while nothing in the job gets on.")
        self.phases = _gauge("aitop_phase_ratio", "Share of a step, request or iteration.", "phase")
        self.units = CounterMetricFamily(
            "aitop_units", "Steps, requests or iterations that the hook has seen.", labels=(*OF_RANK, "kind")
        )
        self.unit_seconds = _histogram("aitop_unit_seconds", "Length of a step, request or iteration.", "kind")
        self.requests = _histogram("aitop_request_seconds", "From the arrival of a request to its last byte or token.")
        self.first_tokens = _histogram(
            "aitop_time_to_first_token_seconds", "From the arrival of a request to its first token."
        )
        self.hook = CounterMetricFamily(
            "aitop_hook_seconds", "Time that aitop's hook has taken in the process.", labels=OF_RANK
        )
        self.cpu = _gauge("aitop_monitor_cpu_ratio", "Cores that this exporter uses.", of=("node",))
        self.jobs = _gauge("aitop_jobs", "AI jobs on this machine.", of=("node",))

    def all(self) -> Iterator[Metric]:
        """Every family, in the order of the documentation."""
        return iter(vars(self).values())

    def add(self, job: Job, ranks: Mapping[Rank, RankCounters], snapshot: Snapshot) -> None:
        """Add the samples of one job."""
        stacks, hook = snapshot.sources.get("stacks"), snapshot.sources.get("hook")
        blind = stacks is not None and stacks.state in UNSEEN and not (hook is not None and hook.state == "ok")
        for rank, counters in ranks.items():
            labels = _of_rank(job, rank)
            self.up.add_metric((*labels, str(rank.pid)), float(not blind))
            for phase, share in phases_of(rank, snapshot).items():
                self.phases.add_metric((*labels, phase), share)
            self._add_counters(labels, counters)
        verdicts = snapshot.diagnosis.verdicts
        for order, verdict in enumerate(verdicts, start=1):
            self._add_verdict(job, tuple(ranks), verdict, order)
        self._add_losses(job, tuple(ranks), snapshot, verdicts)

    def _add_verdict(self, job: Job, ranks: Sequence[Rank], verdict: Verdict, order: int) -> None:
        # Only the first verdict has a file and line: each other one would make a series of its own.
        where = verdict.where[0] if verdict.where and order == 1 else None
        place = (_label(where.file), str(where.line)) if where is not None else ("", "")
        about = (verdict.id, verdict.subtype or "", verdict.severity, *place)
        for rank in named(ranks, verdict.ranks):
            labels = _of_rank(job, rank)
            self.order.add_metric((*labels, *about), float(order))
            if verdict.share is not None and verdict.base in OF_TIME:
                self.share.add_metric((*labels, *about), verdict.share)
            if verdict.speedup is not None:
                self.speedup.add_metric((*labels, verdict.id), verdict.speedup)
            # Memory that grows with severity "info" may be the loading of a data set.
            if verdict.full_in is not None and verdict.severity != "info":
                self.full.add_metric((*labels, verdict.id), verdict.full_in)

    def _add_losses(self, job: Job, ranks: Sequence[Rank], snapshot: Snapshot, verdicts: Sequence[Verdict]) -> None:
        stalled = any(verdict.id == "hang" for verdict in verdicts)
        # Rates of the kernel's counters are known only from the second look on.
        measured = snapshot.host is not None and any(process.cpu is not None for process in snapshot.host.processes)
        first = next((verdict for verdict in verdicts if verdict.share is not None and verdict.base in OF_TIME), None)
        lost = None if first is None else 0.0 if first.severity == "info" else first.share
        # Several processes may use the same device, and its time is lost once.
        told: set[str] = set()
        for rank in ranks:
            if stalled or measured:
                self.stalled.add_metric(_of_rank(job, rank), float(stalled))
            if lost is not None:
                for name in dict.fromkeys(map(_label, rank.devices)):
                    if name not in told:
                        self.wasted.add_metric((*_of_job(job), rank.label, name), lost)
                    told.add(name)

    def _add_counters(self, labels: Sequence[str], counters: RankCounters) -> None:
        counts = {kind: sum(tally.counts) for kind, tally in counters.unit_seconds.items()}
        for kind, count in (counts if counters.steps is None else counts | {"step": counters.steps}).items():
            self.units.add_metric((*labels, kind), float(count))
        for kind, tally in counters.unit_seconds.items():
            _add_histogram(self.unit_seconds, (*labels, kind), tally)
        if "request" in counters.unit_seconds:
            _add_histogram(self.requests, labels, counters.unit_seconds["request"])
        if any(counters.first_token_seconds.counts):
            _add_histogram(self.first_tokens, labels, counters.first_token_seconds)
        if counters.hook_seconds is not None:
            self.hook.add_metric(labels, counters.hook_seconds)


def _gauge(name: str, words: str, *labels: str, of: Sequence[str] = OF_RANK) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, labels=(*of, *labels))


def _histogram(name: str, words: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, words, labels=(*OF_RANK, *labels))


def _add_histogram(family: HistogramMetricFamily, labels: Sequence[str], tally: Tally) -> None:
    below, buckets = 0, []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), tally.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    family.add_metric(labels, buckets, tally.sum)


def _of_job(job: Job) -> tuple[str, str]:
    return _label(job.node), _label(job.id)


def _of_rank(job: Job, rank: Rank) -> tuple[str, ...]:
    """The labels of a rank. One on several devices has no UUID, so that it has one series and not one per device."""
    device = rank.devices[0] if len(rank.devices) == 1 else ""
    return (*_of_job(job), rank.label, _label(device))


def _of_info(job: Job) -> tuple[str, ...]:
    facts: Mapping[str, str | None] = {name: getattr(job, name) for name in OF_INFO}
    return (*_of_job(job), *(_label(value or "") for value in facts.values()))


def _label(text: str) -> str:
    """Text of any origin as a label's value: printable and bounded."""
    return printable(text)[:LONGEST_LABEL]


# --- the ranks of a job, and the phases of their steps ----------------------------------------------------------------


def ranks_here(snapshot: Snapshot) -> tuple[Rank, ...]:
    """The ranks of the job on this machine; of a server or a program without ranks, the processes that do the work."""
    ranks = snapshot.host.living_ranks if snapshot.host is not None else ()
    numbers = {process.pid: process.rank for process in ranks}
    if snapshot.engine is not None or not numbers:
        serving = sorted(snapshot.serving.side_by_side) if snapshot.serving is not None else ()
        pids = (*snapshot.working, *serving) or tuple(numbers) or (snapshot.target.pid,)
        numbers = {pid: numbers.get(pid) for pid in pids}
    if snapshot.ranks is not None:
        numbers |= {view.pid: view.rank for view in snapshot.ranks.ranks if view.pid in numbers}
    taken = Counter(numbers.values())
    return tuple(
        Rank(pid, _rank_label(pid, number, alone=taken[number] == 1), number, _devices(pid, snapshot, len(numbers)))
        for pid, number in numbers.items()
    )


def _rank_label(pid: int, number: int | None, *, alone: bool) -> str:
    """The label of a rank. Several processes with one number, or with none, get their pids: labels must be unique."""
    if not alone:
        return f"pid{pid}"
    return "" if number is None else str(number)


def _devices(pid: int, snapshot: Snapshot, ranks: int) -> tuple[str, ...]:
    """The UUIDs of the devices that a process computes on.

    Where the driver lists no processes, or only pids of another namespace, a single rank gets all devices of the job.
    """
    devices = snapshot.gpu.devices if snapshot.gpu else ()
    used = [device for device in devices if device.runs(pid)]
    if not used and ranks == 1:
        used = [device for device in devices if device.mine]
    return tuple(device.uuid for device in used if device.uuid)


def phases_of(rank: Rank, snapshot: Snapshot) -> dict[str, float]:
    """The share (0..1) of each measured phase of a rank's step, or of a server's request or iteration."""
    views = snapshot.ranks.ranks if snapshot.ranks else ()
    compared = next((view.phases for view in views if view.pid == rank.pid), None)
    if compared is not None:
        return _shares(compared)
    ledger = next((ledger for ledger in snapshot.ledgers if ledger.pid == rank.pid), None)
    if ledger is not None and ledger.unit in ("request", "iteration"):
        return shares_by(ledger.main, lambda entry: entry.phase)
    processes = snapshot.stacks.processes if snapshot.stacks else ()
    sampled = next((process.phases for process in processes if process.pid == rank.pid), Phases())
    phases = snapshot.steps.phases if snapshot.steps and snapshot.steps.pid == rank.pid else sampled
    return {name: share for name, share in phases.shares().items() if share is not None}


def _shares(phases: RankPhases) -> dict[str, float]:
    """The phases of a rank's step as shares of it (0..1); its wait for the others is its communication."""
    seconds = {name: value for name, value in msgspec.structs.asdict(phases).items() if value is not None}
    total = sum(seconds.values())
    names = {"wait": "communication"}
    return {names.get(name, name): value / total for name, value in seconds.items()} if total > 0 else {}


def named(ranks: Sequence[Rank], numbers: Sequence[int]) -> Sequence[Rank]:
    """The ranks that have one of these numbers; all ranks where none has."""
    return [rank for rank in ranks if rank.number in numbers] or ranks
