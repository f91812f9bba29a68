"""Compares two runs: which is faster, whether by more than noise, and which parts of a unit make the difference. Pure.

The length of a unit is its mean over the run without the warm-up, per sample or token where those are counted. The cost
of other programs on the machine is made equal in both runs:

- cores: as if the main thread had waited for a core equally long in both, per second that it ran;
- caches and memory: units take longer while others use more of the machine. By how much is estimated from the stretches
  of both runs (`_slowing`).

The 95 % interval combines four errors: the scatter that remains within each run, the error of the estimated slowing,
the share of the machine that others had at all (what they did with it may have differed), and how much runs of the same
code differ anyway. The parts add up: phases to the length of a unit, lines to their phases, and time that no verdict
explains is a part of its own.

Runs of the same code differ by some per cent as a whole: all phases are somewhat longer or shorter. A slower function
makes one phase longer and leaves the others as they were. So a run is faster or slower if the whole certainly differs
by more than SAME, or if one phase stands out from the others (`_standing_out`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import structs

from aitop.diagnosis.evidence import interval
from aitop.diagnosis.noise import LEAST_VALUES, NORMAL, half_width, student_chance, warm_up
from aitop.diagnosis.run_summary import anonymous, run_of
from aitop.model.run import (
    CausePart,
    Change,
    ChangedNode,
    LinePart,
    Load,
    LoadUnit,
    Outcome,
    PhasePart,
    Run,
    RunComparison,
    SettingChange,
    Side,
    StackNode,
    Units,
    VerdictChanges,
)
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, moment
from aitop.model.verdict import Verdict, Where

# Runs count as equally fast if the interval of their ratio lies within this of 1, and as faster or slower as a whole if
# it lies outside.
SAME = 0.05
# Smaller changes of a phase, as a part of a unit, are of no use to anybody, however certain.
LEAST_CHANGE = 0.01
MAX_P_VALUE = 0.05
# A thread that makes progress waits for a core for at most this part of its time.
MOST_WAITS = 0.99
# The prior of the slowing (95 %): by what part units may get longer or shorter where others take all of the machine,
# before any stretches with more and with less of that were seen.
BESIDE_OTHERS = 1.0
# By what part units may be longer or shorter (95 %) beside others that take all of the machine, depending on what those
# do there. Recordings of the same code beside tests that took 1.8 of 2 cores scattered by as much.
KIND_OF_OTHERS = 0.1
# By what part the units of a whole run may be longer or shorter (95 %) for reasons that none of its stretches shows:
# where its memory lies, how fast the machine happens to be. Seven runs of one program on an idle machine scattered by
# as much beyond the noise within each (2026-11-26). Timing a fixed piece of work every second did not predict it.
OF_A_RUN = 0.016
# The largest half width of the ratio's interval, as a natural logarithm: a wider one would say no less.
WIDEST = 20.0
# The samples or tokens of a unit count as unchanged if they differ by no more than this part.
EQUAL_LOAD = 0.01
# Latencies are compared at equal load if requests per second, or requests under way, differ by no more than this part.
EQUAL_REQUESTS = 0.1
# Longer recordings (seconds) are not recommended: a run changes meanwhile.
LONGEST_RECORDING = 3600.0
NO_UNITS = Units(kind="second", each=1, seconds=())
# Seconds of a unit, and half the width of their 95 % interval.
Spread = tuple[float, float]
NONE: Spread = (0.0, 0.0)
OUTSIDE = "outside"


class _Line(NamedTuple):
    """The time of one line; if `where` is None, the time of `phase` that belongs to no line."""

    spread: Spread
    phase: str | None = None
    where: Where | None = None


def compared(snapshot: Snapshot) -> RunComparison | None:
    """Compare the run so far with the earlier run that the Snapshot names; None if it names none."""
    before = snapshot.before
    if before is None:
        return None
    after = run_of(snapshot, "this run")
    if not before.file:
        before, after = structs.replace(before, file=moment(before.ended, snapshot.wall)), anonymous(after)
    return compare_runs(before, after)


def compare_runs(before: Run, after: Run) -> RunComparison:
    """How `after` differs from `before`; both are runs of the same kind of work."""
    old, new, load = _at_equal_load(_Timed.of(before), _Timed.of(after))
    old, new, by_others = _beside_equal_others(*_with_equal_waits(old, new))
    known = bool(old.loads and new.loads) and old.units.kind == new.units.kind
    return RunComparison(
        before=old.side(),
        after=new.side(),
        change=_change(old, new, load, by_others),
        phases=_phases(old, new) if known else (),
        causes=_causes(old, new) if known else (),
        lines=_lines(old, new) if known else (),
        settings=_settings(before, after),
        verdicts=_verdicts(before.verdicts, after.verdicts),
        stacks=_stacks(old, new) if known else {},
    )


@dataclass(frozen=True)
class _Timed:
    """The timed stretches of a run without its warm-up, which was the first `warm_up` stretches.

    `loads` is how many units, samples or tokens each stretch has. `scale` is how many of these make up a unit of the
    run before, so that the lengths of both runs are those of such a unit. `others` is the part (0..1) of the machine
    that other programs had in each stretch; empty where that is not known.
    """

    run: Run
    units: Units
    warm_up: int
    loads: tuple[float, ...]
    others: tuple[float, ...]
    scale: float = 1.0

    @classmethod
    def of(cls, run: Run) -> _Timed:
        """The stretches of a run, the warm-up cut off; none if nothing was timed."""
        units = run.units or NO_UNITS
        cut = warm_up(units.seconds)
        later = {name: values[cut:] for name, values in structs.asdict(units).items() if isinstance(values, tuple)}
        units = structs.replace(units, phases={name: part[cut:] for name, part in units.phases.items()}, **later)

        def means(sums: tuple[float, ...] | None) -> tuple[float, ...]:
            spans = zip(sums or (), units.seconds, strict=False)
            return tuple(value / seconds if seconds else 0.0 for value, seconds in spans)

        loads, others = (float(units.each),) * len(units.seconds), means(units.others)
        if units.others is None and run.cores is not None:
            others = (run.cores.others / run.cores.machine,) * len(loads)
        return cls(run, units, cut, loads, others)

    @property
    def ran(self) -> list[float]:
        """Seconds of each stretch in which the main thread had a core; if not counted, in which it waited for none.

        Bounded by MOST_WAITS: a thread that makes progress has a core for some of the time.
        """
        units = self.units
        waits = units.waited or (0.0,) * len(units.seconds)
        spans = list(zip(units.seconds, waits, strict=True))
        most = [max(seconds - waited, (1 - MOST_WAITS) * seconds) for seconds, waited in spans]
        least = [(1 - MOST_WAITS) * waited for _, waited in spans]
        return [max(low, min(high, ran)) for low, high, ran in zip(least, most, units.ran or most, strict=True)]

    def with_waits(self, waits: float) -> _Timed:
        """These units as if the main thread had waited for a core for `waits` seconds for each second that it ran."""
        spans = zip(self.units.seconds, self.units.waited or (), self.ran, strict=True)
        return self._stretched(
            [1 - min(waited / seconds, MOST_WAITS) + ran * waits / seconds for seconds, waited, ran in spans]
        )

    def beside(self, part: float, slowing: float) -> _Timed:
        """These units as if others had had this part of the machine all the time; for `slowing` see `_slowing`."""
        return self._stretched([math.exp(slowing * (part - share)) for share in self.others])

    def _stretched(self, factors: Sequence[float]) -> _Timed:
        """These units with the length of each stretch, and of its phases, multiplied by its factor."""

        def stretched(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(value * factor for value, factor in zip(values, factors, strict=True))

        phases = {name: stretched(values) for name, values in self.units.phases.items()}
        return replace(self, units=structs.replace(self.units, seconds=stretched(self.units.seconds), phases=phases))

    @property
    def part(self) -> float | None:
        """The part (0..1) of the machine that other programs had on average; None where it is not known."""
        return fmean(self.others) if self.others else None

    @property
    def by_kind(self) -> float:
        """By what part its units may be longer or shorter (95 %), depending on what the other programs did."""
        return KIND_OF_OTHERS * (self.part or 0.0)

    def load(self, unit: LoadUnit) -> tuple[float, ...]:
        """How many samples or tokens each stretch has; empty where they were not counted."""
        return (self.units.tokens if unit == "token" else self.units.samples) or ()

    @property
    def lengths(self) -> tuple[float, ...]:
        """Mean seconds of a unit in each stretch."""
        return self._each(self.units.seconds)

    def _each(self, seconds: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(self.scale * value / held for value, held in zip(seconds, self.loads, strict=True))

    def _mean(self, seconds: tuple[float, ...]) -> float:
        return self.scale * sum(seconds) / sum(self.loads)

    # Kept once computed: the interval of the noise looks at every stretch again for each length of a block.

    @cached_property
    def mean(self) -> float:
        """Mean seconds of a unit; there must be units."""
        return self._mean(self.units.seconds)

    @cached_property
    def noise(self) -> float:
        """Half of the 95 % interval of `mean`, relative to `mean`."""
        return half_width(self._each(self.units.seconds)) / self.mean

    @property
    def per_second(self) -> float | None:
        """Requests answered per second: those under way divided by the mean latency. None where it is not known."""
        seconds = sum(self.units.seconds)
        if self.units.kind != "request" or not self.run.concurrency or not seconds:
            return None
        return self.run.concurrency * self.units.count / seconds

    def side(self) -> Side:
        """What the comparison says of this run. The mean is that of a unit as large as the earlier run's."""
        latency = self.run.latency
        return Side(
            file=self.run.file,
            command=self.run.command,
            kind=self.run.kind,
            unit=self.run.units.kind if self.run.units else None,
            units=self.units.count,
            warm_up=self.warm_up * self.units.each,
            watched_s=self.run.watched,
            mean_ms=self.mean * 1e3 if self.loads else None,
            per_s=self.per_second,
            latency_ms=latency and latency.in_milliseconds(),
        )

    def phases(self) -> dict[str, Spread]:
        """Seconds of each phase, which add up to `mean`. Unmeasured time is divided in proportion to stack samples."""
        parts = dict(self.measured)
        rest, off = parts.pop(OUTSIDE)
        parts |= {phase: (rest * share, off * share) for phase, share in self.run.rest.items()}
        return {phase: self._disturbed(*spread) for phase, spread in parts.items()}

    @cached_property
    def measured(self) -> dict[str, Spread]:
        """Seconds of each measured phase, and of the time OUTSIDE of all; intervals have only noise within the run."""
        columns = zip(self.units.seconds, *self.units.phases.values(), strict=True)
        outside = tuple(seconds - sum(inside) for seconds, *inside in columns)
        parts = {**self.units.phases, OUTSIDE: outside}
        return {name: (self._mean(part), half_width(self._each(part))) for name, part in parts.items()}

    def _disturbed(self, seconds: float, off: float) -> Spread:
        return seconds, math.hypot(off, seconds * self.by_kind)

    def lines(self) -> dict[tuple[str, ...], _Line]:
        """The time of every line, and what is left of each phase. Together they add up to `mean`."""
        lines: dict[tuple[str, ...], _Line] = {}
        for phase, (seconds, _) in self.phases().items():
            left = 1.0
            for line in self.run.lines:
                if line.phase == phase:
                    key = _identity(line.where)
                    elsewhere, off = lines[key].spread if key in lines else NONE
                    here, off_here = self._disturbed(seconds * line.share, seconds * line.off)
                    spread = elsewhere + here, math.hypot(off, off_here)
                    lines[key] = _Line(spread, where=line.where)
                    left -= line.share
            lines[(phase,)] = _Line((seconds * max(0.0, left), 0.0), phase)
        return lines

    def causes(self) -> dict[str | None, float]:
        """Seconds of a unit that each verdict explains, and under None those that no verdict does.

        Only verdicts about the time of a unit count, and none that is only information.
        """
        verdicts = [one for one in self.run.verdicts if one.severity != "info" and one.base in ("step", "time")]
        # Causes claim their time one after the other. If their shares still exceed 1 together, all are scaled alike.
        fit = self.mean / max(1.0, sum(one.share or 0.0 for one in verdicts))
        explained: dict[str | None, float] = {}
        for verdict in verdicts:
            explained[verdict.id] = explained.get(verdict.id, 0.0) + (verdict.share or 0.0) * fit
        explained[None] = self.mean - sum(explained.values())
        return explained


