"""regression: units (steps or requests) take longer since a moment of the run, and what changed at that moment.

The moment is the one that divides the stretches of the past best into two levels. Neighbouring stretches resemble each
other, which makes any difference look certain. So the means have to differ by a multiple of their error, as a block
bootstrap gives it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from statistics import fmean, median

import msgspec

from aitop.diagnosis.evidence import NO_LINES, Lines, lines_of, main_lines, short_place, worker_lines
from aitop.diagnosis.noise import LEAST_VALUES, chance, half_width, without_outliers
from aitop.diagnosis.rule import Explanation, condition
from aitop.diagnosis.series import gradual, in_parts
from aitop.diagnosis.what_if import fix
from aitop.model.ledger import Entry
from aitop.model.past import Past, PastLine, PastUnit, Stretch
from aitop.model.phases import MEASURED, PHASE_WORDS, SERVED
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, factor, percent

# A change counts if the means differ by this many times the half width of their 95 % intervals: the moment is the best
# of hundreds, and is sought every second.
ERRORS = 2.5
# Each side is divided into this number of blocks; the figures of the blocks are compared.
BLOCKS = 12
MAX_P_VALUE = 0.001
LEAST_RATIO = 1.15
# Each side is divided into this number of parts, and a line fitted through their medians tells gradual growth.
PARTS_OF_SIDE = 8
# A cause that explains at least this share of the difference is named before the phase in which it shows.
EXPLAINS = 0.5
MOST_REASONS = 4
# The least change that counts, in cores and as a share of a figure.
LEAST_CORES, LEAST_CHANGE = 0.25, 0.15
PARTS = tuple(dict.fromkeys((*(phase.key for phase in (*MEASURED, *SERVED)), "host")))
"""The phases of a unit, by their names among the sums of a stretch."""
# Phases that take longer with more input, or on a slower clock of the device.
COMPUTES = ("forward", "backward", "optimizer")


class Stretches(msgspec.Struct, frozen=True):
    """The stretches on one side of the moment. A figure of it is the median over BLOCKS of equally many stretches."""

    stretches: tuple[Stretch, ...]

    @property
    def seconds(self) -> float:
        return self.stretches[-1].end - self.stretches[0].start

    def means(self, name: str) -> list[float]:
        """The mean of a figure in each block in which it was measured."""
        sums = [
            [sum(pair) for pair in zip(*(stretch.sums.get(name, (0.0, 0.0)) for stretch in block), strict=True)]
            for block in in_parts(self.stretches, BLOCKS)
            if block
        ]
        return [total / weight for total, weight in sums if weight]

    def value(self, name: str) -> float | None:
        """The figure; None where it was not measured."""
        means = self.means(name)
        return median(means) if means else None

    def share(self, line: PastLine) -> float | None:
        """The share (0..1) of the stack samples on a line; None without samples."""
        samples = sum(stretch.samples for stretch in self.stretches)
        return sum(stretch.lines.get(line, 0) for stretch in self.stretches) / samples if samples else None


class Slowdown(msgspec.Struct, frozen=True):
    """Units took `was` seconds before the moment `at` (monotonic) and take `now` since. `first` is the number of the
    first step since then.
    """

    at: float
    before: Stretches
    after: Stretches
    was: float
    now: float
    first: int | None

    @property
    def ratio(self) -> float:
        return self.now / self.was

    @property
    def longer(self) -> float:
        """Seconds by which a unit takes longer."""
        return self.now - self.was

    def of(self, name: str) -> tuple[float, float] | None:
        """A figure before and after the moment; None where one of them was not measured."""
        before, after = self.before.value(name), self.after.value(name)
        return None if before is None or after is None else (before, after)

    def certain(self, name: str) -> bool:
        """Whether the figure changed by more than chance."""
        return chance(self.before.means(name), self.after.means(name)) < MAX_P_VALUE

    def rise(self, name: str) -> float:
        """By how much a figure rose, 0 where it did not."""
        both = self.of(name)
        return max(0.0, both[1] - both[0]) if both is not None else 0.0


class Reason(msgspec.Struct, frozen=True):
    """Something that changed at the moment, and explains `seconds` of a unit. Its line is in `phase`; None: no line."""

    subtype: str
    seconds: float
    words: str
    remedy: str
    phase: str | None = None


@condition("regression", 1.0, 0.6)
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on units that take longer than before."""
    past = snapshot.past
    if past is None:
        return "steps or requests have not been timed long enough to tell a change: the hook times them"
    change = change_of(past)
    if change is None:
        return None
    reasons = _reasons(change, past.unit)
    reason = reasons[0]
    lines = _lines(snapshot, change, reason.phase) if reason.phase is not None else NO_LINES
    place = f"; {short_place(lines.where[0])}" if lines.where else ""
    began = snapshot.wall - (snapshot.time - change.at)
    clock = _clock(began, snapshot.wall)
    step = "" if change.first is None else f" (step {change.first:,}{_counted_from(snapshot)})"
    unit = past.unit
    named = reason.seconds >= EXPLAINS * change.longer
    intended = reason.subtype == "input" and _as_much_per_second(change)
    return Explanation(
        subtype=reason.subtype,
        severity="info" if intended else "warning",
        signals=(named, change.ratio > 1.5),
        level=(change.ratio - 1.0) / (LEAST_RATIO - 1.0),
        title=f"{unit}s take {factor(change.ratio)} as long since {clock}{step}: {reason.words}{place}",
        where=lines.where[:1],
        claims=(),
        evidence=_evidence(change, reasons, unit),
        fixes=(fix(reason.remedy.format(at=clock) + place.replace(";", ":")),),
        since=began,
    )


