"""step-time-growth: every step takes a little longer than the one before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aitop.diagnosis.causes.device_gaps import short_place
from aitop.diagnosis.causes.trend import line_through
from aitop.diagnosis.evidence import (
    Lines,
    confidence,
    enough,
    main_lines,
    main_stacks,
    mean_of,
    on_gpu,
    records,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "step-time-growth"
BAND = Band(enter=1.0, leave=0.6)
PARTS = 8
MIN_STEPS = 16
MIN_SECONDS = 4.0
# The least growth over what was seen, and the growth that counts at once.
LEAST_GROWTH, UNEXPLAINED = 0.12, 0.2
# So long (seconds) a smaller rise has to last; a wait for others drifts by itself.
LASTING, LASTING_WAIT = 8.0, 25.0
FIT = 0.7
CRITICAL_SHARE = 0.3
# A rise of this part of a phase is what the phase is long for.
EXPLAINS = 0.3
# Of a line's share of the samples: in so many parts, by so many standard errors, by so much and by this factor.
SHARE_PARTS, SURE_ERRORS, LEAST_SHARE, LEAST_RATIO = 6, 3.0, 0.08, 1.3
MOST_LINES = 5
# Phases of less, or beside less, than this part of a step are no measure.
LEAST_PART = 0.1
CALM = 0.1
# More steps than that tell no more of a trend, but take the time that is looked at them.
MOST_STEPS = 512
SCATTER = 2654435761
# Whoever reads the prediction mends the run later, and how long it was to go on is not known.
NOW = "the predicted gain is that of this moment: it grows with every step, so how large it will be is not known"

_PHASES: tuple[tuple[str, Callable[[StepRecord], float]], ...] = (
    ("data_wait", lambda step: step.data_wait + step.loader_start),
    ("forward", lambda step: step.forward),
    ("backward", lambda step: step.backward),
    ("optimizer", lambda step: step.optimizer),
    ("save", lambda step: step.save),
    ("evaluation", lambda step: step.evaluation),
    ("outside", lambda step: max(0.0, step.outside - step.save - step.evaluation)),
)
# Phases that no other one is measured by.
_WAITS = frozenset({"data_wait", "save", "evaluation"})


@dataclass(frozen=True)
class Growth:
    """How step time rose: `first` and `last` in seconds (of a core, where steps run on the CPU), `rate` a step."""

    first: float
    last: float
    steps: int
    seconds: float
    rate: float
    phase: str

    @property
    def part(self) -> float:
        """How much of a step at the end had not been there at the start of the window."""
        return (self.last - self.first) / self.last


def judge(snapshot: Snapshot) -> Judgement:
    """Whether steps get slower, with the line; without step times, whether a line goes over all of what only grows."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    steps = records(snapshot)
    if not steps:
        return _of_stacks(snapshot)
    seconds = steps[-1].end - steps[0].end
    if len(steps) < MIN_STEPS or seconds < MIN_SECONDS:
        return Abstention(id=ID, reason=f"a trend needs {MIN_STEPS} steps in {MIN_SECONDS:.0f} s, {len(steps)} so far")
    calm = (mean_of(snapshot, "run_delay") or 0.0) < CALM
    growth = growth_of(steps, device=on_gpu(snapshot), calm=calm)
    if growth is None:
        return _of_stacks(snapshot)
    lasting = LASTING_WAIT if growth.phase == "data_wait" else LASTING
    if growth.seconds < lasting and growth.part < UNEXPLAINED:
        reason = f"steps got slower for {growth.seconds:.0f} s: whether it goes on is not known yet"
        sampled = _of_stacks(snapshot)
        return sampled if isinstance(sampled, Finding) else Abstention(id=ID, reason=reason)
    lines = _lines(snapshot, growth.phase)
    # What grows explains its line; a small drift of a large phase does not explain the phase.
    claims = lines.entries if growth.phase == "outside" or growth.part >= EXPLAINS * lines.share else ()
    # Where others take the cores, times drift by more than that.
    needed = LEAST_GROWTH if calm else 2.5 * LEAST_GROWTH
    return Finding(_verdict(snapshot, growth, lines), level=growth.part / needed, claims=claims)


def _of_stacks(snapshot: Snapshot) -> Judgement:
    """A line outside of the model that takes more and more of the time, window by window of the stacks."""
    process = main_stacks(snapshot)
    if process is None or snapshot.stacks is None or snapshot.stacks.seconds < LASTING or sum(process.by_window) < 200:
        return Abstention(id=ID, reason=f"a trend needs {LASTING:.0f} s of stacks, or step times from the hook")
    host = main_lines(snapshot, lambda entry: entry.phase == "host" and entry.where is not None)
    for place in host.where[:MOST_LINES]:
        lines = main_lines(
            snapshot,
            lambda entry, place=place: entry.phase == "host" and (entry.file, entry.line) == (place.file, place.line),  # type: ignore[misc]
        )
        # Entries of one line that differ in activity only share its counts.
        counts = {(entry.position, entry.work): entry.by_window for entry in lines.entries}
        of_line = [sum(numbers) for numbers in zip(*counts.values(), strict=True)]
        ends = rising_share(of_line, process.by_window)
        if ends is not None:
            first, last = ends
            return Finding(
                _of_share(lines, first, last, snapshot.stacks.seconds), (last - first) / LEAST_SHARE, lines.entries
            )
    return None


