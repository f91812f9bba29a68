"""Sums over stretches of time since the watching began, in bounded memory: the newest by the second, older ones longer.

Of each length (1, 2, 4, … seconds) there are at most KEEP stretches. When one more comes, the two oldest of that length
become one of double the length. So the length of a stretch grows with its age, to about 4 % of it, and three days take
some 600 stretches.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from typing import TypeVar, Union

from aitop.model.gpu import GpuSample
from aitop.model.host import HostSample
from aitop.model.past import Past, PastLine, PastUnit, Stretch
from aitop.model.phases import MEASURED, SERVED
from aitop.model.serving import RequestRecord, ServerSample
from aitop.model.stacks import StackWindow
from aitop.model.steps import HookSample, StepRecord
from aitop.stacks.view import StackView

KEEP, MOST_LEVELS = 64, 12
# Samples of one second may come so much later: the ring is read once a second, py-spy's windows last two.
LATE_SECONDS = 3
MOST_LINES = 12
# Enough units of one second to tell its phases; more only cost CPU.
MOST_UNITS = 50

PastSample = Union[HookSample, HostSample, GpuSample, StackWindow, ServerSample]  # noqa: UP007 - for isinstance on 3.10
Unit = TypeVar("Unit", StepRecord, RequestRecord)


@dataclass
class Sums:
    """What has come of one second so far."""

    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    lines: Counter[PastLine] = field(default_factory=Counter)
    samples: int = 0
    first: int | None = None

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        total, weights = self.sums.get(name, (0.0, 0.0))
        self.sums[name] = total + value, weights + weight


@dataclass
class PastHistory:
    """Of the processes `pids`, which make units of one kind, and of the machine. `add` takes events in order.

    `newest` is when a unit came last, or the choice was made. `recompiles` is torch.compile's counter at that time,
    `look` what the server's `/metrics` said last, where `metrics` says that its requests are taken from there.
    """

    pids: tuple[int, ...] = ()
    unit: PastUnit = "step"
    trains: bool = False
    metrics: bool = False
    newest: float = 0.0
    recompiles: int | None = None
    look: ServerSample | None = None
    levels: list[deque[Stretch]] = field(default_factory=list)
    open: dict[int, Sums] = field(default_factory=dict)
    # What was made of the levels: they change once a second, and are asked for at every tick.
    made: Past | None = field(default=None, compare=False)

    def begin(
        self, pids: tuple[int, ...], unit: PastUnit, *, now: float, trains: bool = False, metrics: bool = False
    ) -> None:
        """Forget everything: from now on it is about these processes."""
        self.pids, self.unit, self.trains, self.metrics, self.newest = pids, unit, trains, metrics, now
        self.recompiles = self.look = self.made = None
        self.levels, self.open = [], {}

    def add(self, event: PastSample, stacks: StackView) -> None:
        """Take one sample; `stacks` reads windows."""
        if not self.pids:
            return
        if isinstance(event, HookSample):
            if event.pid in self.pids and not self.metrics:
                self._add_units(event)
        elif isinstance(event, HostSample):
            _add_host(self._at(event.time), event, self.pids[0])
        elif isinstance(event, GpuSample):
            clocks = [device.sm_clock for device in event.devices if device.mine and device.sm_clock]
            if clocks:
                self._at(event.time).add("clock", sum(clocks), len(clocks))
        elif isinstance(event, ServerSample):
            self._add_metrics(event)
        else:
            sums, lines = self._at(event.time), stacks.lines_in(event, self.pids[0])
            sums.lines.update(lines)
            sums.samples += lines.total()

    def _add_units(self, sample: HookSample) -> None:
        if sample.requests if self.unit == "request" else sample.steps:
            self.newest = sample.time
        if self.unit == "request":
            for second, requests in _by_second(sample.requests):
                _add_requests(self._at(second), requests)
            return
        steps = [step for step in sample.steps if (step.kind == "train") == self.trains]
        for second, of_second in _by_second(steps):
            _add_steps(self._at(second), of_second)
        made = None if sample.facts is None else sample.facts.recompiles
        if self.recompiles is not None and steps:
            self._at(steps[-1].end).add("recompiles", max(0, (made or 0) - self.recompiles), len(steps))
        self.recompiles = self.recompiles if made is None else made

    def _add_metrics(self, sample: ServerSample) -> None:
        """Take the requests that ended between two looks at a server's `/metrics`."""
        if not self.metrics or sample.pid not in self.pids:
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
        sums, requests = self._at(sample.time), spent["latency"][1]
        sums.add("seconds", *spent["latency"])
        parts = {"queue": ("queue",), "forward": ("prefill", "decode")}
        for part, names in parts.items():
            sums.add(part, sum(spent.get(name, (0.0, 0.0))[0] for name in names), requests)
        known = ("tokens", "prompt_tokens")
        if all(name in sample.counters and name in before.counters for name in known):
            sums.add("tokens", sum(sample.counters[name] - before.counters[name] for name in known), requests)

    def _at(self, time: float) -> Sums:
        """The sums of the second in which `time` lies, or of the oldest one that is still open."""
        second = int(time)
        if self.levels and self.levels[0]:
            second = max(second, int(self.levels[0][-1].end))
        return self.open.setdefault(second, Sums())

    def close(self, now: float) -> None:
        """Make stretches of the seconds of which nothing more will come."""
        for second in sorted(second for second in self.open if second + 1 + LATE_SECONDS <= now):
            sums = self.open.pop(second)
            stretch = Stretch(
                start=float(second),
                end=second + 1.0,
                sums=sums.sums,
                lines=dict(sums.lines),
                samples=sums.samples,
                first=sums.first,
            )
            self._append(stretch)
            self.made = None

    def past(self) -> Past | None:
        """All stretches, the oldest first; None before there are any."""
        if self.made is None and self.levels:
            stretches = tuple(stretch for level in reversed(self.levels) for stretch in level)
            self.made = Past(unit=self.unit, stretches=stretches)
        return self.made

    def lasting(self) -> PastHistory:
        """A copy that further samples do not change."""
        levels = [level.copy() for level in self.levels]
        opened = {
            second: Sums(dict(sums.sums), sums.lines.copy(), sums.samples, sums.first)
            for second, sums in self.open.items()
        }
        return replace(self, levels=levels, open=opened)

    def _append(self, stretch: Stretch, level: int = 0) -> None:
        if level == MOST_LEVELS:
            return
        if level == len(self.levels):
            self.levels.append(deque())
        stretches = self.levels[level]
        stretches.append(stretch)
        if len(stretches) > KEEP:
            self._append(merged((stretches.popleft(), stretches.popleft())), level + 1)