def _identity(where: Where) -> tuple[str, ...]:
    """The key of a line, which survives edits above it: file, function and text; its number if the text is unknown."""
    return where.file.rsplit("/", 1)[-1], where.function, (where.text or str(where.line)).strip()


def _at_equal_load(old: _Timed, new: _Timed) -> tuple[_Timed, _Timed, Load | None]:
    """Both runs per token or sample, and how many of these a unit has.

    Unchanged, and None, where neither was counted in both.
    """
    units: tuple[LoadUnit, ...] = ("token", "sample")
    for unit in units:
        held, loads = old.load(unit), new.load(unit)
        if held and loads and all(held) and all(loads):
            load = Load(unit=unit, before=sum(held) / old.units.count, after=sum(loads) / new.units.count)
            return replace(old, loads=held, scale=load.before), replace(new, loads=loads, scale=load.before), load
    return old, new, None


def _with_equal_waits(old: _Timed, new: _Timed) -> tuple[_Timed, _Timed]:
    """Both runs as if they had waited for a core equally long; the mean of `old` stays what it was."""
    if not (old.units.waited and new.units.waited and all((*old.units.seconds, *new.units.seconds))):
        return old, new
    waits = sum((*old.units.waited, *new.units.waited)) / sum((*old.ran, *new.ran))
    levelled = old.with_waits(waits)
    factor = old.mean / levelled.mean
    return replace(levelled, scale=old.scale * factor), replace(new.with_waits(waits), scale=new.scale * factor)


