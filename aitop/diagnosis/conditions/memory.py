"""memory-leak: memory of the ranks, of their loader workers or on a device keeps growing."""

from __future__ import annotations

from aitop.diagnosis.device import own_devices
from aitop.diagnosis.evidence import judged_pid, records, short_place, too_little_seen, where_of
from aitop.diagnosis.rule import Explanation, condition
from aitop.diagnosis.series import Trend, rise, trend
from aitop.diagnosis.what_if import fix
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent, rate, size
from aitop.model.verdict import Fix, Severity, Where

# A rise is looked for over the last WATCH_SECONDS and, if there is one, over LONG_SECONDS.
WATCH_SECONDS, LONG_SECONDS = 60.0, 300.0
# Growth has to last this long, since warm-up looks like a leak for a while; not longer, since `diagnose` does not watch
# for longer by default. Lists that grow in the source code only name the line; they decide nothing.
PATIENCE_SECONDS = 12.0
# Reading a data set looks like a leak as well: if no step was seen, only a rise of this many seconds counts.
BLIND_SECONDS = 55.0
BLIND = "where no step was seen, a leak and the loading of a data set look the same"
# Why the line comes from the source: adding to a list takes a microsecond. Of a real leak, 0 of 828 stack samples
# showed the line.
READ = "the line is read in the source, which adds to something there: that it runs is not measured"
# What is compiled stays in memory: a run that spends this share of its time compiling grows by that.
COMPILES = 0.05
COMPILING = "the run compiles all the time, and what is compiled stays in memory"
# The least growth of one process that counts, in bytes and in bytes per second: every process grows a little.
MIN_GROWTH = 8 * 2**20
MIN_SLOPE = 0.5 * 2**20
# The least part of a rise that has to be newly mapped memory. The rest is the first use of memory mapped before (an
# array that is being filled, a file that is being read), which ends by itself.
NEWLY_MAPPED = 0.5
SOON_SECONDS = 1800.0
# A trend is extrapolated to at most this many times the time for which it was watched. A replay buffer or a cache that
# fills up to a limit of its own rises as a leak does, and nothing tells that limit.
FORECAST = 60.0
TOO_BRIEF = "watched too briefly to tell a leak from a buffer or cache that fills up to a limit"
MAY_END = 0.5
"""The confidence in a leak while TOO_BRIEF holds."""


