"""What the script of the HTML report draws: ledgers, call trees, steps and series of a Snapshot as numbers and words.

Pure. What was not measured has no chart. Times are seconds before the Snapshot, so they are negative.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from aitop.model.ledger import ACTIVITIES, Basis, Entry, Lane, Ledger, Unit
from aitop.model.phases import MEASURED, SERVED, outside_of_phases
from aitop.model.serving import Serving
from aitop.model.snapshot import CallNode, ProcessStacks, Series, Snapshot, ThreadTree
from aitop.model.steps import StepRecord
from aitop.outputs.ledger_table import PRODUCERS
from aitop.stacks.origin import origin_of

MOST_COLUMNS = 120
MOST_POINTS = 300
BUCKETS_PER_DECADE = 12
OUTSIDE = "outside"
HUES: dict[str, str] = {**{phase.key: phase.hue for phase in (*MEASURED, *SERVED)}, "environment": "data_wait"}
"""The hue (the key of a kind in ui.theme.palette) of each phase of the ledger; others have that of OUTSIDE."""
LANES: dict[Lane, str] = {"main": "The thread that does the work", "producers": PRODUCERS}

Quantity = Literal["ms", "count", "cores", "bytes", "share", "rate"]
# The charts over minutes: title, quantity, and the series in each with their names.
OVER_TIME: tuple[tuple[str, Quantity, tuple[tuple[str, str], ...]], ...] = (
    ("Step time", "ms", (("step_p50", "p50"), ("step_p95", "p95"))),
    ("Latency of requests", "ms", (("request_p50", "p50"), ("request_p99", "p99"))),
    ("Requests a second", "rate", (("request_rate", "answered"),)),
    ("Requests that wait", "count", (("request_queue", "waiting"),)),
    ("Loader queue: batches that lie ready", "count", (("queue_ready", "ready"),)),
    (
        "Cores",
        "cores",
        (("cores_used", "used"), ("cores_waited", "waited for"), ("workers_cpu", "used by loader workers")),
    ),
    ("Memory in use", "bytes", (("rss", "ranks"), ("workers_rss", "loader workers"))),
    ("Memory left for the run", "bytes", (("memory_left", "left"),)),
)
OF_GPU: tuple[tuple[str, Quantity, tuple[tuple[str, str], ...]], ...] = (
    ("busy", "share", (("gpu{0}.busy", "busy"), ("gpu{0}.sm", "SMs active"), ("gpu{0}.tensor", "tensor cores active"))),
    (
        "memory",
        "bytes",
        (("gpu{0}.memory", "taken"), ("alloc{0}.reserved", "reserved by torch"), ("alloc{0}.allocated", "allocated")),
    ),
)
_DEVICE = re.compile(r"(?:gpu|alloc)(\d+)\.")


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the ledger: `share` (0..1) of its lane, from `low` to `high`; `seconds` per unit, None if unknown."""

    phase: str
    hue: str
    activity: str
    place: str
    source: str
    share: float
    low: float
    high: float
    basis: Basis
    seconds: float | None


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of one working process: its lanes, each with its name and its entries, heaviest first."""

    name: str
    unit: Unit
    lanes: tuple[tuple[str, tuple[Share, ...]], ...]


class Flame(msgspec.Struct, frozen=True, kw_only=True):
    """The call tree of one thread. A node is [function, place, whose code, samples, children]."""

    name: str
    root: list[Any]


class StepColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Steps over time, stacked by phase. A column has its first and last step, and mean milliseconds by phase."""

    phases: tuple[tuple[str, str], ...]
    columns: tuple[tuple[int, int, tuple[float, ...]], ...]
    estimated: bool


