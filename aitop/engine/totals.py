"""What is summed up over a whole run, in little memory however long it is: its units of work, and the cores it got."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from aitop.model.host import HostSample
from aitop.model.ledger import Unit
from aitop.model.phases import MEASURED, SERVED
from aitop.model.run import Cores, Units
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.steps import HookSample, StepRecord

# So many stretches are joined in pairs: enough to tell a change from noise, few enough to keep and to write down.
MOST_STRETCHES = 64
LOADS = ("samples", "tokens")
# Seconds, loads and phases by name; what was not measured is not in it.
Figures = dict[str, float]


@dataclass
class UnitSeries:
    """Units of one kind in order, as stretches of `each` units."""

    each: int = 1
    stretches: list[Figures] = field(default_factory=list)
    _open: Figures | None = None
    _missing: int = 1

    def add(self, unit: Figures) -> None:
        """Take the next unit."""
        self._open = unit if self._open is None else _joined(self._open, unit)
        self._missing -= 1
        if self._missing:
            return
        self.stretches.append(self._open)
        self._open = None
        if len(self.stretches) >= MOST_STRETCHES:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
            self.stretches = [_joined(first, second) for first, second in pairs]
            self.each *= 2
        self._missing = self.each

    def copy(self) -> UnitSeries:
        """One that goes on by itself."""
        return replace(self, stretches=list(self.stretches))

    def units(self, kind: Unit) -> Units:
        """The same by figure instead of by stretch."""
        loads = {name: self._column(name) for name in LOADS if all(name in figures for figures in self.stretches)}
        phases = dict.fromkeys(name for figures in self.stretches for name in figures)
        return Units(
            kind=kind,
            each=self.each,
            seconds=self._column("seconds"),
            phases={name: self._column(name) for name in phases if name not in ("seconds", *LOADS)},
            **loads,
        )

    def _column(self, name: str) -> tuple[float, ...]:
        return tuple(figures.get(name, 0.0) for figures in self.stretches)


@dataclass
class UnitTotals:
    """All units of one process. `began` and `ended` are the times of its first and its last request."""

    steps: UnitSeries = field(default_factory=UnitSeries)
    requests: UnitSeries = field(default_factory=UnitSeries)
    iterations: UnitSeries = field(default_factory=UnitSeries)
    began: float | None = None
    ended: float = 0.0

    def take(self, sample: HookSample) -> None:
        """Add the units of a sample."""
        for step in sample.steps:
            self.steps.add(_step(step))
        for iteration in sample.iterations:
            self.iterations.add(_iteration(iteration))
        for request in sample.requests:
            self.requests.add(_request(request))
            self.began = request.end if self.began is None else self.began
            self.ended = request.end

    def copy(self) -> UnitTotals:
        """One that goes on by itself."""
        series = {"steps": self.steps.copy(), "requests": self.requests.copy(), "iterations": self.iterations.copy()}
        return replace(self, **series)

    def units(self) -> tuple[Units, ...]:
        """Its units by kind."""
        kinds: dict[Unit, UnitSeries] = {"step": self.steps, "iteration": self.iterations, "request": self.requests}
        return tuple(series.units(kind) for kind, series in kinds.items() if series.stretches)

    def concurrency(self) -> float | None:
        """Requests under way on average: how long all of them took, by how long all of it took."""
        if self.began is None or self.ended <= self.began:
            return None
        return sum(figures["seconds"] for figures in self.requests.stretches) / (self.ended - self.began)


@dataclass
class CoreTotals:
    """Sums of what the samples of the machine say of cores; each in cores, `count` samples together."""

    own: float = 0.0
    wanted: float = 0.0
    others: float = 0.0
    usable: float = 0.0
    machine: float = 0.0
    count: int = 0

    def take(self, host: HostSample) -> None:
        """Add a sample, unless a rate in it is not known yet."""
        busy = host.machine.core_busy
        used = [process.cpu for process in host.processes if process.cpu is not None]
        if busy is None or not used or len(used) < len(host.processes):
            return
        own = sum(used)
        self.own += own
        self.wanted += sum(max(process.cpu or 0.0, process.wanted or 0.0) for process in host.processes)
        self.others += max(0.0, sum(busy) - own)
        self.usable += host.machine.cores if host.usable_cores is None else host.usable_cores
        self.machine += host.machine.cores
        self.count += 1

    def cores(self) -> Cores | None:
        """The means, None before the first sample."""
        if not self.count:
            return None
        sums = (self.own, self.wanted, self.others, self.usable, self.machine)
        own, wanted, others, usable, machine = (value / self.count for value in sums)
        return Cores(own=own, wanted=wanted, others=others, usable=usable, machine=machine)


def _step(step: StepRecord) -> Figures:
    phases = {phase.key: phase.seconds(step) for phase in MEASURED if phase.is_measured(step)}
    return _figures(step.seconds, phases.items(), step.samples, step.tokens)


def _iteration(turn: IterationRecord) -> Figures:
    phases = ((phase.key, getattr(turn, phase.iteration)) for phase in SERVED if phase.iteration)
    tokens = _sum(turn.prefill_tokens, turn.decode_tokens)
    return _figures(turn.seconds, ((key, value) for key, value in phases if key != "idle"), turn.requests, tokens)


def _request(request: RequestRecord) -> Figures:
    phases = [(phase.key, getattr(request, phase.request)) for phase in SERVED if phase.request]
    tokens = _sum(request.prompt_tokens, request.tokens)
    return _figures(request.seconds, [("queue", request.queue), *phases], None, tokens)


def _figures(
    seconds: float, phases: Iterable[tuple[str, float | None]], samples: int | None, tokens: int | None
) -> Figures:
    named = {"seconds": seconds, "samples": samples, "tokens": tokens, **dict(phases)}
    return {name: value for name, value in named.items() if value is not None}


def _joined(first: Figures, second: Figures) -> Figures:
    both = {name: first.get(name, 0.0) + second.get(name, 0.0) for name in (*first, *second)}
    return {name: value for name, value in both.items() if name not in LOADS or (name in first and name in second)}


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second
