"""step-time-growth: every step takes a little longer than the one before."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median_high

import msgspec

from aitop.diagnosis.causes.optimizer import slowed_by_denormals
from aitop.diagnosis.device import on_gpu
from aitop.diagnosis.evidence import (
    Lines,
    function_of,
    lines_of,
    main_lines,
    main_stacks,
    samples_by_window,
    short_place,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import gradual, in_parts, line_through, mean_of
from aitop.diagnosis.what_if import fix, without
from aitop.model.phases import MEASURED, PHASE_WORDS, Phase
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent
from aitop.model.verdict import Fix, Where

# The steps are divided into this number of parts of equal time, and a line is fitted through their medians.
PARTS = 8
MIN_STEPS, MIN_SECONDS = 16, 4.0
# More steps tell no more of a trend, but cost CPU.
MOST_STEPS = 512
# The least growth over the steps seen; IF_CROWDED times as much where other programs take the cores.
LEAST_GROWTH, IF_CROWDED = 0.12, 2.5
# Seconds for which growth has to last, however large it is. The phases in DRIFTS need longer: a wait for others drifts
# by itself, and so does the update of the parameters, with the memory bandwidth that other programs leave.
LASTING, LASTING_DRIFT = 8.0, 25.0
DRIFTS: tuple[Phase, ...] = ("data", "optimizer")
# The line must explain at least FIT of the variance. A run that waits for cores for less than CALM of its time has
# them to itself.
FIT, CALM = 0.7, 0.1
# Growth claims the lines of its phase if it is at least this part of their share.
EXPLAINS = 0.3
# A phase is compared with the rest of the step only if each is at least this share of it.
LEAST_PART = 0.1
# If the machine gets slower, work that is always the same rises (relatively) by at least this part of the rise of the
# whole step. In six recordings of runs that grow, it rose by at most 0.26 of that: what grows takes caches from it.
SLOWED = 0.5
# A line grows if its share of the samples rises over SHARE_PARTS parts by at least SURE_ERRORS standard errors, by
# LEAST_RISE, and by the factor LEAST_RATIO; and that of its whole function by at least the part WITH_FUNCTION of that.
WITH_FUNCTION = 0.5
SHARE_PARTS, SURE_ERRORS, LEAST_RISE, LEAST_RATIO = 6, 3.0, 0.08, 1.3
LEAST_SAMPLES = 200
# The gain is uncertain: the run is fixed later than the prediction is read, and how long it will go on is not known.
NOW = "the predicted gain is that of this moment: it grows with every step, so how large it will be is not known"

_PHASES: dict[Phase, Callable[[StepRecord], float]] = {
    **{phase.key: phase.seconds for phase in MEASURED if phase.key not in ("transfer", "exchange")},
    "host": lambda step: max(0.0, step.outside - step.save - step.evaluation),
}
# Phases that are left out when the growth of another phase is measured by the rest of the step.
_WAITS: tuple[Phase, ...] = ("data", "save", "evaluation")


class Growth(msgspec.Struct, frozen=True):
    """The rise of step time from `first` to `last` seconds (of CPU time, if steps run on the CPU and it was measured).

    `steps` and `seconds` say over how many steps and how long. `phase` is the one that grows.
    """

    first: float
    last: float
    steps: int
    seconds: float
    phase: Phase

    @property
    def part(self) -> float:
        """The part (0..1) of a step at the end that was not there at the start."""
        return (self.last - self.first) / self.last


@rule("step-time-growth", 1.0, 0.6)
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on steps that get slower; if step times do not show it, on a line whose share of the time grows."""
    if snapshot.serving is not None and snapshot.kind != "training":
        return "how long a server's steps take follows what is asked of it"
    steps = snapshot.steps.spread if snapshot.steps else ()
    if not steps:
        return _of_stacks(snapshot)
    seconds = steps[-1].end - steps[0].end
    if len(steps) < MIN_STEPS or seconds < MIN_SECONDS:
        return f"a trend needs {MIN_STEPS} steps in {MIN_SECONDS:.0f} s, {len(steps)} so far"
    calm = _calm(snapshot)
    growth = growth_of(steps, device=on_gpu(snapshot), calm=calm)
    if growth is None:
        sampled = _of_stacks(snapshot)
        return sampled if isinstance(sampled, Explanation) else None
    if growth.phase == "optimizer" and slowed_by_denormals(snapshot):
        # optimizer-bound says why, and how long the update would take without denormal numbers.
        return None
    if seconds < (LASTING_DRIFT if growth.phase in DRIFTS else LASTING):
        sampled = _of_stacks(snapshot)
        not_yet = f"steps got slower for {seconds:.0f} s: whether it goes on is not known yet"
        return sampled if isinstance(sampled, Explanation) else not_yet
    return _of_steps(snapshot, growth, calm)