class Line(msgspec.Struct, frozen=True):
    """A named series of (time, value); a value is None where nothing was measured."""

    name: str
    points: tuple[tuple[float, float | None], ...]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over the same quantity."""

    title: str
    quantity: Quantity
    lines: tuple[Line, ...]


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies in seconds: `counts[i]` lie between `bounds[i]` and `bounds[i + 1]`. `marks` are named values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    marks: tuple[tuple[str, float], ...]


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    """All of them. `workers` has the cores that each loader worker used."""

    ledgers: tuple[Account, ...] = ()
    flames: tuple[Flame, ...] = ()
    steps: StepColumns | None = None
    over_time: tuple[Chart, ...] = ()
    workers: tuple[Line, ...] = ()
    gpu: tuple[Chart, ...] = ()
    latency: Histogram | None = None


def charts_of(snapshot: Snapshot) -> Charts:
    """The charts of a Snapshot."""
    series = snapshot.series
    workers = sorted(name for name in series if name.startswith("worker") and name.endswith(".cpu"))
    return Charts(
        ledgers=tuple(map(_account, snapshot.ledgers)),
        flames=tuple(_flames(snapshot)),
        steps=_steps(snapshot.steps.recent) if snapshot.steps is not None else None,
        over_time=tuple(_charts(snapshot, OVER_TIME)),
        workers=tuple(
            _line(f"pid {name.removeprefix('worker').removesuffix('.cpu')}", series[name], snapshot.time)
            for name in workers
        ),
        gpu=tuple(_gpu_charts(snapshot)),
        latency=_latency(snapshot.serving) if snapshot.serving is not None else None,
    )


def _account(ledger: Ledger) -> Account:
    lanes = [(name, _shares(entry for entry in ledger.entries if entry.lane == lane)) for lane, name in LANES.items()]
    return Account(
        name=f"pid {ledger.pid} · {ledger.thread}",
        unit=ledger.unit,
        lanes=tuple((name, shares) for name, shares in lanes if shares),
    )


def _shares(entries: Iterable[Entry]) -> tuple[Share, ...]:
    """The entries of a lane, heaviest first; those that read the same (which differ in position, say) are added up."""
    alike: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        at = entry.where
        place = f"{_base(at.file)}:{at.line} {at.function}" if at is not None else ""
        source = (at.text or "").strip() if at is not None else ""
        alike.setdefault((entry.phase, entry.activity, place, source, entry.basis), []).append(entry)
    shares = [_share(members, place, source) for (_, _, place, source, _), members in alike.items()]
    return tuple(sorted(shares, key=lambda share: -share.share))


def _share(members: Sequence[Entry], place: str, source: str) -> Share:
    first, seconds = members[0], [entry.seconds for entry in members if entry.seconds is not None]
    return Share(
        phase=first.phase,
        hue=HUES.get(first.phase, OUTSIDE),
        activity=ACTIVITIES[first.activity],
        place=place,
        source=source,
        share=sum(entry.share for entry in members),
        low=sum(entry.low for entry in members),
        high=min(1.0, sum(entry.high for entry in members)),
        basis=first.basis,
        seconds=sum(seconds) if seconds else None,
    )


def _flames(snapshot: Snapshot) -> Iterator[Flame]:
    """The call tree of each process, then those of the other threads."""
    if snapshot.stacks is None:
        return
    processes = {process.pid: process for process in snapshot.host.processes} if snapshot.host else {}
    threads: tuple[ProcessStacks | ThreadTree, ...] = (*snapshot.stacks.processes, *snapshot.stacks.trees)
    for thread in threads:
        if thread.tree is not None:
            name = f"pid {thread.pid} · {thread.thread}"
            process = processes.get(thread.pid)
            if process is not None:
                numbered = process.role == "rank" and process.rank is not None
                name = f"{process.part or process.role}{f' {process.rank}' if numbered else ''} · {name}"
            yield Flame(name=name if isinstance(thread, ProcessStacks) else f"{name} (beside)", root=_node(thread.tree))


def _node(node: CallNode) -> list[Any]:
    place = f"{_base(node.file)}:{node.line}" if node.file else ""
    whose = origin_of(node.file, node.user) if node.file else ""
    return [node.function, place, whose, node.samples, [_node(child) for child in node.children]]


def _steps(records: Sequence[StepRecord]) -> StepColumns | None:
    """Consecutive steps share a column where there are too many. None where none was timed."""
    if not records:
        return None
    each = math.ceil(len(records) / MOST_COLUMNS)
    groups = [records[first : first + each] for first in range(0, len(records), each)]
    means = [_mean_phases(group) for group in groups]
    seen = [number for number in range(len(MEASURED) + 1) if any(mean[number] > 0 for mean in means)]
    names = [*((phase.key, phase.hue) for phase in MEASURED), ("other", OUTSIDE)]
    return StepColumns(
        phases=tuple(names[number] for number in seen),
        columns=tuple(
            (group[0].index, group[-1].index, tuple(mean[number] * 1e3 for number in seen))
            for group, mean in zip(groups, means, strict=True)
        ),
        estimated=any(record.estimated for record in records),
    )


def _mean_phases(records: Sequence[StepRecord]) -> list[float]:
    """Mean seconds of each measured phase, and of the rest."""
    sums = [phase.total(records) or 0.0 for phase in MEASURED]
    return [total / len(records) for total in (*sums, sum(map(outside_of_phases, records)))]


def _charts(snapshot: Snapshot, wanted: Iterable[tuple[str, Quantity, tuple[tuple[str, str], ...]]]) -> Iterator[Chart]:
    """Those of the charts of which something was measured."""
    for title, quantity, members in wanted:
        lines = tuple(
            _line(name, snapshot.series[key], snapshot.time) for key, name in members if key in snapshot.series
        )
        if any(value is not None for line in lines for _, value in line.points):
            yield Chart(title=title, quantity=quantity, lines=lines)


def _gpu_charts(snapshot: Snapshot) -> Iterator[Chart]:
    devices = {int(match[1]) for name in snapshot.series if (match := _DEVICE.match(name))}
    for device in sorted(devices):
        yield from _charts(
            snapshot,
            (
                (
                    f"GPU {device}: {what}",
                    quantity,
                    tuple((key.format(device), name) for key, name in members),
                )
                for what, quantity, members in OF_GPU
            ),
        )


def _line(name: str, series: Series, now: float) -> Line:
    """The series thinned to what a chart can show."""
    points = list(zip(series.times, series.values, strict=True))
    points = points[:: math.ceil(len(points) / MOST_POINTS) or 1]
    return Line(name, tuple((time - now, value) for time, value in points))


def _latency(serving: Serving) -> Histogram | None:
    """How long the requests of the window took; None where single requests were not seen."""
    seconds = [max(request.seconds, 1e-6) for request in serving.requests]
    if not seconds or serving.latency is None:
        return None
    numbers = [math.floor(math.log10(value) * BUCKETS_PER_DECADE) for value in seconds]
    first, last = min(numbers), max(numbers)
    counts = [0] * (last - first + 1)
    for number in numbers:
        counts[number - first] += 1
    marks = serving.latency
    return Histogram(
        bounds=tuple(10 ** ((first + place) / BUCKETS_PER_DECADE) for place in range(len(counts) + 1)),
        counts=tuple(counts),
        marks=(("p50", marks.p50), ("p95", marks.p95), ("p99", marks.p99)),
    )


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1]
