"""Keeps sums over the last three days in bounded memory: of single seconds at first, of longer stretches later.

Of each length (1, 2, 4, … seconds) there are at most KEEP stretches. When one more comes, the two oldest of that length
become one of double the length. So the length of a stretch grows with its age, up to 3 % of it, and three days take
at most some 770 stretches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import NamedTuple, TypeVar

from aitop.engine.totals import FIELDS, LOADS, Sums, joined, summed
from aitop.model.event import Sample
from aitop.model.gpu import GpuSample
from aitop.model.host import HostSample
from aitop.model.past import Past, PastLine, PastUnit, Stretch
from aitop.model.serving import RequestRecord, ServerSample
from aitop.model.steps import HookSample, StepRecord
from aitop.stacks.view import StackView

KEEP, MOST_LEVELS = 64, 12
# Seconds by which a sample may come late: rings are read at least once a second, and py-spy's windows last two.
LATE_SECONDS = 3
MOST_LINES = 12
# Enough units of one second to tell its phases; more only cost CPU.
MOST_UNITS = 50

Record = TypeVar("Record", StepRecord, RequestRecord)
# Summed for the rule of regressions, though it is no part that adds up to the unit.
BESIDE = {"gc": ("gc",)}
PAST_FIELDS = {"step": {**FIELDS["step"], **BESIDE}, "request": FIELDS["request"]}


class PastOf(NamedTuple):
    """What the past is of: units of one kind that the processes `pids` make.

    `trains`: the steps are those of training. `metrics`: the requests are taken from the server's `/metrics`.
    """

    pids: tuple[int, ...] = ()
    unit: PastUnit = "step"
    trains: bool = False
    metrics: bool = False

    @property
    def order(self) -> int:
        """The larger one tells more of a job: training, then requests that the hook measures, then all else."""
        return 2 if self.trains else int(self.unit == "request" and not self.metrics)


@dataclass
class PastHistory:
    """The past of some processes and of the machine. `add` takes events in order.

    `newest` is when the last unit came, at first when `begin` was called. `recompiles` is the last value of
    torch.compile's counter, `counted` that at the last step. `look` is the last sample of the server's `/metrics`.
    """

    of: PastOf = field(default_factory=PastOf)
    newest: float = 0.0
    recompiles: int | None = None
    counted: int | None = None
    look: ServerSample | None = None
    levels: list[deque[Stretch]] = field(default_factory=list)
    open: dict[int, Stretch] = field(default_factory=dict)
    # The cached result of `past()`: the levels change once a second, but are asked for at every tick.
    made: Past | None = field(default=None, compare=False)

    def begin(self, of: PastOf, now: float) -> None:
        """Forget everything and start over with this."""
        self.of, self.newest = of, now
        self.recompiles = self.counted = self.look = self.made = None
        self.levels, self.open = [], {}

    def add(self, event: Sample, stacks: StackView) -> None:
        """Take one sample; `stacks` reads windows."""
        if not self.of.pids:
            return
        if isinstance(event, HookSample):
            if event.pid in self.of.pids and not self.of.metrics:
                self._add_units(event)
        elif isinstance(event, HostSample):
            self._put(event.time, _of_host(event, self.of.pids[0]))
        elif isinstance(event, GpuSample):
            clocks = [device.sm_clock for device in event.devices if device.mine and device.sm_clock]
            if clocks:
                self._put(event.time, {"clock": (sum(clocks), len(clocks))})
        elif isinstance(event, ServerSample):
            self._add_metrics(event)
        else:
            lines = stacks.lines_in(event, self.of.pids[0])
            self._put(event.time, lines=dict(lines), samples=lines.total())

    def _add_units(self, sample: HookSample) -> None:
        steps = [step for step in sample.steps if (step.kind == "train") == self.of.trains]
        if sample.requests if self.of.unit == "request" else steps:
            self.newest = sample.time
        if self.of.unit == "request":
            for second, requests in _by_second(sample.requests):
                self._put(second, _of_units(requests, self.of.unit))
            return
        for second, of_second in _by_second(steps):
            self._put(second, _of_units(of_second, self.of.unit), first=of_second[0].index)
        if sample.facts is not None and sample.facts.recompiles is not None:
            self.recompiles = sample.facts.recompiles
        if not steps:
            return
        if self.recompiles is not None and self.counted is not None:
            self._put(steps[-1].end, {"recompiles": (max(0, self.recompiles - self.counted), len(steps))})
        self.counted = self.recompiles

    def _add_metrics(self, sample: ServerSample) -> None:
        """Take the requests that ended between two looks at a server's `/metrics`."""
        if not self.of.metrics or sample.pid not in self.of.pids:
            return
        before, self.look = self.look, sample
        if before is None:
            return
        spent = {
            name: (after.sum - was.sum, after.count - was.count)
            for name, after in sample.histograms.items()
            if (was := before.histograms.get(name)) is not None and after.count > was.count
        }
        if "latency" not in spent:
            return
        self.newest = sample.time
        requests = spent["latency"][1]
        sums: Sums = {"seconds": spent["latency"]}
        for part, names in {"queue": ("queue",), "forward": ("prefill", "decode")}.items():
            sums[part] = sum(spent.get(name, (0.0, 0.0))[0] for name in names), requests
        known = ("tokens", "prompt_tokens")
        if all(name in sample.counters and name in before.counters for name in known):
            sums["tokens"] = sum(sample.counters[name] - before.counters[name] for name in known), requests
        self._put(sample.time, sums)

    def _put(
        self,
        time: float,
        sums: Sums | None = None,
        *,
        lines: dict[PastLine, int] | None = None,
        samples: int = 0,
        first: int | None = None,
    ) -> None:
        """Add to the second in which `time` lies, or to the oldest one that is still open."""
        second = int(time)
        if self.levels and self.levels[0]:
            second = max(second, int(self.levels[0][-1].end))
        new = Stretch(
            start=float(second), end=second + 1.0, sums=sums or {}, lines=lines or {}, samples=samples, first=first
        )
        self.open[second] = merged((self.open[second], new)) if second in self.open else new

    def close(self, now: float) -> None:
        """Turn the seconds for which no more samples can come into stretches."""
        for second in sorted(second for second in self.open if second + 1 + LATE_SECONDS <= now):
            self._append(self.open.pop(second))
            self.made = None

    def past(self) -> Past | None:
        """All stretches, the oldest first; None before there are any."""
        if self.made is None and self.levels:
            stretches = tuple(stretch for level in reversed(self.levels) for stretch in level)
            self.made = Past(unit=self.of.unit, stretches=stretches)
        return self.made

    def _append(self, stretch: Stretch, level: int = 0) -> None:
        """Add a stretch to those of its length. What is too old for the longest ones is forgotten."""
        if level == MOST_LEVELS:
            return
        if level == len(self.levels):
            self.levels.append(deque())
        stretches = self.levels[level]
        stretches.append(stretch)
        if len(stretches) > KEEP:
            self._append(merged((stretches.popleft(), stretches.popleft())), level + 1)