def change_of(past: Past) -> Slowdown | None:
    """The moment since which units take longer, and still do; None where there is none."""
    lengths = [(stretch.mean("seconds") or 0.0, stretch) for stretch in past.stretches]
    timed = [stretch for length, stretch in lengths if length > 0.0]
    # Logarithms, because disturbances make units longer by a factor: long units scatter more than short ones.
    values = without_outliers([math.log(length) for length, _ in lengths if length > 0.0])
    split = _split(values)
    if split is None or not _surely_higher(values[:split], values[split:]) or _gradual(values, split):
        return None
    before, after = Stretches(tuple(timed[:split])), Stretches(tuple(timed[split:]))
    was, now = median(before.means("seconds")), median(after.means("seconds"))
    return Slowdown(timed[split].start, before, after, was, now, timed[split].first)


def long_enough(past: Past | None) -> bool:
    """Whether units were timed for long enough to tell a change."""
    timed = [stretch for stretch in past.stretches if stretch.mean("seconds")] if past is not None else []
    return len(timed) >= 2 * LEAST_VALUES


def _split(values: Sequence[float]) -> int | None:
    """The index that divides the values best into two levels, the lower one before; None with too few of them."""
    count, totals = len(values), list(accumulate(values, initial=0.0))
    places = range(LEAST_VALUES, count - LEAST_VALUES + 1)

    def explained(at: int) -> float:
        """The sum of squares that two levels explain, with the sign of the difference."""
        rise = (totals[-1] - totals[at]) / (count - at) - totals[at] / at
        return at * (count - at) * rise * abs(rise)

    best = max(places, key=explained, default=None)
    return None if best is None or explained(best) <= 0 else best


def _surely_higher(before: Sequence[float], after: Sequence[float]) -> bool:
    return fmean(after) - fmean(before) > ERRORS * math.hypot(half_width(before), half_width(after))


def _gradual(values: Sequence[float], split: int) -> bool:
    """Whether the values grow gradually rather than change once at the moment."""
    parts = (part for side in (values[:split], values[split:]) for part in in_parts(side, PARTS_OF_SIDE))
    return gradual(list(map(median, parts)), [PARTS_OF_SIDE])