def merged(stretches: Sequence[Stretch]) -> Stretch:
    """One stretch of these, which follow one another."""
    sums: dict[str, tuple[float, float]] = {}
    lines: Counter[PastLine] = Counter()
    for stretch in stretches:
        for name, (total, weight) in stretch.sums.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + total, before[1] + weight
        lines.update(stretch.lines)
    return Stretch(
        start=stretches[0].start,
        end=stretches[-1].end,
        sums=sums,
        lines=dict(nlargest(MOST_LINES, lines.items(), key=lambda item: item[1])),
        samples=sum(stretch.samples for stretch in stretches),
        first=next(_known(stretch.first for stretch in stretches), None),
    )


def _known(numbers: Iterable[int | None]) -> Iterator[int]:
    return (number for number in numbers if number is not None)


def _by_second(units: Iterable[Unit]) -> Iterator[tuple[float, list[Unit]]]:
    """The units by the second in which they ended."""
    seconds: dict[int, list[Unit]] = {}
    for unit in units:
        seconds.setdefault(int(unit.end), []).append(unit)
    return ((float(second), of_second) for second, of_second in seconds.items())


def _add_steps(sums: Sums, steps: Sequence[StepRecord]) -> None:
    sums.add("seconds", sum(step.seconds for step in steps), len(steps))
    sums.first = steps[0].index if sums.first is None else sums.first
    for step in _some(steps):
        parts: dict[str, float] = {phase.key: phase.seconds(step) for phase in MEASURED}
        parts["host"] = max(0.0, step.seconds - sum(parts.values()))
        for name, value in parts.items():
            sums.add(name, value)
        sums.add("gc", step.gc)
        for name, known in (("cpu", step.cpu), ("tokens", step.tokens), ("samples", step.samples)):
            if known is not None:
                sums.add(name, known)


def _add_requests(sums: Sums, requests: Sequence[RequestRecord]) -> None:
    sums.add("seconds", sum(request.seconds for request in requests), len(requests))
    for request in _some(requests):
        parts: dict[str, float] = {
            phase.key: float(getattr(request, phase.request) or 0.0) for phase in SERVED if phase.request is not None
        }
        parts["queue"] = request.queue or 0.0
        parts["host"] = max(0.0, request.seconds - sum(parts.values()))
        for name, value in parts.items():
            sums.add(name, value)
        known = [count for count in (request.prompt_tokens, request.tokens) if count is not None]
        if known:
            sums.add("tokens", sum(known))


def _add_host(sums: Sums, host: HostSample, pid: int) -> None:
    own = {
        "own": [process.cpu for process in host.processes],
        "waited": [process.waited for process in host.processes],
        "read": [process.read_bytes for process in host.processes],
        "run_delay": [process.run_delay for process in host.processes if process.pid == pid],
        "throttled": [host.cgroup.throttled if host.cgroup else None],
    }
    for name, values in own.items():
        known = [value for value in values if value is not None]
        if known:
            sums.add(name, sum(known))
    busy = host.machine.core_busy
    if busy is not None and any(value is not None for value in own["own"]):
        sums.add("others", max(0.0, sum(busy) - sum(value or 0.0 for value in own["own"])))


def _some(units: Sequence[Unit]) -> Sequence[Unit]:
    return units[:: max(1, len(units) // MOST_UNITS)]
