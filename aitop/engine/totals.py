"""What is summed up over a whole run, in little memory however long it is: its units of work, and the cores it got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

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
Record = StepRecord | IterationRecord | RequestRecord
# The fields of a record that each figure is the sum of.
FIELDS: dict[Unit, dict[str, tuple[str, ...]]] = {
    "step": {
        "seconds": ("seconds",),
        "samples": ("samples",),
        "tokens": ("tokens",),
        **{phase.key: phase.fields for phase in MEASURED if phase.fields},
    },
    "iteration": {
        "seconds": ("seconds",),
        "samples": ("requests",),
        "tokens": ("prefill_tokens", "decode_tokens"),
        **{phase.key: (phase.iteration,) for phase in SERVED if phase.iteration and phase.key != "idle"},
    },
    "request": {
        "seconds": ("seconds",),
        "tokens": ("prompt_tokens", "tokens"),
        "queue": ("queue",),
        **{phase.key: (phase.request,) for phase in SERVED if phase.request},
    },
}


@dataclass
class UnitSeries:
    """Units of one kind in order, as stretches of `each` units."""

    kind: Unit
    each: int = 1
    stretches: list[Figures] = field(default_factory=list)
    _open: Figures = field(default_factory=dict)
    _missing: int = 1

    def add(self, records: Sequence[Record]) -> None:
        """Take the next units."""
        while records:
            part, records = records[: self._missing], records[self._missing :]
            figures = _summed(part, self.kind)
            self._open = _joined(self._open, figures) if self._open else figures
            self._missing -= len(part)
            if not self._missing:
                self._close()

    def _close(self) -> None:
        self.stretches.append(self._open)
        if len(self.stretches) >= MOST_STRETCHES:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
            self.stretches = [_joined(first, second) for first, second in pairs]
            self.each *= 2
        self._open, self._missing = {}, self.each

    def copy(self) -> UnitSeries:
        """One that goes on by itself."""
        return replace(self, stretches=list(self.stretches))

    def units(self) -> Units:
        """The same by figure instead of by stretch."""
        loads = {name: self._column(name) for name in LOADS if all(name in figures for figures in self.stretches)}
        phases = dict.fromkeys(name for figures in self.stretches for name in figures)
        return Units(
            kind=self.kind,
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

    steps: UnitSeries = field(default_factory=lambda: UnitSeries("step"))
    iterations: UnitSeries = field(default_factory=lambda: UnitSeries("iteration"))
    requests: UnitSeries = field(default_factory=lambda: UnitSeries("request"))
    began: float | None = None
    ended: float = 0.0

    def take(self, sample: HookSample) -> None:
        """Add the units of a sample."""
        self.steps.add(sample.steps)
        self.iterations.add(sample.iterations)
        self.requests.add(sample.requests)
        if sample.requests:
            self.began = sample.requests[0].end if self.began is None else self.began
            self.ended = sample.requests[-1].end

    def copy(self) -> UnitTotals:
        """One that goes on by itself."""
        return replace(self, steps=self.steps.copy(), iterations=self.iterations.copy(), requests=self.requests.copy())

    def units(self) -> tuple[Units, ...]:
        """Its units by kind."""
        return tuple(series.units() for series in (self.steps, self.iterations, self.requests) if series.stretches)

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


def _summed(records: Sequence[Record], kind: Unit) -> Figures:
    """The figures of several units. What one of them holds is only known if it is of all."""
    figures: Figures = {}
    for name, fields in FIELDS[kind].items():
        values = [value for each in fields for value in map(attrgetter(each), records) if value is not None]
        if len(values) == len(records) * len(fields) or (values and name not in LOADS):
            figures[name] = sum(values)
    if kind == "step":
        for record in records:
            for name, seconds in record.others.items() if isinstance(record, StepRecord) else ():
                figures[name] = figures.get(name, 0.0) + seconds
    return figures


def _joined(first: Figures, second: Figures) -> Figures:
    both = {name: first.get(name, 0.0) + second.get(name, 0.0) for name in (*first, *second)}
    return {name: value for name, value in both.items() if name not in LOADS or (name in first and name in second)}