def _calm(snapshot: Snapshot) -> bool:
    """Whether the main thread hardly waits for a core, so that no shortage of cores makes steps longer."""
    return (mean_of(snapshot, "run_delay") or 0.0) < CALM


def _of_steps(snapshot: Snapshot, growth: Growth, calm: bool) -> Explanation:
    lines = _lines(snapshot, growth.phase)
    host = growth.phase == "host"
    sampled = host and lines.share > growth.part
    share = min(0.97, lines.share if sampled else growth.part)
    place = f" ({short_place(lines.where[0])})" if lines.where else ""
    each = (growth.last - growth.first) / growth.steps
    return Explanation(
        share=share,
        # A rise that the hook's clock measured is surer than the samples of its lines.
        saved=without(share, lines.entries if sampled else ()),
        # What grows explains its line; a small drift of a large phase does not explain the phase.
        claims=None if host or growth.part >= EXPLAINS * lines.share else (),
        level=growth.part / (LEAST_GROWTH * (1.0 if calm else IF_CROWDED)),
        signals=(growth.part > 0.1, bool(lines.where)),
        title=f"steps get slower: {percent(growth.last / growth.first - 1.0)} in the last {duration(growth.seconds)}",
        lines=lines,
        evidence=(
            f"{duration(growth.first)} → {duration(growth.last)} a step over {growth.steps} steps"
            f" ({duration(growth.seconds)}), a steady rise: {duration(each * 1000)} more per 1000 steps",
            f"the time grows in: {PHASE_WORDS.get(growth.phase, growth.phase)}{place}",
            NOW,
        ),
        fixes=(_fix(place, share),),
    )


def _of_stacks(snapshot: Snapshot) -> Explanation | str | None:
    """A line outside of the model that takes more and more of the time, window by window of the stacks."""
    process, stacks = main_stacks(snapshot), snapshot.stacks
    if process is None or stacks is None or stacks.seconds < LASTING or sum(process.by_window) < LEAST_SAMPLES:
        return f"a trend needs {LASTING:.0f} s of stacks, or step times from the hook"
    host = main_lines(snapshot, lambda entry: entry.phase == "host" and entry.where is not None)
    for place in host.where:
        lines = _at(snapshot, place)
        ends = rising_share(samples_by_window(lines.entries), process.by_window)
        if ends is None:
            continue
        # In quick code, samples may move from one line to its neighbours though none of them takes longer.
        own = {function_of(entry) for entry in lines.entries}
        around = lines_of(entry for entry in host.entries if function_of(entry) in own)
        parts = [count / number for count, number in _parts(samples_by_window(around.entries), process.by_window)]
        slope, _ = line_through(range(SHARE_PARTS), parts)
        if slope * (SHARE_PARTS - 1) < WITH_FUNCTION * (ends[1] - ends[0]):
            continue
        (first, last), share, at = ends, min(0.97, lines.share), short_place(place)
        rose = f"{percent(first)} → {percent(last)} in {duration(stacks.seconds)}"
        return Explanation(
            severity="warning",
            share=share,
            # Other programs that take cores and caches slow some lines down more than others.
            level=(last - first) / (LEAST_RISE * (1.0 if _calm(snapshot) else IF_CROWDED)),
            signals=(last > 2 * first,),
            title=f"{at} takes more and more of the time: {rose}",
            lines=lines,
            evidence=(f"its share of the stack samples rose steadily from {percent(first)} to {percent(last)}", NOW),
            fixes=(_fix(f" ({at})", share),),
        )
    return None