def merged(stretches: Sequence[Stretch]) -> Stretch:
    """Join consecutive stretches into one."""
    lines: Counter[PastLine] = Counter()
    for stretch in stretches:
        lines.update(stretch.lines)
    return Stretch(
        start=stretches[0].start,
        end=stretches[-1].end,
        sums=joined(*(stretch.sums for stretch in stretches)),
        lines=dict(nlargest(MOST_LINES, lines.items(), key=lambda item: item[1])),
        samples=sum(stretch.samples for stretch in stretches),
        first=next((stretch.first for stretch in stretches if stretch.first is not None), None),
    )


def _by_second(units: Iterable[Record]) -> Iterator[tuple[float, list[Record]]]:
    """The units by the second in which they ended."""
    seconds: dict[int, list[Record]] = {}
    for unit in units:
        seconds.setdefault(int(unit.end), []).append(unit)
    return ((float(second), of_second) for second, of_second in seconds.items())


def _of_units(units: Sequence[StepRecord] | Sequence[RequestRecord], unit: PastUnit) -> Sums:
    """The sums of one second's units: the time of all of them, and the parts of an even selection."""
    some = units[:: max(1, len(units) // MOST_UNITS)]
    sums = summed(some, PAST_FIELDS[unit])
    parts = sum(total for name, (total, _) in sums.items() if name not in ("seconds", *LOADS, *BESIDE))
    sums["host"] = max(0.0, sums["seconds"][0] - parts), len(some)
    sums["seconds"] = sum(unit.seconds for unit in units), len(units)
    return sums


def _of_host(host: HostSample, pid: int) -> Sums:
    own = {
        "own": [process.cpu for process in host.processes],
        "waited": [process.waited for process in host.processes],
        "read": [process.read_bytes for process in host.processes],
        "run_delay": [process.run_delay for process in host.processes if process.pid == pid],
        "throttled": [host.cgroup.throttled if host.cgroup else None],
    }
    known = {name: [value for value in values if value is not None] for name, values in own.items()}
    sums: Sums = {name: (sum(values), 1) for name, values in known.items() if values}
    if host.cores_of_others is not None:
        sums["others"] = host.cores_of_others, 1
    return sums