def rising_share(counts: Sequence[int], samples: Sequence[int]) -> tuple[float, float] | None:
    """The share of samples at the begin and the end of a steady rise; None where it does not surely rise.

    A weighted straight line through the shares of equal parts of the time. What scatters more than chance allows, as
    bursts do, has to rise the more.
    """
    total, seen = sum(samples), 0
    parts = [(0, 0)] * SHARE_PARTS
    for count, number in zip(counts, samples, strict=True):
        index = min(SHARE_PARTS - 1, SHARE_PARTS * (2 * seen + number) // (2 * total)) if total else 0
        parts[index] = parts[index][0] + count, parts[index][1] + number
        seen += number
    mean = sum(counts) / total if total else 0.0
    if any(number == 0 for _, number in parts) or not 0.0 < mean < 1.0:
        return None
    weights = [number / (mean * (1.0 - mean)) for _, number in parts]
    shares = [count / number for count, number in parts]
    middle = sum(weight * index for index, weight in enumerate(weights)) / sum(weights)
    level = sum(weight * share for weight, share in zip(weights, shares, strict=True)) / sum(weights)
    spread = sum(weight * (index - middle) ** 2 for index, weight in enumerate(weights))
    slope = (
        sum(
            weight * (index - middle) * share for index, (weight, share) in enumerate(zip(weights, shares, strict=True))
        )
        / spread
    )
    line = [level + slope * (index - middle) for index in range(SHARE_PARTS)]
    scatter = sum(
        weight * (share - fitted) ** 2 for weight, share, fitted in zip(weights, shares, line, strict=True)
    ) / (SHARE_PARTS - 2)
    sure = slope / math.sqrt(max(1.0, scatter) / spread)
    first, last = max(0.0, line[0]), min(1.0, line[-1])
    if sure < SURE_ERRORS or last - first < LEAST_SHARE or last < LEAST_RATIO * first:
        return None
    return first, last


def _of_share(lines: Lines, first: float, last: float, seconds: float) -> Verdict:
    share = min(0.97, lines.share)
    place = short_place(lines.where[0].file, lines.where[0].line)
    return Verdict(
        id=ID,
        severity="warning",
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=confidence(last > 2 * first, base=0.5),
        title=f"{place} takes more and more of the time: {percent(first)} → {percent(last)} in {duration(seconds)}",
        where=lines.where,
        evidence=(f"its share of the stack samples rose steadily from {percent(first)} to {percent(last)}", NOW),
        fixes=_fixes(f" ({place})", share),
    )


def _fixes(place: str, share: float) -> tuple[Fix, ...]:
    text = (
        f"look for what gets longer at every step{place}: a list that is never cleared, a graph that is kept (detach "
        "what is carried on), a file read anew"
    )
    return (Fix(text=text, speedup=round(without(share), 2)),)


def growth_of(steps: Sequence[StepRecord], *, device: bool, calm: bool = True) -> Growth | None:
    """The rise of step time over these steps; None where it is not a steady one of the run's own making.

    `device`: they run on a GPU. `calm`: nobody else was seen to take the cores.
    """
    if _longer_batches(steps):
        return None
    every, steps = steps, _thinned(steps)
    rises = _of_phases(steps)
    phase = max(rises, key=lambda name: rises[name], default="")
    # A core that others take slows steps down, too, but they do not use more of it. Fast steps are timed now and then.
    timed = [] if device else [step for step in steps if step.cpu is not None]
    on_core = len(timed) >= MIN_STEPS
    looked_at = timed if on_core else list(steps)
    taken: Callable[[StepRecord], float] = (lambda step: step.cpu or 0.0) if on_core else (lambda step: step.seconds)
    medians = _medians(looked_at, taken)
    middle = sum(medians) / PARTS
    # Where only the wall clock tells, a machine that gets slower looks the same unless one phase is all there is.
    own = on_core or device or (calm and not rises)
    if own and _rises(medians) and _shifted(looked_at, taken):
        slope, _ = line_through(range(PARTS), medians)
        rise = slope * (PARTS - 1)
    elif rises.get(phase):
        rise = rises[phase]
    else:
        return None
    first, last = middle - rise / 2, middle + rise / 2
    if first <= 0:
        first = 0.1 * last
    return Growth(
        first=first,
        last=last,
        steps=len(every),
        seconds=every[-1].end - every[0].end,
        rate=(last - first) / len(every),
        phase=phase if rises.get(phase) else _risen_most(steps),
    )


def _thinned(steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """One of each few neighbours, scattered, since every so many steps may have something that the others have not."""
    each = len(steps) // MOST_STEPS
    if each < 2:
        return steps
    return [steps[start + (start * SCATTER >> 16) % each] for start in range(0, len(steps) - each + 1, each)]


def _of_phases(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Seconds by which each phase rose, measured by the other phases of the same steps; 0 where it is no steady rise.

    A machine that others use slows all phases down alike: their proportions stay.
    """
    whole = _medians(steps, lambda step: step.seconds)
    found = {}
    for name, value in _PHASES:
        own = _medians(steps, value)
        if sum(own) < LEAST_PART * sum(whole):
            continue
        beside = (lambda step: 0.0) if name in _WAITS else value
        rest = _medians(steps, lambda step, beside=beside: max(0.0, step.seconds - beside(step) - _waits(step)))  # type: ignore[misc]
        if sum(rest) < LEAST_PART * sum(whole) or min(rest) <= 0:
            continue
        ratios = [one / other for one, other in zip(own, rest, strict=True)]
        steady = _rises(ratios) and _rises(own, fit=0.3)
        slope, _ = line_through(range(PARTS), ratios)
        found[name] = slope * (PARTS - 1) * sum(rest) / PARTS if steady else 0.0
    return found


def _risen_most(steps: Sequence[StepRecord]) -> str:
    """The phase that rose by most seconds, where no other one is long enough to measure it by."""
    slopes = {name: line_through(range(PARTS), _medians(steps, value))[0] for name, value in _PHASES}
    return max(slopes, key=lambda name: slopes[name])


def _waits(step: StepRecord) -> float:
    """Seconds in the phases of _WAITS."""
    return step.data_wait + step.loader_start + step.save + step.evaluation


def _medians(steps: Sequence[StepRecord], value: Callable[[StepRecord], float]) -> list[float]:
    """The median of each of PARTS equal parts of the steps: a burst now and then does not move it."""
    bounds = [len(steps) * part // PARTS for part in range(PARTS + 1)]
    parts = [sorted(value(step) for step in steps[start:end]) for start, end in pairwise(bounds)]
    return [part[len(part) // 2] for part in parts]


def _rises(medians: Sequence[float], fit: float = FIT) -> bool:
    """Whether they lie on a rising line, whose later half rises as well."""
    slope, fits = line_through(range(PARTS), medians)
    late, _ = line_through(range(PARTS // 2), medians[-(PARTS // 2) :])
    return slope > 0 and fits >= fit and late > 0.3 * slope


def _shifted(steps: Sequence[StepRecord], value: Callable[[StepRecord], float]) -> bool:
    """Whether the last third is slower than the first as a whole, not only at its slowest steps."""
    third = len(steps) // 3
    before = sorted(value(step) for step in steps[:third])
    after = sorted(value(step) for step in steps[-third:])
    return after[third // 4] > before[third // 2] and after[third // 2] > before[3 * third // 4]


def _longer_batches(steps: Sequence[StepRecord]) -> bool:
    """Whether later steps simply get more to do: more samples or longer sequences."""
    for counts in ([step.samples for step in steps], [step.tokens for step in steps]):
        known = [float(one) for one in counts if one is not None]
        if len(known) == len(steps):
            third = len(known) // 3
            if sum(known[-third:]) > 1.02 * sum(known[:third]):
                return True
    return False


def _lines(snapshot: Snapshot, phase: str) -> Lines:
    """What runs in the phase that grows, on its heaviest line; in the model's phases all of it."""
    ledger_phase = {"data_wait": "data", "outside": "host"}.get(phase, phase)
    lines = main_lines(snapshot, lambda entry: entry.phase == ledger_phase)
    if ledger_phase != "host" or not lines.where:
        return lines
    first = lines.where[0]
    return main_lines(
        snapshot, lambda entry: entry.phase == "host" and (entry.file, entry.line) == (first.file, first.line)
    )


def _verdict(snapshot: Snapshot, growth: Growth, lines: Lines) -> Verdict:
    explained = growth.phase == "outside" and lines.share > growth.part
    share = min(0.97, max(growth.part, lines.share if explained else 0.0))
    severity: Severity = "critical" if growth.part >= CRITICAL_SHARE and lines.where else "warning"
    place = f" ({short_place(lines.where[0].file, lines.where[0].line)})" if lines.where else ""
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=confidence(growth.part > 0.1, growth.seconds >= LASTING, base=0.5, steps=growth.steps),
        title=f"steps get slower: {percent(growth.last / growth.first - 1.0)} in the last {duration(growth.seconds)}",
        where=lines.where,
        evidence=(
            f"{duration(growth.first)} → {duration(growth.last)} a step over {growth.steps} steps"
            f" ({duration(growth.seconds)}), a steady rise: {duration(growth.rate * 1000)} more per 1000 steps",
            f"the time grows in: {growth.phase.replace('_', ' ')}{place}",
            NOW,
        ),
        fixes=_fixes(place, share),
    )


RULE = Rule(ID, judge, BAND)