def _at(snapshot: Snapshot, place: Where) -> Lines:
    """The entries of host code on one line."""
    return main_lines(snapshot, lambda entry: entry.phase == "host" and entry.at == place.at)


def _fix(place: str, share: float) -> Fix:
    text = (
        f"look for what gets longer at every step{place}: a list that is never cleared, a graph that is kept (detach "
        "what is carried on), a file read anew"
    )
    return fix(text, share)


def _parts(counts: Sequence[int], samples: Sequence[int]) -> list[tuple[int, int]]:
    """The counts and samples of equal parts of the time."""
    total, seen = sum(samples), 0
    parts = [(0, 0)] * SHARE_PARTS
    for count, number in zip(counts, samples, strict=True):
        index = min(SHARE_PARTS - 1, SHARE_PARTS * (2 * seen + number) // (2 * total)) if total else 0
        parts[index] = parts[index][0] + count, parts[index][1] + number
        seen += number
    return parts


def rising_share(counts: Sequence[int], samples: Sequence[int]) -> tuple[float, float] | None:
    """The share of samples at the start and the end of a steady rise; None where it does not surely rise.

    A straight line is fitted through the shares of equal parts of the time. Shares that scatter from part to part more
    than chance allows, as those of bursts do, need a steeper rise.
    """
    parts, total = _parts(counts, samples), sum(samples)
    mean = sum(counts) / total if total else 0.0
    if any(number == 0 for _, number in parts) or not 0.0 < mean < 1.0:
        return None
    shares = [count / number for count, number in parts]
    slope, _ = line_through(range(SHARE_PARTS), shares)
    middle = (SHARE_PARTS - 1) / 2
    level = sum(shares) / SHARE_PARTS
    # The variance of a part's share: that of sampling, or that between neighbouring parts if it is larger. Distances
    # from the line would count a rise that levels off as scatter: a share of 90 % has little room to grow.
    chance = mean * (1.0 - mean) * SHARE_PARTS / total
    scatter = sum((after - before - slope) ** 2 for before, after in pairwise(shares)) / (2 * (SHARE_PARTS - 1))
    spread = sum((index - middle) ** 2 for index in range(SHARE_PARTS))
    first, last = max(0.0, level - slope * middle), min(1.0, level + slope * middle)
    surely = slope / math.sqrt(max(chance, scatter) / spread) >= SURE_ERRORS
    return (first, last) if surely and last - first >= LEAST_RISE and last >= LEAST_RATIO * first else None


def growth_of(every: Sequence[StepRecord], *, device: bool, calm: bool) -> Growth | None:
    """The rise of step time over these steps; None where it is not steady, or not of the run's own making.

    `device`: they run on a GPU. `calm`: the main thread hardly waits for a core.
    """
    if _longer_batches(every):
        return None
    steps = every[:: math.ceil(len(every) / MOST_STEPS) or 1]
    rises = _of_phases(steps)
    phase: Phase = max(rises, key=lambda name: rises[name], default="host")
    # CPU time, if there is enough of it: other programs make steps longer, but not their CPU time. Of fast steps, only
    # some are timed.
    timed = [] if device else [step for step in steps if step.cpu is not None]
    on_core = len(timed) >= MIN_STEPS
    clock = _medians([step.seconds for step in steps])
    medians = _medians([step.cpu or 0.0 for step in timed]) if on_core else clock
    # By the wall clock alone, a machine that gets slower looks like growth. So it counts only if there are cores
    # enough and no phase can be compared with the rest of the step.
    if (on_core or device or (calm and not rises)) and _is_steady(medians) and not _is_the_machine(steps):
        rise = _slope(medians) * (PARTS - 1)
    elif rises.get(phase):
        rise, medians = rises[phase], clock
    else:
        return None
    middle = sum(medians) / PARTS
    last = middle + rise / 2
    if not rises.get(phase):
        # No phase rises by the measure of the others: take the one that rises most by the clock.
        phase = max(_PHASES, key=lambda name: _slope(_medians(list(map(_PHASES[name], steps)))))
    return Growth(
        max(middle - rise / 2, 0.1 * last),
        last,
        every[-1].index - every[0].index + 1,
        every[-1].end - every[0].end,
        phase,
    )


def _of_phases(steps: Sequence[StepRecord]) -> dict[Phase, float]:
    """Seconds by which each phase rose relative to the other phases of the same steps; 0 if the rise is not steady.

    If other programs slow the machine down, all phases get longer alike and keep their proportions. Phases that are too
    short to compare (LEAST_PART) are left out.
    """
    whole = sum(_medians([step.seconds for step in steps]))
    working = [_working(step) for step in steps]
    rises: dict[Phase, float] = {}
    for name, value in _PHASES.items():
        values = list(map(value, steps))
        own = _medians(values)
        if sum(own) < LEAST_PART * whole:
            continue
        rest = _medians(working if name in _WAITS else list(map(operator.sub, working, values)))
        if sum(rest) < LEAST_PART * whole or min(rest) <= 0:
            continue
        ratios = [part / other for part, other in zip(own, rest, strict=True)]
        steady = _is_steady(ratios) and _rises(own, fit=0.3)
        rises[name] = _slope(ratios) * (PARTS - 1) * sum(rest) / PARTS if steady else 0.0
    return rises


def _is_the_machine(steps: Sequence[StepRecord]) -> bool:
    """Whether the machine gets slower: the update of the parameters, always the same work, rises like the whole step.

    If no update is measured, every phase that works has to. The update comes first because other programs that fill the
    caches of a shared machine do not slow all phases down alike.
    """
    whole = _medians([_working(step) for step in steps])
    phases = {name: _medians(list(map(value, steps))) for name, value in _PHASES.items() if name not in _WAITS}
    there = {name: medians for name, medians in phases.items() if sum(medians) > 0.0}
    same = [there["optimizer"]] if "optimizer" in there else list(there.values())
    return len(there) > 1 and all(_rise(medians) > SLOWED * _rise(whole) for medians in same)


def _rise(medians: Sequence[float]) -> float:
    """By how much a line through the medians rises, relative to their mean."""
    return _slope(medians) * PARTS * (PARTS - 1) / sum(medians)


def _working(step: StepRecord) -> float:
    """Seconds of a step outside of the phases of _WAITS."""
    return step.seconds - step.loading - step.save - step.evaluation


def _medians(values: Sequence[float]) -> list[float]:
    """The median of each of PARTS equal parts: a burst now and then does not move it."""
    return [median_high(part) for part in in_parts(values, PARTS)]


def _slope(medians: Sequence[float]) -> float:
    return line_through(range(len(medians)), medians)[0]


def _rises(medians: Sequence[float], fit: float = FIT) -> bool:
    """Whether the medians lie on a rising line, and those of the later half rise as well."""
    slope, fits = line_through(range(PARTS), medians)
    return slope > 0 and fits >= fit and _slope(medians[-(PARTS // 2) :]) > 0.3 * slope


def _is_steady(medians: Sequence[float]) -> bool:
    """Whether the medians rise all the way, rather than once from one level to another.

    A single change of level comes from the end of the warm-up, or from a change in the load of the machine.
    """
    return _rises(medians) and gradual(medians, range(1, PARTS))


def _longer_batches(steps: Sequence[StepRecord]) -> bool:
    """Whether later steps simply have more work: more samples, longer sequences or more calls of the model."""
    third = len(steps) // 3
    calls = [step.forwards + step.no_grad_forwards for step in steps]
    for counts in ([step.samples for step in steps], [step.tokens for step in steps], calls):
        known = [count for count in counts if count is not None]
        if len(known) == len(steps) and sum(known[-third:]) > 1.02 * sum(known[:third]):
            return True
    return False


def _lines(snapshot: Snapshot, phase: Phase) -> Lines:
    """The entries of the phase that grows; of host code only those on its heaviest line."""
    lines = main_lines(snapshot, lambda entry: entry.phase == phase)
    return _at(snapshot, lines.where[0]) if phase == "host" and lines.where else lines