def _beside_equal_others(old: _Timed, new: _Timed) -> tuple[_Timed, _Timed, float]:
    """Both runs as if others had always used what they used beside `old` on average, and the relative error (95 %)."""
    beside, beside_after = old.part, new.part
    if beside is None or beside_after is None:
        return old, new, 0.0
    slowing, off = _slowing(old, new)
    by_others = math.hypot(abs(beside_after - beside) * off, old.by_kind, new.by_kind)
    return old.beside(beside, slowing), new.beside(beside, slowing), by_others


def _change(old: _Timed, new: _Timed, load: Load | None, by_others: float) -> Change:
    """How fast `new` is compared with `old`, and how sure that is."""
    untimed = " and ".join(side.run.file for side in (old, new) if not side.loads)
    if untimed:
        return Change(verdict="cannot-tell", reason=f"no unit of work was timed in {untimed}: that takes the hook")
    if old.units.kind != new.units.kind:
        return Change(verdict="cannot-tell", reason=f"one does {old.units.kind}s, the other {new.units.kind}s")
    ratio = old.mean / new.mean
    fewer = min(old, new, key=lambda side: len(side.loads))
    if len(fewer.loads) < LEAST_VALUES:
        each, kind = fewer.units.each, fewer.units.kind
        timed = f"{len(fewer.loads)} " + (f"{kind}s" if each == 1 else f"stretches of {each} {kind}s")
        return Change(
            verdict="cannot-tell",
            ratio=ratio,
            reason=f"{timed} of {fewer.run.file} are too few: it takes {LEAST_VALUES}",
            record_s=_longer(fewer.run.watched, 2 * LEAST_VALUES / len(fewer.loads)),
        )
    by_noise = math.hypot(old.noise, new.noise)
    by_run = math.sqrt(2.0) * OF_A_RUN
    wide = min(WIDEST, math.hypot(by_noise, by_others, by_run))
    low, high = ratio * math.exp(-wide), ratio * math.exp(wide)
    equal, cores, cores_after = _equal_load(old, new, load), old.run.cores, new.run.cores
    phase, longer = _standing_out(old, new, by_others)
    outcome: Outcome = "cannot-tell"
    reason: str | None = None
    record: float | None = None
    if equal is False and not _in_spite_of_load(old, new):
        reason = "the load differs: neither requests per second nor requests under way are equal"
    elif low > 1 + SAME or high < 1 - SAME:
        outcome = "faster" if ratio > 1 else "slower"
    elif phase is not None and (low <= 1 if longer > 0 else high >= 1):
        outcome = "slower" if longer > 0 else "faster"
        more = f"{duration(abs(longer))} {'more' if longer > 0 else 'less'}"
        reason = f"told by {phase} alone ({more}): the whole differs as runs of the same code may"
    elif low > 1 - SAME and high < 1 + SAME:
        outcome = "same"
    elif by_others > max(by_noise, by_run):
        reason = "other programs kept the machine busy, or more so in one run: compare them while less else runs"
    elif by_run > by_noise or not low <= 1 <= high:
        reason = "runs of the same code differ by as much from one to the next, and no phase stands out from the others"
    else:
        reason = "the difference is within the noise of these runs"
        enough = (abs(math.log(ratio)) - SAME) ** 2 - by_others**2 - by_run**2
        record = _longer(min(old.run.watched, new.run.watched), max(2.0, by_noise**2 / max(1e-9, enough)))
    return Change(
        verdict=outcome,
        ratio=ratio,
        range=(low, high),
        at_equal_load=equal,
        load=load if load is not None and abs(load.after / load.before - 1) > EQUAL_LOAD else None,
        other_cores=(cores.others, cores_after.others) if cores and cores_after else None,
        reason=reason,
        record_s=record,
    )