@condition("memory-leak", 1.0, 0.5)
def leak(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on memory of a rank, of its workers, or allocated on a device that rises steadily during steps."""
    stepping = bool(records(snapshot)) or (snapshot.stacks is not None and snapshot.kind != "unknown")
    starting, blind = too_little_seen(snapshot), not stepping
    trends = _trends(snapshot)
    if (starting and not blind) or not trends:
        return starting or "memory was read fewer than four times"
    patience = BLIND_SECONDS if blind else PATIENCE_SECONDS
    rising = [(name, line) for name, line in trends if line.seconds >= patience and _grows(snapshot, name, line)]
    if not rising:
        return BLIND if blind else None
    name, line = max(rising, key=lambda pair: pair[1].slope)
    sites = snapshot.growth_sites if name != "workers_rss" else ()
    keeps_graph = bool(sites) and sites[0].keeps_graph
    left = left_of(snapshot, name)
    full_in = left / line.slope if left is not None else None
    where = tuple(where_of(judged_pid(snapshot), site) for site in sites[:3])
    soon = full_in is not None and full_in < min(SOON_SECONDS, FORECAST * line.seconds)
    severity: Severity = "critical" if soon else "warning"
    sure = min(0.95, 0.55 + min(0.4, line.seconds / 150))
    doubts = [BLIND] if blind else []
    if _compiling(snapshot) >= COMPILES:
        doubts.append(COMPILING)
    if doubts:
        severity, sure = "info", 0.3
    elif full_in is not None and full_in >= FORECAST * line.seconds:
        doubts.append(TOO_BRIEF)
        sure = MAY_END
    what = what_grows(name)
    return Explanation(
        severity=severity,
        confidence=round(sure, 2),
        title=f"{what} grows by {rate(line.slope)}" + (f": full in {duration(full_in)}" if full_in is not None else ""),
        where=where,
        evidence=(*_evidence(what, line, left, full_in), *((READ,) if where else ()), *doubts),
        fixes=_fixes(where, keeps_graph, name),
        full_in=full_in,
        level=line.slope / MIN_SLOPE,
    )


def _compiling(snapshot: Snapshot) -> float:
    """The share of the time in which the first working process compiles, whether another verdict claims that or not."""
    lines = snapshot.stacks.lines if snapshot.stacks is not None else ()
    return sum(line.share * line.part("compile") for line in lines if line.pid in snapshot.working[:1])


def rises(snapshot: Snapshot) -> bool:
    """Whether any series of memory rises as in a leak, however briefly so far."""
    return any(_grows(snapshot, name, line) for name, line in _trends(snapshot))


def _trends(snapshot: Snapshot) -> list[tuple[str, Trend]]:
    """The trend of each series of memory since the steps began, by name.

    It is over LONG_SECONDS if memory rises steadily for so long, else over WATCH_SECONDS.
    """
    began, trends = _stepping_since(snapshot), []
    for name in watched(snapshot):
        series, processes = snapshot.series.get(name), _processes(snapshot, name)
        line = trend(series, max(snapshot.time - WATCH_SECONDS, began))
        if line is not None and steady(line, processes):
            longer = trend(series, max(snapshot.time - LONG_SECONDS, began))
            line = longer if longer is not None and steady(longer, processes) else line
        if line is not None:
            trends.append((name, line))
    return trends


def _grows(snapshot: Snapshot, name: str, line: Trend) -> bool:
    """Whether memory rises steadily and, as far as that is known, by newly mapped memory."""
    space = {"rss": "mapped", "workers_rss": "workers_mapped"}.get(name)
    mapped = rise(snapshot, space, line.seconds) if space is not None else None
    newly = mapped is None or mapped >= NEWLY_MAPPED * line.growth
    return newly and steady(line, _processes(snapshot, name))


def _stepping_since(snapshot: Snapshot) -> float:
    """When the steps began (monotonic), since what was read into memory before is no leak; 0 where it is not known."""
    steps = records(snapshot)
    if snapshot.steps is None:
        return 0.0
    if not steps:
        return snapshot.steps.began or 0.0
    first = steps[0].end - steps[0].seconds
    return first - max(0, (snapshot.steps.count or 0) - len(steps)) * (snapshot.steps.mean or 0.0)


def watched(snapshot: Snapshot) -> list[str]:
    """The names of the memory series that should not rise while a run makes steps."""
    held = [name for name in snapshot.series if name.startswith("alloc") and name.endswith(".allocated")]
    of_driver = [] if held else [f"gpu{device.index}.memory" for device in own_devices(snapshot)]
    return [name for name in ("rss", "workers_rss", *held, *of_driver) if name in snapshot.series]


def _processes(snapshot: Snapshot, name: str) -> int:
    """How many processes a series of memory is the sum of."""
    roles = {"rss": "rank", "workers_rss": "loader-worker"}
    return max(1, sum(process.role == roles.get(name) for process in snapshot.processes))


def what_grows(name: str) -> str:
    """Words for the memory of a series, by its name."""
    if name in ("rss", "workers_rss"):
        return "host memory" if name == "rss" else "memory of the loader workers"
    return "allocated GPU memory" if name.startswith("alloc") else "GPU memory"


def steady(line: Trend, processes: int = 1) -> bool:
    """Whether the memory of this many processes rises in a straight line that has not begun to level off."""
    return (
        line.slope >= MIN_SLOPE * processes
        and line.growth >= MIN_GROWTH * processes
        and line.fit >= 0.85
        and line.rising >= 0.7
        and min(line.late_slope, line.least) >= 0.5 * line.slope
    )


def left_of(snapshot: Snapshot, name: str) -> float | None:
    """Bytes that the memory of a series can still grow by; None where that is not known."""
    if name in ("rss", "workers_rss"):
        room = snapshot.host.memory_room if snapshot.host else None
        return float(room[0]) if room else None
    held = [one for one in snapshot.allocators if name in (f"alloc{one.device}.allocated", f"gpu{one.gpu}.memory")]
    lefts = [float(one.capacity - one.allocated) for one in held if one.capacity is not None]
    cached = sum(one.reserved - one.allocated for one in held)
    lefts += [
        float(device.memory_total - device.memory_used + cached)
        for device in own_devices(snapshot)
        if (name == f"gpu{device.index}.memory" or device.index in {one.gpu for one in held})
        # Of a card in slices, the driver's figure is of all of them.
        and not device.mig
        and device.memory_total
        and device.memory_used is not None
    ]
    return max(0.0, min(lefts)) if lefts else None


def _evidence(what: str, line: Trend, left: float | None, full_in: float | None) -> tuple[str, ...]:
    evidence = [
        f"{what} rose by {size(line.growth)} in {duration(line.seconds)}, a straight line (fit {percent(line.fit)})"
    ]
    if left is not None and full_in is not None:
        evidence.append(f"{size(left)} left: full in {duration(full_in)} at this rate")
    return tuple(evidence)


def _fixes(where: tuple[Where, ...], keeps_graph: bool, name: str) -> tuple[Fix, ...]:
    if name == "workers_rss":
        return (
            fix("bound what the data set caches (each worker fills a cache of its own), or cache on disk"),
            fix("keep samples in numpy arrays: Python objects shared with the parent are copied as they are read"),
        )
    if not where:
        return (fix("look for a list, dict or cache that is added to at every step and never cleared"),)
    place = short_place(where[0])
    if keeps_graph:
        return (fix(f"{place} keeps the whole graph of every step alive: store loss.item() or loss.detach()"),)
    return (fix(f"{place} grows at every step: keep a bounded window, or write it out and clear it"),)
