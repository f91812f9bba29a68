"""memory-leak and oom-risk: memory that grows, and memory that is nearly gone."""

from __future__ import annotations

import re

from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.trend import Trend, trend
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent, rate, size
from aitop.model.verdict import Abstention, Fix, Severity, Verdict, Where

WATCH_SECONDS = 60.0
MIN_SECONDS = 3.5
# Warming up looks like a leak for a while: without a line that keeps the graph of every step, growth has to last;
# longer yet where no line is known that makes something longer.
SITE_SECONDS = 10.0
UNEXPLAINED_SECONDS = 20.0
LASTING_SECONDS = 45.0
MIN_GROWTH = 8 * 2**20
MIN_SLOPE = 0.5 * 2**20
SOON_SECONDS = 1800.0
FULL = 0.92
# An allocator that had to retry counts as a device that is as full as this, whatever it holds now.
RETRIED = 0.95

# A number a step makes no growth that is seen here.
_NUMBERS = re.compile(r"\.\w+\((?:.*\.item\(\)|(?:float|int|len)\(.*\))\)$|\+= *(?:.*\.item\(\)|len\(.*\))$")


def leak(snapshot: Snapshot) -> Judgement:
    """Memory of the training process, or allocated on a device, that rises steadily."""
    found = [
        (name, line)
        for name, line in (
            (name, trend(snapshot.series.get(name), snapshot.time - WATCH_SECONDS)) for name in _watched(snapshot)
        )
        if line is not None
    ]
    if not found:
        return Abstention(id="memory-leak", reason="memory was read fewer than four times")
    sites = tuple(site for site in snapshot.growth_sites if site.keeps_graph or not _NUMBERS.search(site.text))
    keeps_graph = bool(sites) and sites[0].keeps_graph
    patience = MIN_SECONDS if keeps_graph else SITE_SECONDS if sites else UNEXPLAINED_SECONDS
    rising = [(name, line) for name, line in found if line.seconds >= patience and _steady(line)]
    if not rising:
        return None
    name, line = max(rising, key=lambda pair: pair[1].slope)
    left = _left(snapshot, name)
    full_in = left / line.slope if left is not None else None
    where = tuple(
        Where(pid=snapshot.target.pid, file=site.file, line=site.line, function=site.function, text=site.text)
        for site in sites[:3]
    )
    soon = full_in is not None and full_in < SOON_SECONDS and line.points >= 6
    # A data set that is read into memory, too, grows in a straight line: without a line of code it is no certainty.
    severity: Severity = "critical" if soon and (where or line.seconds >= LASTING_SECONDS) else "warning"
    what = "host memory" if name == "rss" else "allocated GPU memory"
    return Finding(
        Verdict(
            id="memory-leak",
            severity=severity,
            confidence=round(min(0.95, 0.45 + 0.2 * bool(where) + 0.1 * keeps_graph + min(0.2, line.seconds / 150)), 2),
            title=f"{what} grows by {rate(line.slope)}"
            + (f": full in {duration(full_in)}" if full_in is not None else ""),
            where=where,
            evidence=_evidence(what, line, left, full_in),
            fixes=_fixes(where, keeps_graph),
        ),
        level=line.slope / MIN_SLOPE,
    )


def _watched(snapshot: Snapshot) -> list[str]:
    return [name for name in snapshot.series if name == "rss" or name.endswith(".allocated")]


def _steady(line: Trend) -> bool:
    return (
        line.slope >= MIN_SLOPE
        and line.growth >= MIN_GROWTH
        and line.fit >= 0.85
        and line.rising >= 0.7
        and line.late_slope >= 0.5 * line.slope
    )


def _left(snapshot: Snapshot, name: str) -> float | None:
    if name == "rss":
        host = snapshot.host
        if host is None:
            return None
        lefts = [host.machine.memory_available]
        if host.cgroup is not None and host.cgroup.memory_limit is not None and host.cgroup.memory_used is not None:
            lefts.append(host.cgroup.memory_limit - host.cgroup.memory_used)
        known = [left for left in lefts if left is not None]
        return float(min(known)) if known else None
    index = int(name[len("alloc") : name.index(".")])
    for allocator in snapshot.allocators:
        if allocator.device == index and allocator.capacity is not None:
            return float(allocator.capacity - allocator.allocated)
    return None


def _evidence(what: str, line: Trend, left: float | None, full_in: float | None) -> tuple[str, ...]:
    found = [
        f"{what} rose by {size(line.growth)} in {duration(line.seconds)}, a straight line (fit {percent(line.fit)})"
    ]
    if left is not None and full_in is not None:
        found.append(f"{size(left)} left: full in {duration(full_in)} at this rate")
    return tuple(found)


def _fixes(where: tuple[Where, ...], keeps_graph: bool) -> tuple[Fix, ...]:
    if not where:
        return (Fix(text="look for a list, dict or cache that is added to at every step and never cleared"),)
    first = where[0]
    place = f"{first.file.rsplit('/', 1)[-1]}:{first.line}"
    if keeps_graph:
        return (Fix(text=f"{place} keeps the whole graph of every step alive: store loss.item() or loss.detach()"),)
    return (Fix(text=f"{place} grows at every step: keep a bounded window, or write it out and clear it"),)


def oom_risk(snapshot: Snapshot) -> Judgement:
    """A device that the run uses is nearly full, or its allocator already had to retry."""
    used = [device for device in snapshot.gpu.devices if device.mine] if snapshot.gpu else []
    fullest = max(used, key=_fullness, default=None)
    retries = sum(allocator.retries or 0 for allocator in snapshot.allocators)
    ooms = sum(allocator.ooms or 0 for allocator in snapshot.allocators)
    peak = max(
        (one.peak_allocated / one.capacity for one in snapshot.allocators if one.peak_allocated and one.capacity),
        default=None,
    )
    failed = bool(retries or ooms)
    held = peak if peak is not None else _fullness(fullest) if fullest is not None else 0.0
    level = max(held, RETRIED if failed else 0.0)
    if level <= 0:
        return None
    severity: Severity = "critical" if ooms or (retries and (peak or 0.0) > 0.95) else "warning"
    told = f"is {percent(min(1.0, held))} full" if held >= FULL or not failed else "has run out before"
    evidence = []
    if fullest is not None:
        evidence.append(f"GPU {fullest.index}: {size(fullest.memory_used)} of {size(fullest.memory_total)} in use")
    if peak is not None:
        evidence.append(f"peak of tensors {percent(peak)} of the device")
    if failed:
        evidence.append(f"since the start the allocator ran out {_times(ooms)} and retried {_times(retries)}")
    return Finding(
        Verdict(
            id="oom-risk",
            severity=severity,
            confidence=0.8 if peak is not None else 0.6,
            title=f"GPU memory {told}: a longer batch may not fit",
            evidence=tuple(evidence),
            fixes=(
                Fix(text="smaller batch with gradient accumulation, or activation checkpointing"),
                Fix(text="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if reserved is far above allocated"),
            ),
        ),
        level=level,
    )


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _fullness(device: GpuDevice) -> float:
    if not device.memory_total or device.memory_used is None:
        return 0.0
    return device.memory_used / device.memory_total


RULES = (
    Rule("memory-leak", leak, Band(enter=1.0, leave=0.5)),
    Rule("oom-risk", oom_risk, Band(enter=FULL, leave=0.88)),
)