def _reasons(change: Slowdown, unit: PastUnit) -> list[Reason]:
    """What changed, the reason to name first: a circumstance that explains most of the difference, else the phase that
    grew most.
    """
    circumstances = [*_of_input(change, unit), *_of_interpreter(change, unit), *_of_clock(change), *_of_cores(change)]
    phases = _phases(change)
    large = [reason for reason in circumstances if reason.seconds >= EXPLAINS * change.longer]
    unknown = Reason("host", 0.0, "no single part takes the time", "look at what changed at {at}")
    first = max(large or phases, key=lambda reason: reason.seconds, default=unknown)
    rest = sorted((*circumstances, *phases), key=lambda reason: -reason.seconds)
    return [first, *(reason for reason in rest if reason is not first)]


def _computing(change: Slowdown) -> float:
    """Seconds of a unit before the moment in which its model computed."""
    return sum(change.before.value(phase) or 0.0 for phase in COMPUTES)


def _of_input(change: Slowdown, unit: PastUnit) -> list[Reason]:
    """The reason that a unit holds more tokens or samples, if it does."""
    more, name = max((_growth(change, name), name) for name in ("tokens", "samples"))
    both = change.of(name)
    if both is None or more < LEAST_CHANGE:
        return []
    words = f"each {unit} has {both[1]:,.0f} {name}, before {both[0]:,.0f}"
    remedy = "if nobody wanted that: see what goes into the model since {at}"
    return [Reason("input", more * _computing(change), words, remedy)]


def _of_interpreter(change: Slowdown, unit: PastUnit) -> list[Reason]:
    """The reasons of the interpreter: more recompilations by torch.compile, more garbage collection."""
    reasons = []
    compiled, collected = change.of("recompiles"), change.of("gc")
    if compiled is not None and compiled[1] > 2 * compiled[0]:
        words = f"torch.compile compiles anew {compiled[1]:.2f} times a {unit}, before {compiled[0]:.2f}"
        remedy = "see what changes from one call to the next since {at}: `aitop explain recompile`"
        longer = change.rise("forward") + change.rise("backward")
        reasons.append(Reason("recompile", longer, words, remedy, "forward"))
    if collected is not None and collected[1] > collected[0]:
        words = f"collecting garbage went from {duration(collected[0])} to {duration(collected[1])} a {unit}"
        remedy = "see what makes so many objects since {at}: `aitop explain gc-stall`"
        reasons.append(Reason("collector", change.rise("gc"), words, remedy))
    return reasons


def _of_clock(change: Slowdown) -> list[Reason]:
    """The reason that the device's clock is slower, if it is."""
    clock = change.of("clock")
    if clock is None or clock[1] <= 0 or clock[0] < (1.0 + LEAST_CHANGE / 2) * clock[1] or not change.certain("clock"):
        return []
    words = f"the clock of the GPU went from {clock[0]:.0f} to {clock[1]:.0f} MHz"
    remedy = "see what holds the clock back since {at}: heat, or a limit on power"
    return [Reason("clocks", (clock[0] / clock[1] - 1.0) * _computing(change), words, remedy)]


def _of_cores(change: Slowdown) -> list[Reason]:
    """The reasons for longer waits for a core: other programs, the run itself, or a quota."""
    reasons = []
    waited, throttled = change.rise("waited"), change.rise("throttled")
    others, own = change.of("others"), change.of("own")
    # Threads that wait need not hold up the one that makes the units, so its own delay counts where it is known.
    delayed = (change.rise("run_delay") if change.of("run_delay") is not None else waited) * change.now
    if waited >= LEAST_CORES and others is not None and own is not None and change.certain("waited"):
        if others[1] - others[0] >= LEAST_CORES and change.certain("others"):
            words = f"other programs use {others[1]:.1f} cores, before {others[0]:.1f}"
            remedy = "see with top what started at {at}; give this run cores of its own, or wait until that ends"
            reasons.append(Reason("neighbour", delayed, words, remedy))
        else:
            words = f"{waited:.1f} more threads of the run itself wait for a core than before"
            remedy = "see which of its processes or threads began at {at}"
            reasons.append(Reason("cores", delayed, words, remedy))
    if throttled >= LEAST_CHANGE and change.certain("throttled"):
        words = f"the quota of the control group runs out in {percent(throttled)} more of the kernel's periods"
        remedy = "see what uses the quota up since {at}, or raise it"
        reasons.append(Reason("quota", delayed, words, remedy))
    return reasons


