"""host-memory-pressure: the memory of the machine or of the control group is nearly gone. Names what has taken it."""

from __future__ import annotations

import msgspec

from aitop.diagnosis.conditions.memory import steady
from aitop.diagnosis.evidence import loader_size
from aitop.diagnosis.rule import Explanation, condition
from aitop.diagnosis.series import Trend, mean_of, trend
from aitop.diagnosis.what_if import fix
from aitop.model.host import HostSample, ProcessSample
from aitop.model.snapshot import Series, Snapshot
from aitop.model.units import duration, percent, plural, rate, size
from aitop.model.verdict import Fix, Setting, Severity

FULL = 0.93
NEARLY_GONE = 0.97
# From these on the lack of memory slows the run: the share of time spent waiting for it, bytes per second from swap.
STALLED = 0.1
SWAPPING = 4 * 2**20
SOON_SECONDS = 900.0
WATCH_SECONDS = 60.0
# Forked workers share their parent's pages until they read an object, which copies its page. Workers that see at least
# this part of the memory of a rank are likely to have its data set.
INHERITED = 0.5


class Pressure(msgspec.Struct, frozen=True):
    """How scarce memory is: bytes that are `left` of `total`, of the control group if `grouped`, else of the machine.

    `stalled` is the share of time in which threads waited for memory, `swap_in` bytes per second read from swap; None
    where they are not measured.
    """

    left: int
    total: int
    grouped: bool
    stalled: float | None
    swap_in: float | None

    @property
    def used(self) -> float:
        """How full it is, 0..1."""
        return 1.0 - self.left / self.total

    @property
    def felt(self) -> bool:
        """Whether threads wait for memory already."""
        return (self.stalled or 0.0) >= STALLED or (self.swap_in or 0.0) >= SWAPPING

    @property
    def level(self) -> float:
        """`used`, but at least NEARLY_GONE if threads wait for memory already."""
        return max(self.used, NEARLY_GONE if self.felt else 0.0)


@condition("host-memory-pressure", FULL, 0.9)
def pressure(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict if hardly any host memory is left for the run, or if it waits for memory already."""
    host = snapshot.host
    memory = _pressure(snapshot, host) if host is not None else None
    if host is None or memory is None:
        return "how much memory is left is not known"
    filling = _filling(snapshot)
    full_in = memory.left / filling.slope if filling is not None else None
    share = memory.stalled if memory.stalled is not None and memory.stalled >= STALLED else None
    signs = sum((memory.used >= NEARLY_GONE, memory.felt, full_in is not None and full_in < SOON_SECONDS))
    severity: Severity = "critical" if signs >= 2 else "warning"
    whose = "the control group's memory" if memory.grouped else "the machine's memory"
    title = f"{percent(memory.used)} of {whose} is taken: {size(memory.left)} left"
    return Explanation(
        severity=severity,
        share=share,
        base="time",
        confidence=0.85 if signs >= 2 else 0.65,
        title=title + (f", full in {duration(full_in)}" if full_in is not None else ""),
        evidence=(*_signs(memory, filling), *_who(host, memory)),
        fixes=_fixes(snapshot, host, memory),
        full_in=full_in,
        level=memory.level,
    )


def _pressure(snapshot: Snapshot, host: HostSample) -> Pressure | None:
    room = host.memory_room
    if room is None:
        return None
    group, machine = host.cgroup, host.machine
    of_group = group.memory_stalled if group is not None else None
    return Pressure(
        left=room[0],
        total=room[1],
        grouped=group is not None and group.memory_limit == room[1] != machine.memory_total,
        stalled=of_group if of_group is not None else machine.memory_stalled,
        swap_in=mean_of(snapshot, "swap_in", 10.0),
    )


def _filling(snapshot: Snapshot) -> Trend | None:
    """The trend of memory in use (`slope` in bytes per second); None where it does not rise steadily."""
    left = snapshot.series.get("memory_left")
    if left is None:
        return None
    taken = Series(times=left.times, values=tuple(None if value is None else -value for value in left.values))
    line = trend(taken, snapshot.time - WATCH_SECONDS)
    return line if line is not None and steady(line) else None


def _signs(memory: Pressure, filling: Trend | None) -> tuple[str, ...]:
    words = [f"{size(memory.total - memory.left)} of {size(memory.total)} in use, caches of files not counted"]
    if memory.stalled is not None and memory.stalled >= 0.01:
        words.append(f"some thread waited for memory in {percent(memory.stalled)} of the last 10 s")
    if memory.swap_in is not None and memory.swap_in >= SWAPPING / 4:
        words.append(f"{rate(memory.swap_in)} are read back from swap")
    if filling is not None:
        words.append(f"what is left shrinks by {rate(filling.slope)}")
    return tuple(words)


def _who(host: HostSample, memory: Pressure) -> tuple[str, ...]:
    """Evidence of what the run's processes hold, and whether most of the memory is somebody else's."""
    ranks, workers = _of(host, "rank"), _of(host, "loader-worker")
    words = []
    if ranks:
        words.append(f"{plural(len(ranks), 'rank')}: {size(_resident(ranks))}")
    if workers:
        each = _resident(workers) / len(workers)
        words.append(f"{plural(len(workers), 'loader worker')}: {size(each)} each, with what they share with the rank")
    taken = memory.total - memory.left
    everything = _resident(host.processes)
    if everything and everything < 0.5 * taken:
        words.append(
            f"all processes of the run hold {size(everything)} of the {size(taken)}: the rest is somebody else's"
        )
    return tuple(words)


def _fixes(snapshot: Snapshot, host: HostSample, memory: Pressure) -> tuple[Fix, ...]:
    ranks, workers = _of(host, "rank"), _of(host, "loader-worker")
    fixes = []
    if workers and _inherited(ranks, workers):
        loaders = snapshot.facts.loaders if snapshot.facts is not None else ()
        name = next((f" ({loader.dataset})" for loader in loaders if loader.dataset), "")
        fixes.append(
            Fix(
                text=f"if the data set{name} keeps Python lists or dicts, numpy arrays or a memory map instead: "
                "reading an object counts its references, which copies its page into every worker"
            )
        )
    # Those of one loader: each rank has its own.
    count = loader_size(snapshot)
    if workers and count > 1:
        setting = Setting(name="num_workers", to=count // 2, current=count)
        text = f"num_workers {count} → {count // 2}, or a smaller prefetch_factor, costs less memory"
        fixes.append(fix(text, setting=setting))
    if not workers and ranks and snapshot.kind == "inference":
        fixes.append(fix("map the weights instead of reading them (safetensors, torch.load(mmap=True))"))
    elif not workers and ranks:
        fixes.append(fix("read the data set piece by piece (memory map, Arrow, IterableDataset), not as a whole"))
    if _resident(host.processes) < 0.5 * (memory.total - memory.left):
        fixes.append(fix("see who else holds memory: ps aux --sort=-rss | head"))
    if memory.grouped:
        fixes.append(fix("or raise the memory limit of the container or job"))
    return tuple(fixes)


def _inherited(ranks: tuple[ProcessSample, ...], workers: tuple[ProcessSample, ...]) -> bool:
    """Whether the workers see so much of the rank's memory that its data set is likely to be part of that."""
    parent = _resident(ranks) / len(ranks) if ranks else 0.0
    return parent > 0 and _resident(workers) / len(workers) >= INHERITED * parent


def _of(host: HostSample, role: str) -> tuple[ProcessSample, ...]:
    return tuple(process for process in host.processes if process.role == role and process.rss is not None)


def _resident(processes: tuple[ProcessSample, ...]) -> float:
    return float(sum(process.rss or 0 for process in processes))