def _standing_out(old: _Timed, new: _Timed, by_others: float) -> tuple[str | None, float]:
    """The phase that changed unlike all others (95 %), and by how many seconds; None where there is none.

    Runs of the same code differ by more than the noise within each, by a factor that is not known. But what disturbs a
    phase within a run also makes it differ from run to run, so the factor is assumed to be the same for all phases.
    Each change is divided by the noise of its phase; Student's t-test then tells whether one is too large beside the
    others. All phases are tried, so the p-value is multiplied by their number (Bonferroni).
    """
    was, now = old.measured, new.measured
    changes: dict[str, tuple[float, float]] = {}
    for name in {**was, **now}:
        (before, off), (after, off_after) = was.get(name, NONE), now.get(name, NONE)
        noise = math.hypot(off, off_after, by_others * before) / NORMAL
        if noise and max(before, after) > LEAST_CHANGE * old.mean:
            changes[name] = after - before, (after - before) / noise
    for name, (longer, score) in changes.items():
        others = [other**2 for at, (_, other) in changes.items() if at != name]
        # The factor is at least 1: from run to run a phase differs by no less than its noise within them.
        unlike = score / math.sqrt(max(1.0, fmean(others))) if others else 0.0
        certain = student_chance(unlike, len(others)) * len(changes) < MAX_P_VALUE
        if certain and abs(longer) > LEAST_CHANGE * old.mean:
            rest = new.run.rest
            return (max(rest, key=lambda part: rest[part], default="host") if name == OUTSIDE else name), longer
    return None, 0.0