def _growth(change: Slowdown, name: str) -> float:
    """By what part the count of samples or tokens in a unit grew; 0 where that may be chance."""
    both = change.of(name)
    if both is None or both[0] <= 0 or not change.certain(name):
        return 0.0
    return both[1] / both[0] - 1.0


def _phases(change: Slowdown) -> list[Reason]:
    """The phases that take longer."""
    reasons = []
    for name in PARTS:
        was, now = change.before.value(name) or 0.0, change.after.value(name) or 0.0
        if now > was:
            words = f"{PHASE_WORDS.get(name, name)} went from {duration(was)} to {duration(now)}"
            subtype = "checkpoint" if name == "save" else name
            reasons.append(Reason(subtype, now - was, words, "look at what changed at {at}", name))
    return reasons


def _as_much_per_second(change: Slowdown) -> bool:
    """Whether throughput in tokens or samples is (nearly) what it was before."""
    return 1.0 + max(_growth(change, "tokens"), _growth(change, "samples")) >= 0.9 * change.ratio


def _lines(snapshot: Snapshot, change: Slowdown, phase: str) -> Lines:
    """The line of a phase that takes more of a unit than before."""
    lines = main_lines(snapshot, lambda entry: entry.phase == phase and entry.where is not None)
    if not lines.entries:
        return lines
    if phase == "data" and lines.part(lambda entry: entry.activity == "wait-queue") > 0.5:
        making = worker_lines(snapshot)
        if making.where:
            return making

    def grown(entry: Entry) -> float:
        line = f"{entry.file}:{entry.line}"
        before, after = change.before.share(line), change.after.share(line)
        if before is None or after is None:
            return entry.share
        return after * change.now - before * change.was

    most = max(lines.entries, key=grown)
    return lines_of(entry for entry in lines.entries if entry.at == most.at)


def _evidence(change: Slowdown, reasons: Sequence[Reason], unit: PastUnit) -> tuple[str, ...]:
    evidence = [
        f"{duration(change.was)} a {unit} in the {duration(change.before.seconds)} before, {duration(change.now)} in "
        f"the {duration(change.after.seconds)} since (medians of stretches)"
    ]
    evidence.append(f"{reasons[0].words}: {percent(min(1.0, reasons[0].seconds / change.longer))} of the difference")
    least = LEAST_CHANGE * change.longer
    evidence += [f"also: {other.words}" for other in reasons[1:MOST_REASONS] if other.seconds >= least]
    read = change.of("read")
    if read is not None and read[1] > 2 * read[0] and change.certain("read"):
        evidence.append(f"{read[1] / 1e6:.1f} MB/s are read from storage, before {read[0] / 1e6:.1f}")
    return tuple(evidence)


def _counted_from(snapshot: Snapshot) -> str:
    """Words for a step's number where its count did not begin with the run."""
    return " since aitop came" if snapshot.facts is None or snapshot.facts.way == "attach" else ""


def _clock(wall: float, now: float) -> str:
    """The local time, with the date if that is not today's."""
    began, today = datetime.fromtimestamp(wall), datetime.fromtimestamp(now)
    return began.strftime("%H:%M:%S" if began.date() == today.date() else "%Y-%m-%d %H:%M")
