"""Sums up the units of work and the use of cores over a whole run, in little memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from aitop.model.host import HostSample, ProcessSample
from aitop.model.ledger import Unit
from aitop.model.phases import MEASURED, SERVED
from aitop.model.run import Cores, Units
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.steps import HookSample, StepRecord

# When there are this many stretches, they are joined in pairs: enough to tell a change from noise, few enough to write
# down.
MOST_STRETCHES = 64
LOADS = ("samples", "tokens")
SHARES = ("waited", "ran", "others")
NO_SHARES: Mapping[str, float | None] = {}
# By name: a sum, and the number of its values. What was not measured is missing.
Sums = dict[str, tuple[float, float]]
Records = Sequence[StepRecord] | Sequence[IterationRecord] | Sequence[RequestRecord]
# The fields of a record that add up to each figure of a unit.
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
        **{phase.key: (phase.request,) for phase in SERVED if phase.request},
    },
}


def summed(records: Records, fields: Mapping[str, Sequence[str]]) -> Sums:
    """Each figure summed up over the units in which all of its fields were measured."""
    sums: Sums = {}
    for name, parts in fields.items():
        columns = [map(attrgetter(part), records) for part in parts]
        known = [sum(values) for values in zip(*columns, strict=True) if None not in values]
        if known:
            sums[name] = sum(known), len(known)
    for record in records:
        for name, seconds in record.others.items() if isinstance(record, StepRecord) else ():
            sums[name] = sums.get(name, (0.0, 0))[0] + seconds, len(records)
    return sums


def joined(*sums: Sums) -> Sums:
    """Add sums up, name by name."""
    both: Sums = {}
    for one in sums:
        for name, (total, count) in one.items():
            before = both.get(name, (0.0, 0))
            both[name] = before[0] + total, before[1] + count
    return both


@dataclass
class UnitSeries:
    """Units of one kind in order, summed up in stretches of `each` units."""

    kind: Unit
    each: int = 1
    stretches: list[Sums] = field(default_factory=list)
    _open: Sums = field(default_factory=dict)
    _missing: int = 1

    def add(self, records: Records, shares: Mapping[str, float | None] = NO_SHARES) -> None:
        """Take the next units; `shares` (0..1) are shares of their time, by name of the field of `Units`."""
        while records:
            part, records = records[: self._missing], records[self._missing :]
            sums = summed(part, FIELDS[self.kind])
            for name, share in shares.items():
                if share is not None:
                    sums[name] = sums["seconds"][0] * share, len(part)
            self._open = joined(self._open, sums)
            self._missing -= len(part)
            if not self._missing:
                self._close()

    def _close(self) -> None:
        self.stretches.append(self._open)
        if len(self.stretches) >= MOST_STRETCHES:
            pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
            self.stretches = [joined(first, second) for first, second in pairs]
            self.each *= 2
        self._open, self._missing = {}, self.each

    def units(self) -> Units:
        """The sums by figure, with one value per stretch. Samples and tokens only where every unit counted them."""
        none = (0.0, 0)
        columns = {
            name: [sums.get(name, none) for sums in self.stretches]
            for name in dict.fromkeys(name for sums in self.stretches for name in sums)
        }
        totals = {name: tuple(total for total, _ in column) for name, column in columns.items()}
        known = {
            name: totals[name] for name in LOADS if name in columns and all(n == self.each for _, n in columns[name])
        }
        return Units(
            kind=self.kind,
            each=self.each,
            seconds=totals.pop("seconds", ()),
            phases={name: column for name, column in totals.items() if name not in (*SHARES, *LOADS)},
            **{name: _measured(columns[name], columns["seconds"]) for name in SHARES if name in columns},
            **known,
        )


def _measured(parts: Sequence[tuple[float, float]], seconds: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """The seconds of a part in each stretch. Units that did not measure it are taken to have the mean share of it."""
    measured = [length * known / count for (_, known), (length, count) in zip(parts, seconds, strict=True)]
    share = sum(part for part, _ in parts) / (sum(measured) or 1.0)
    rests = [length - known for (length, _), known in zip(seconds, measured, strict=True)]
    return tuple(part + share * rest for (part, _), rest in zip(parts, rests, strict=True))


@dataclass
class UnitTotals:
    """All units of one process. `began` and `ended` are the ends of its first and its last request.

    `shares` (0..1 by `waited`, `ran` and `others`) are the latest shares of time; new units are taken to have them.
    """

    steps: UnitSeries = field(default_factory=lambda: UnitSeries("step"))
    iterations: UnitSeries = field(default_factory=lambda: UnitSeries("iteration"))
    requests: UnitSeries = field(default_factory=lambda: UnitSeries("request"))
    began: float | None = None
    ended: float = 0.0
    shares: Mapping[str, float | None] = field(default_factory=dict)

    def take(self, sample: HookSample) -> None:
        """Add the units of a sample."""
        self.steps.add(sample.steps, self.shares)
        self.iterations.add(sample.iterations, self.shares)
        self.requests.add(sample.requests)
        if sample.requests:
            self.began = sample.requests[0].end if self.began is None else self.began
            self.ended = sample.requests[-1].end

    def units(self) -> tuple[Units, ...]:
        """Its units, by kind; kinds without a full stretch are left out."""
        return tuple(series.units() for series in (self.steps, self.iterations, self.requests) if series.stretches)

    def concurrency(self) -> float | None:
        """The mean number of requests under way: the sum of their durations divided by the time in which they ended."""
        if self.began is None or self.ended <= self.began:
            return None
        return sum(sums["seconds"][0] for sums in self.requests.stretches) / (self.ended - self.began)


def add_cores(sums: Sums, host: HostSample) -> Sums:
    """The sums of the machine's cores and of those that other programs use, with a sample added if it has all rates."""
    others = _of_others(host)
    return sums if others is None else joined(sums, {"others": (others, 1), "machine": (host.machine.cores, 1)})


def mean_cores(sums: Sums) -> Cores | None:
    """The means of these sums, None before the first sample."""
    return Cores(**{name: total / count for name, (total, count) in sums.items()}) if sums else None


def _of_others(host: HostSample) -> float | None:
    """How many cores other programs had lately; None where the use of a core or of any process is not known yet."""
    return None if any(process.cpu is None for process in host.processes) else host.cores_of_others


def shares_of_time(host: HostSample) -> dict[int, Mapping[str, float | None]]:
    """Shares of time (0..1) of each process, by pid.

    `waited`: its main thread waits for a core that another program has. `ran`: its main thread has a core. `others`:
    the part of the machine's cores that other programs have. Which thread has the core that it waits for is not known.
    So the wait is divided between other programs and other threads of the run itself, in proportion to their CPU use.
    """
    others = _of_others(host)
    used = host.cores_used or 0.0

    def waited(process: ProcessSample, others: float) -> float | None:
        if process.run_delay is None:
            return None
        beside = max(0.0, used - (process.main_cpu or 0.0))
        return min(1.0, process.run_delay) * others / (others + beside) if others else 0.0

    if others is None:
        return {process.pid: NO_SHARES for process in host.processes}
    part = others / host.machine.cores
    return {
        process.pid: {"waited": waited(process, others), "ran": process.main_cpu, "others": part}
        for process in host.processes
    }