def _slowing(old: _Timed, new: _Timed) -> Spread:
    """Estimate how much longer units get where others take all of the machine: a logarithm, and half its 95 % interval.

    A regression over the stretches of each run, with a prior (BESIDE_OTHERS). The second pass knows the noise better.
    """
    first = _regressed(old, new, 0.0)
    return _regressed(old, new, first[0])


def _regressed(old: _Timed, new: _Timed, taken_out: float) -> Spread:
    """One pass of `_slowing`; the noise of the stretches is what remains once the slowing `taken_out` is removed."""
    weight, pull = (NORMAL / BESIDE_OTHERS) ** 2, 0.0
    for side in (old, new):
        shares, lengths = side.others, side.lengths
        if len(shares) < LEAST_VALUES or not all(lengths):
            continue
        middle, logs = fmean(shares), [math.log(length) for length in lengths]
        level, noise = fmean(logs), side.beside(middle, taken_out).noise
        variance = len(logs) * (noise / NORMAL) ** 2
        for share, log in zip(shares, logs, strict=True) if variance else ():
            weight += (share - middle) ** 2 / variance
            pull += (share - middle) * (log - level) / variance
    return pull / weight, NORMAL / math.sqrt(weight)


def _equal_load(old: _Timed, new: _Timed, load: Load | None) -> bool | None:
    """Whether units are compared at the same load; None where it is not known.

    The samples or tokens of a unit have been made equal. The number of requests cannot be, and latencies depend on it:
    the load is equal if as many came per second, or if as many were under way.
    """
    before, after = old.run.concurrency, new.run.concurrency
    rate, rate_after = old.per_second, new.per_second
    if before and after and rate and rate_after:
        # Requests that come at random differ in number by chance.
        random = NORMAL * math.sqrt(1 / old.units.count + 1 / new.units.count)
        return abs(after / before - 1) <= EQUAL_REQUESTS or abs(rate_after / rate - 1) <= max(EQUAL_REQUESTS, random)
    return True if load is not None else None


def _in_spite_of_load(old: _Timed, new: _Timed) -> bool:
    """Whether the load cannot explain the change: less time though no fewer requests come, or more though no more."""
    before, after = old.per_second or 0.0, new.per_second or 0.0
    return after >= before if new.mean < old.mean else after <= before


def _longer(watched: float, times: float) -> float | None:
    seconds = watched * times
    return seconds if 0 < seconds <= LONGEST_RECORDING else None


