"""step-time-growth: every step takes a little longer than the one before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aitop.diagnosis.evidence import (
    UNPROVEN,
    Lines,
    confidence,
    enough,
    main_lines,
    mean_of,
    on_gpu,
    places,
    records,
)
from aitop.diagnosis.growth_cause import Cause, kept_graph, over_all, proven
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.trend import line_through
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict, Where

ID = "step-time-growth"
BAND = Band(enter=1.0, leave=0.6)
PARTS = 8
MIN_STEPS = 16
MIN_SECONDS = 4.0
# With a line that explains it, and without one: the least growth over what was seen.
EXPLAINED, UNEXPLAINED = 0.04, 0.2
# So long (seconds) a rise without a line that explains it has to last; a wait for others drifts by itself.
LASTING, LASTING_WAIT = 8.0, 25.0
FIT = 0.7
# A line that goes over all of what grows and takes so much of a step costs more at every step, measured or not.
HEAVY = 0.12
CRITICAL_SHARE = 0.3
# Phases of less, or beside less, than this part of a step are no measure.
LEAST_PART = 0.1
CALM = 0.1
# More steps than that tell no more of a trend, but take the time that is looked at them.
MOST_STEPS = 512
SCATTER = 2654435761
# A rise that would be larger than so many times what else moves step times does not hide among it.
NOISE = 1.5
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
        return _read(snapshot) or Abstention(id=ID, reason="only the hook times steps")
    seconds = steps[-1].end - steps[0].end
    if len(steps) < MIN_STEPS or seconds < MIN_SECONDS:
        return Abstention(id=ID, reason=f"a trend needs {MIN_STEPS} steps in {MIN_SECONDS:.0f} s, {len(steps)} so far")
    calm = (mean_of(snapshot, "run_delay") or 0.0) < CALM
    growth = growth_of(steps, device=on_gpu(snapshot), calm=calm)
    if growth is None:
        return _read(snapshot, steps)
    cause = _cause(snapshot, growth.phase)
    lasting = LASTING_WAIT if growth.phase == "data_wait" else LASTING
    if not cause.sites and growth.seconds < lasting:
        told = f"steps got slower for {growth.seconds:.0f} s ({growth.phase.replace('_', ' ')}), which no line explains"
        return Abstention(id=ID, reason=f"{told}: whether it goes on is not known yet")
    needed = EXPLAINED if cause.sites else UNEXPLAINED
    return Finding(_verdict(snapshot, growth, cause), level=growth.part / needed)


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
        rest = _medians(steps, lambda step, value=value: max(0.0, step.seconds - value(step) - _waits(step)))  # type: ignore[misc]
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


def _cause(snapshot: Snapshot, phase: str) -> Cause:
    """The lines of the growing phase that go over something that grows; else the sites that keep a graph alive."""
    over = over_all(snapshot, snapshot.growth_sites)
    if over.lines.share >= 0.5 * EXPLAINED:
        return over
    keeping = tuple(site for site in snapshot.growth_sites if site.keeps_graph)
    if phase in ("backward", "forward") and keeping:
        return Cause(Lines(0.0, ()), keeping)
    return Cause(main_lines(snapshot, lambda line: line.phase == phase), ())


def _read(snapshot: Snapshot, steps: Sequence[StepRecord] = ()) -> Finding | None:
    """What code and stacks tell where step times do not, or not yet; None where they contradict it."""
    kept = kept_graph(snapshot)
    if kept is not None:
        share, cause = kept
        title = f"{percent(share)} of the time walks back through the graphs of earlier steps"
        told = "the backward takes many times as long as the forward, and keeps its graph (retain_graph)"
    else:
        cause = over_all(snapshot, proven(snapshot))
        share = cause.lines.share
        title = f"{percent(share)} of the time goes over something that every step makes longer"
        told = ""
    if share < 0.5 * HEAVY or not _may_hide(snapshot, steps, share):
        return None
    site = next(iter(cause.sites), None)
    evidence = [f"{_place(site.file, site.line)} adds to it at every step"] if site is not None else []
    if told:
        evidence.append(told)
    evidence.append(NOW)
    if site is not None and site.unless is not None and not kept:
        evidence.append(f"unless line {site.unless} says so, nothing shortens it; the run's memory rises with it")
    evidence.append(
        "read from the code and the stacks: " + ("no rise shows yet" if steps else "only the hook times steps")
    )
    return Finding(
        Verdict(
            id=ID,
            severity="warning",
            share=round(min(0.97, share), 4),
            speedup=round(without(min(0.97, share)), 3),
            confidence=UNPROVEN,
            title=title,
            where=_where(snapshot, cause),
            evidence=tuple(evidence),
            fixes=_fixes(cause, min(0.97, share)),
        ),
        level=share / HEAVY,
    )


def _may_hide(snapshot: Snapshot, steps: Sequence[StepRecord], share: float) -> bool:
    """Whether what grew since the run began could have grown on over these steps without being seen in their times.

    What takes `share` after so long takes that much more in proportion to the time since.
    """
    if not steps or snapshot.target.started is None:
        return True
    age = snapshot.wall - snapshot.target.started
    expected = share * (steps[-1].end - steps[0].end) / age if age > 0 else 0.0
    medians = _medians(steps, lambda step: step.seconds)
    spread = (max(medians) - min(medians)) * PARTS / sum(medians)
    return expected < NOISE * spread


def _verdict(snapshot: Snapshot, growth: Growth, cause: Cause) -> Verdict:
    share = min(0.97, max(growth.part, cause.lines.share if cause.sites else 0.0))
    severity: Severity = "critical" if share >= CRITICAL_SHARE and cause.sites and growth.part > 0.1 else "warning"
    per_thousand = growth.rate * 1000
    evidence = [
        f"{duration(growth.first)} → {duration(growth.last)} a step over {growth.steps} steps"
        f" ({duration(growth.seconds)}), a steady rise: {duration(per_thousand)} more per 1000 steps",
        f"the time grows in: {growth.phase.replace('_', ' ')}",
    ]
    if cause.sites:
        evidence.append(f"{_place(cause.sites[0].file, cause.sites[0].line)} makes something longer at every step")
    evidence.append(NOW)
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=min(UNPROVEN, confidence(bool(cause.sites), growth.part > 0.1, steps=growth.steps, share=share)),
        title=f"steps get slower: {percent(growth.last / growth.first - 1.0)} in the last {duration(growth.seconds)}",
        where=_where(snapshot, cause),
        evidence=tuple(evidence),
        fixes=_fixes(cause, share),
    )


def _where(snapshot: Snapshot, cause: Cause) -> tuple[Where, ...]:
    """What takes the time first, then what makes it grow."""
    pid = snapshot.steps.pid if snapshot.steps and snapshot.steps.pid else snapshot.target.pid
    sites = [Where(pid=pid, file=one.file, line=one.line, function=one.function, text=one.text) for one in cause.sites]
    found: dict[tuple[str, int], Where] = {}
    for place in (*places(cause.lines.lines), *sites):
        found.setdefault((place.file, place.line), place)
    return tuple(found.values())[:4]


def _fixes(cause: Cause, share: float) -> tuple[Fix, ...]:
    if not cause.sites:
        return (Fix(text="look for what is longer at every step: a list, a graph that is kept, a file reread"),)
    site = cause.sites[0]
    place = _place(site.file, site.line)
    if site.keeps_graph and not cause.lines.lines:
        text = f"{place} keeps the graph of every step: detach() what is carried on, without retain_graph=True"
    else:
        text = f"keep a running sum or a bounded window instead of all that {place} collects"
    return (Fix(text=text, speedup=round(without(share), 2)),)


def _place(file: str, line: int) -> str:
    return f"{file.rsplit('/', 1)[-1]}:{line}"


RULE = Rule(ID, judge, BAND)
