"""The data that the script of the HTML report draws: ledgers, call trees, steps and series of a Snapshot.

Pure. What was not measured has no chart. Times are seconds relative to the Snapshot, so they are negative.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from aitop.model.ledger import ACTIVITIES, Entry, Lane, Ledger
from aitop.model.phases import APART, MEASURED, SERVED
from aitop.model.serving import Serving
from aitop.model.snapshot import CallNode, ProcessStacks, Series, Snapshot, ThreadTree
from aitop.model.steps import Kind, StepRecord
from aitop.outputs.ledger_table import of_producers
from aitop.stacks.origin import origin_of

MOST_COLUMNS = 120
MOST_POINTS = 300
BUCKETS_PER_DECADE = 12
OUTSIDE = "outside"
HUES: dict[str, str] = {**{phase.key: phase.hue for phase in (*MEASURED, *SERVED)}, "environment": "data_wait"}
"""The hue (the key of a kind in ui.theme.palette) of each phase of the ledger; all others have that of OUTSIDE."""

Drawn = dict[str, Any]
Quantity = Literal["ms", "count", "cores", "bytes", "share", "rate"]
# The charts over minutes: title, quantity, and for each line the key of its series and its name.
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
OF_ALLOCATOR = (("alloc{1}.reserved", "reserved by torch"), ("alloc{1}.allocated", "allocated"))
# {0} is the driver's number of a device, {1} the one by which its process knows it.
OF_GPU: tuple[tuple[str, Quantity, tuple[tuple[str, str], ...]], ...] = (
    ("busy", "share", (("gpu{0}.busy", "busy"), ("gpu{0}.sm", "SMs active"), ("gpu{0}.tensor", "tensor cores active"))),
    ("memory", "bytes", (("gpu{0}.memory", "taken"), *OF_ALLOCATOR)),
)
_DEVICE = re.compile(r"gpu(\d+)\.")


class Charts(msgspec.Struct, frozen=True, kw_only=True):
    """All charts, as report.js reads them. `workers` are the cores that each loader worker used.

    A flame is the call tree of one thread; its nodes are [function, place, whose code, samples, children].
    """

    ledgers: tuple[Drawn, ...] = ()
    flames: tuple[Drawn, ...] = ()
    steps: Drawn | None = None
    over_time: tuple[Drawn, ...] = ()
    workers: tuple[Drawn, ...] = ()
    gpu: tuple[Drawn, ...] = ()
    latency: Drawn | None = None


def charts_of(snapshot: Snapshot) -> Charts:
    """The charts of a Snapshot."""
    series = snapshot.series
    workers = sorted(name for name in series if name.startswith("worker") and name.endswith(".cpu"))
    return Charts(
        ledgers=tuple(_account(ledger, snapshot.kind) for ledger in snapshot.ledgers),
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


def _account(ledger: Ledger, kind: Kind) -> Drawn:
    """The ledger of one working process: its lanes, each with its name and its entries, heaviest first."""
    names: dict[Lane, str] = {"main": "The thread that does the work", "producers": of_producers(kind)}
    lanes = [(name, [_share(entry) for entry in ledger.account(lane)]) for lane, name in names.items()]
    return {
        "name": f"pid {ledger.pid} · {ledger.thread}",
        "unit": ledger.unit,
        "lanes": [(name, shares) for name, shares in lanes if shares],
    }


def _share(entry: Entry) -> Drawn:
    """An entry: `share` (0..1) of its lane, from `low` to `high`; `seconds` per unit, None if unknown."""
    at = entry.where
    return {
        "phase": entry.phase,
        "hue": HUES.get(entry.phase, OUTSIDE),
        "activity": ACTIVITIES[entry.activity],
        "place": f"{_base(at.file)}:{at.line} {at.function}" if at is not None else "",
        "source": (at.text or "").strip() if at is not None else "",
        "share": entry.share,
        "low": entry.low,
        "high": entry.high,
        "basis": entry.basis,
        "seconds": entry.seconds,
    }


def _flames(snapshot: Snapshot) -> Iterator[Drawn]:
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
            beside = "" if isinstance(thread, ProcessStacks) else " (beside)"
            yield {"name": f"{name}{beside}", "root": _node(thread.tree)}


def _node(node: CallNode) -> list[Any]:
    place = f"{_base(node.file)}:{node.line}" if node.file else ""
    whose = origin_of(node.file, node.user) if node.file else ""
    return [node.function, place, whose, node.samples, [_node(child) for child in node.children]]


def _steps(records: Sequence[StepRecord]) -> Drawn | None:
    """Steps over time, stacked by phase. A column has its first and last step, and mean milliseconds by phase.

    Where there are too many steps, consecutive ones share a column. None without steps.
    """
    if not records:
        return None
    each = math.ceil(len(records) / MOST_COLUMNS)
    groups = [records[first : first + each] for first in range(0, len(records), each)]
    means = [_mean_phases(group) for group in groups]
    seen = [number for number in range(len(MEASURED) + 1) if any(mean[number] > 0 for mean in means)]
    names = [*((phase.key, phase.hue) for phase in MEASURED), ("host", OUTSIDE)]
    return {
        "phases": [names[number] for number in seen],
        "columns": [
            (group[0].index, group[-1].index, tuple(mean[number] * 1e3 for number in seen))
            for group, mean in zip(groups, means, strict=True)
        ],
        "estimated": any(record.estimated for record in records),
    }


def _mean_phases(records: Sequence[StepRecord]) -> list[float]:
    """Mean seconds of each measured phase, and of the rest."""
    sums = [phase.total(records) or 0.0 for phase in MEASURED]
    rest = sum(max(0.0, record.outside - sum(phase.seconds(record) for phase in APART)) for record in records)
    return [total / len(records) for total in (*sums, rest)]


def _charts(snapshot: Snapshot, wanted: Iterable[tuple[str, Quantity, tuple[tuple[str, str], ...]]]) -> Iterator[Drawn]:
    """The wanted charts of which something was measured."""
    for title, quantity, members in wanted:
        lines = [_line(name, snapshot.series[key], snapshot.time) for key, name in members if key in snapshot.series]
        if any(value is not None for line in lines for _, value in line["points"]):
            yield {"title": title, "quantity": quantity, "lines": lines}


def _gpu_charts(snapshot: Snapshot) -> Iterator[Drawn]:
    own = {allocator.gpu: allocator.device for allocator in snapshot.allocators if allocator.gpu is not None}
    devices = {int(match[1]) for name in snapshot.series if (match := _DEVICE.match(name))} | own.keys()
    for device in sorted(devices):
        yield from _charts(
            snapshot,
            (
                (
                    f"GPU {device}: {what}",
                    quantity,
                    tuple((key.format(device, own.get(device)), name) for key, name in members),
                )
                for what, quantity, members in OF_GPU
            ),
        )
    for allocator in snapshot.allocators:
        if allocator.gpu is None:
            members = tuple((key.format(None, allocator.device), name) for key, name in OF_ALLOCATOR)
            yield from _charts(snapshot, ((f"cuda:{allocator.device}: memory", "bytes", members),))


def _line(name: str, series: Series, now: float) -> Drawn:
    """A series as (time, value), thinned to what a chart can show; a value is None where nothing was measured."""
    points = list(zip(series.times, series.values, strict=True))
    points = points[:: math.ceil(len(points) / MOST_POINTS) or 1]
    return {"name": name, "points": [(time - now, value) for time, value in points]}


def _latency(serving: Serving) -> Drawn | None:
    """The histogram of request latencies in the window: `counts[i]` requests took between `bounds[i]` and
    `bounds[i + 1]` seconds. None where no single requests were seen.
    """
    seconds = [max(request.seconds, 1e-6) for request in serving.requests]
    if not seconds or serving.latency is None:
        return None
    numbers = [math.floor(math.log10(value) * BUCKETS_PER_DECADE) for value in seconds]
    first, last = min(numbers), max(numbers)
    counts = [0] * (last - first + 1)
    for number in numbers:
        counts[number - first] += 1
    marks = serving.latency
    return {
        "bounds": [10 ** ((first + place) / BUCKETS_PER_DECADE) for place in range(len(counts) + 1)],
        "counts": counts,
        "marks": [("p50", marks.p50), ("p95", marks.p95), ("p99", marks.p99)],
    }


def _base(file: str) -> str:
    return file.rsplit("/", 1)[-1]