def _figures(before: Spread, after: Spread, *, sure: bool = True) -> dict[str, Any]:
    """The figures of a part in milliseconds, made from seconds. `sure`: its interval is known."""
    delta, wide = after[0] - before[0], math.hypot(before[1], after[1])
    interval = ((delta - wide) * 1e3, (delta + wide) * 1e3) if sure else None
    return {"before_ms": before[0] * 1e3, "after_ms": after[0] * 1e3, "delta_ms": delta * 1e3, "range": interval}


def _phases(old: _Timed, new: _Timed) -> tuple[PhasePart, ...]:
    was, now = old.phases(), new.phases()
    parts = [PhasePart(phase=name, **_figures(was.get(name, NONE), now.get(name, NONE))) for name in {**was, **now}]
    return tuple(sorted(parts, key=lambda part: -abs(part.delta_ms)))


def _causes(old: _Timed, new: _Timed) -> tuple[CausePart, ...]:
    was, now = old.causes(), new.causes()
    parts = [
        CausePart(id=name, **_figures((was.get(name, 0.0), 0.0), (now.get(name, 0.0), 0.0), sure=False))
        for name in {**was, **now}
    ]
    return tuple(sorted(parts, key=lambda part: (part.id is None, -abs(part.delta_ms))))


def _lines(old: _Timed, new: _Timed) -> tuple[LinePart, ...]:
    """Lines, and what is left of each phase, the largest change first."""
    was, now = old.lines(), new.lines()
    parts = []
    for key, line in {**was, **now}.items():
        before, after = was.get(key, line._replace(spread=NONE)), now.get(key, line._replace(spread=NONE))
        figures = _figures(before.spread, after.spread, sure=line.where is not None)
        parts.append(LinePart(phase=line.phase, where=line.where, **figures))
    return tuple(sorted(parts, key=lambda part: -abs(part.delta_ms)))


def _stacks(old: _Timed, new: _Timed) -> dict[str, ChangedNode]:
    """The call trees of both runs merged, by role; each node has its milliseconds of a unit before and after."""
    lengths = [(side.mean, math.hypot(side.noise, side.by_kind)) for side in (old, new)]

    def spread(node: StackNode | None, samples: int, length: float, noise: float) -> Spread:
        share = node.samples / samples if node else 0.0
        low, high = interval(share, samples)
        return share * length, length * math.hypot(max(high - share, share - low), share * noise)

    def changed(nodes: Sequence[StackNode | None], totals: tuple[int, int]) -> ChangedNode:
        spreads = [spread(node, of, *length) for node, of, length in zip(nodes, totals, lengths, strict=True)]
        (was, off), (now, off_now) = spreads
        pairs: dict[tuple[str, str], list[StackNode | None]] = {}
        for side, parent in enumerate(nodes):
            for child in parent.children if parent else ():
                pairs.setdefault((child.function, child.place.rpartition(":")[0]), [None, None])[side] = child
        named = next(node for node in reversed(nodes) if node is not None)
        return ChangedNode(
            named.function,
            named.place,
            named.whose,
            was * 1e3,
            now * 1e3,
            abs(now - was) > math.hypot(off, off_now),
            tuple(changed(pair, totals) for pair in pairs.values()),
        )

    both = {role: (tree, new.run.stacks[role]) for role, tree in old.run.stacks.items() if role in new.run.stacks}
    return {
        role: changed(trees, (trees[0].samples, trees[1].samples))
        for role, trees in both.items()
        if all(tree.samples for tree in trees)
    }


def _settings(before: Run, after: Run) -> tuple[SettingChange, ...]:
    """The settings that differ; so does a setting that is known of one run only."""
    was, now = {**before.settings, "command": before.command}, {**after.settings, "command": after.command}
    return tuple(
        SettingChange(name=name, before=was.get(name), after=now.get(name))
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    )


def _verdicts(before: Sequence[Verdict], after: Sequence[Verdict]) -> VerdictChanges:
    """The verdicts that are gone, new and kept. A warning that became information is gone, and new as information."""
    was, now = set(map(_kind_of, before)), set(map(_kind_of, after))
    return VerdictChanges(
        gone=tuple(one for one in before if _kind_of(one) not in now),
        new=tuple(one for one in after if _kind_of(one) not in was),
        kept=tuple(one for one in after if _kind_of(one) in was),
    )


def _kind_of(verdict: Verdict) -> tuple[str, str | None, bool]:
    return verdict.id, verdict.subtype, verdict.severity == "info"
