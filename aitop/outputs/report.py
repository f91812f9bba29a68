"""The report of a diagnosis: what `diagnose --format json` writes (schema 1), and what text and HTML are made from.

Built from one Snapshot, without input, output or clock. None means not measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from aitop import __version__
from aitop.diagnosis.run_comparison import compared
from aitop.diagnosis.run_summary import run_of
from aitop.model.host import ProcessSample
from aitop.model.ledger import Activity, Basis, Entry, Lane, Ledger, Unit
from aitop.model.phases import TIMED_ALONE, Phase
from aitop.model.run import Run, RunComparison
from aitop.model.serving import Percentiles, Serving, ServingBasis
from aitop.model.snapshot import Cost, Phases, Snapshot, Steps
from aitop.model.source import SOURCE_NAMES, SourceStatus
from aitop.model.text import escaped_json
from aitop.model.verdict import Abstention, Verdict

SCHEMA = 1
DIGITS = 4


class ReportProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the target's tree. `rank` of a loader worker is the rank it feeds; a server's have a `part`."""

    pid: int
    role: str
    rank: int | None = None
    part: str | msgspec.UnsetType = msgspec.UNSET


class ReportWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A process that does the work, and the thread of it, or one of several `threads` that take the same work in turns.

    `seconds` is the mean length of one unit of that work.
    """

    pid: int
    thread: str
    unit: Unit
    seconds: float | None = None
    threads: int = 1


class ReportTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What was watched. `working` has the processes that have a ledger; the one to look at first comes first.

    `ended` says in words how it ended, None if it was alive. `engine` is the serving engine, None if none is known.
    """

    pid: int
    command: str
    kind: str
    processes: tuple[ReportProcess, ...]
    engine: str | None = None
    working: tuple[ReportWorker, ...] = ()
    ended: str | None = None


class ReportSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where facts came from, or why they did not."""

    state: str
    reason: str | None = None
    remedy: str | None = None


class ReportStep(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the window. `basis` is hook or stacks; `phases` are shares of step time, by key.

    `mfu` is the share of the device's peak that the floating-point operations of the model (`flops_per_s`) come to.
    """

    count: int | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    mean_ms: float | None = None
    per_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    flops_per_s: float | None = None
    mfu: float | None = None
    phases: dict[str, float | None]
    basis: str | None = None


class ReportServing(msgspec.Struct, frozen=True, kw_only=True):
    """What is served in the last `window_s` seconds. `basis` is the best source of it: hook, metrics or stacks.

    `concurrency` is the mean number of requests under way, `queue` that of those that wait; `alive` are under way now,
    and `still_s` is how long none has ended and the engine has made no iteration.
    """

    window_s: float | None = None
    requests_per_s: float | None = None
    tokens_per_s: float | None = None
    concurrency: float | None = None
    queue: float | None = None
    latency_ms: Percentiles | None = None
    ttft_ms: Percentiles | None = None
    itl_ms: Percentiles | None = None
    batch_mean: float | None = None
    kv_used: float | None = None
    preemptions_per_s: float | None = None
    alive: int | None = None
    still_s: float | None = None
    basis: ServingBasis


class ReportPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code. `text` is the source of that line, None where it is not known."""

    pid: int
    file: str
    line: int
    function: str
    text: str | None = None


class ReportEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the ledger of the working process `pid`. The shares of its main lane add up to 1; one of the
    producers is of the time of the thread that runs the line.

    `seconds` is per unit of work. `where` is None where none of the user's frames was on the stack; its pid is that of
    the process that runs the line, which may be a loader worker.
    """

    pid: int
    lane: Lane
    phase: Phase
    activity: Activity
    share: float
    seconds: float | None
    basis: Basis
    where: ReportPlace | None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a diagnosis says, in the order in which it is written. `serving` is None where nothing is served.

    `comparison` is with an earlier run, None where there is none. `run` is what a later one is compared with.
    """

    schema: int
    aitop: str
    window_s: float
    target: ReportTarget
    sources: dict[str, ReportSource]
    step: ReportStep
    ledger: tuple[ReportEntry, ...]
    serving: ReportServing | None
    verdicts: tuple[Verdict, ...]
    cost: Cost
    abstained: tuple[Abstention, ...] = ()
    comparison: RunComparison | None = None
    run: Run | None = None


def report_of(snapshot: Snapshot) -> Report:
    """The report that says what this snapshot says."""
    return Report(
        schema=SCHEMA,
        aitop=__version__,
        window_s=snapshot.window,
        target=ReportTarget(
            pid=snapshot.target.pid,
            command=snapshot.target.command,
            kind=snapshot.kind,
            processes=tuple(map(_process, snapshot.processes)),
            engine=snapshot.engine,
            working=tuple(
                ReportWorker(
                    pid=ledger.pid,
                    thread=ledger.thread,
                    unit=ledger.unit,
                    seconds=ledger.length,
                    threads=ledger.threads,
                )
                for ledger in snapshot.ledgers
            ),
            ended=snapshot.target.ended,
        ),
        sources=_sources(snapshot),
        step=_step(snapshot.steps),
        ledger=_ledger(snapshot.ledgers),
        serving=None if snapshot.serving is None else _serving(snapshot.serving),
        verdicts=snapshot.diagnosis.verdicts,
        cost=snapshot.cost,
        abstained=snapshot.diagnosis.abstained,
        comparison=compared(snapshot),
        run=run_of(snapshot),
    )


def as_json(struct: msgspec.Struct) -> str:
    """Indented JSON with the keys in the order of the schema and a newline at the end."""
    written = msgspec.json.encode(rounded(msgspec.to_builtins(struct)))
    return escaped_json(msgspec.json.format(written, indent=2).decode()) + "\n"


def rounded(value: Any) -> Any:
    """`value` (of plain types) with every fraction in it rounded to DIGITS significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def _process(process: ProcessSample) -> ReportProcess:
    part = msgspec.UNSET if process.part is None else process.part
    return ReportProcess(pid=process.pid, role=process.role, rank=process.rank, part=part)


def _sources(snapshot: Snapshot) -> dict[str, ReportSource]:
    """The sources to report: those of every job, and a server's metrics if they were looked for."""
    names = (*SOURCE_NAMES, *(name for name in snapshot.sources if name not in SOURCE_NAMES))
    return {name: _source(snapshot.sources.get(name)) for name in names}


def _source(status: SourceStatus | None) -> ReportSource:
    if status is None:
        return ReportSource(state="absent", reason="nothing was heard of it")
    remedy = status.remedy if status.state != "ok" else None
    return ReportSource(state=status.state, reason=status.reason, remedy=remedy)


def _step(steps: Steps | None) -> ReportStep:
    if steps is None:
        return ReportStep(phases=_phases(Phases()))
    return ReportStep(
        count=steps.count,
        p50_ms=_milliseconds(steps.p50),
        p95_ms=_milliseconds(steps.p95),
        mean_ms=_milliseconds(steps.mean),
        per_s=steps.per_second,
        samples_per_s=steps.samples_per_second,
        tokens_per_s=steps.tokens_per_second,
        flops_per_s=steps.flops_per_second,
        mfu=steps.mfu,
        phases=_phases(steps.phases),
        basis=steps.basis,
    )


def _phases(phases: Phases) -> dict[str, float | None]:
    """The share of every phase that can be measured, None where it was not. They add up to 1."""
    shares = phases.shares()
    outside = shares.pop("outside")
    return {**shares, **{phase.key: shares.get(phase.key) for phase in TIMED_ALONE.values()}, "outside": outside}


def _serving(serving: Serving) -> ReportServing:
    return ReportServing(
        window_s=serving.seconds,
        requests_per_s=serving.requests_per_second,
        tokens_per_s=serving.tokens_per_second,
        concurrency=serving.concurrency,
        queue=serving.queue,
        latency_ms=serving.latency and serving.latency.in_milliseconds(),
        ttft_ms=serving.first_token and serving.first_token.in_milliseconds(),
        itl_ms=serving.inter_token and serving.inter_token.in_milliseconds(),
        batch_mean=serving.batch_mean,
        kv_used=serving.kv_used,
        preemptions_per_s=serving.preemptions_per_second,
        alive=serving.alive,
        still_s=serving.still,
        basis=serving.basis,
    )


def _ledger(ledgers: Sequence[Ledger]) -> tuple[ReportEntry, ...]:
    """The entries of all ledgers, heaviest first; equally heavy ones in the order of the ledgers."""
    entries = [_entry(ledger.pid, entry) for ledger in ledgers for entry in ledger.entries]
    return tuple(sorted(entries, key=lambda entry: -entry.share))


def _entry(pid: int, entry: Entry) -> ReportEntry:
    at = entry.where
    return ReportEntry(
        pid=pid,
        lane=entry.lane,
        phase=entry.phase,
        activity=entry.activity,
        share=entry.share,
        seconds=entry.seconds,
        basis=entry.basis,
        where=ReportPlace(pid=at.pid, file=at.file, line=at.line, function=at.function, text=at.text) if at else None,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
