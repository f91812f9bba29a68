"""step-time-growth: every step takes a little longer than the one before."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aitop.diagnosis.evidence import (
    Lines,
    confidence,
    enough,
    main_lines,
    mean_of,
    on_gpu,
    places,
    records,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.trend import line_through
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import GrowthSite, HotLine, Snapshot
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
FIT = 0.7
# A line that goes over all of what grows and takes so much of a step costs more at every step, measured or not.
HEAVY = 0.12
CRITICAL_SHARE = 0.3
# Phases of less, or beside less, than this part of a step are no measure.
LEAST_PART = 0.1
CALM = 0.1

_GROWN = re.compile(r"^([\w.]+)(?:\.(?:append|appendleft|extend|insert)\(|\s*\+=|\[[^=]*\]\s*=(?!=)|\s*=(?!=))")
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


@dataclass(frozen=True)
class Cause:
    """Lines that take the time, and lines that make longer what they go over."""

    lines: Lines
    sites: tuple[GrowthSite, ...]


def judge(snapshot: Snapshot) -> Judgement:
    """Whether steps get slower, with the line; without step times, whether a line goes over all of what only grows."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    steps = records(snapshot)
    if not steps:
        return _unmeasured(snapshot)
    seconds = steps[-1].end - steps[0].end
    if len(steps) < MIN_STEPS or seconds < MIN_SECONDS:
        return Abstention(id=ID, reason=f"a trend needs {MIN_STEPS} steps in {MIN_SECONDS:.0f} s, {len(steps)} so far")
    calm = (mean_of(snapshot, "run_delay") or 0.0) < CALM
    growth = growth_of(steps, device=on_gpu(snapshot), calm=calm)
    if growth is None:
        return None
    cause = _cause(snapshot, growth.phase)
    needed = EXPLAINED if cause.sites else UNEXPLAINED
    return Finding(_verdict(snapshot, growth, cause), level=growth.part / needed)


def growth_of(steps: Sequence[StepRecord], *, device: bool, calm: bool = True) -> Growth | None:
    """The rise of step time over these steps; None where it is not a steady one of the run's own making.

    `device`: they run on a GPU. `calm`: nobody else was seen to take the cores.
    """
    if _longer_batches(steps):
        return None
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
    elif phase and rises[phase] > 0:
        rise = rises[phase]
    else:
        return None
    first, last = middle - rise / 2, middle + rise / 2
    if first <= 0:
        first = 0.1 * last
    return Growth(
        first=first,
        last=last,
        steps=len(steps),
        seconds=steps[-1].end - steps[0].end,
        rate=(last - first) / len(steps),
        phase=phase or "outside",
    )


def _of_phases(steps: Sequence[StepRecord]) -> dict[str, float]:
    """Seconds by which each phase rose, measured by the other phases of the same steps; 0 where it is no steady rise.

    A machine that others use slows all phases down alike: their proportions stay.
    """
    whole = _medians(steps, lambda step: step.seconds)
    found = {}
    for name, value in _PHASES:
        own = _medians(steps, value)
        rest = _medians(steps, lambda step, value=value: max(0.0, step.seconds - value(step) - _waits(step)))  # type: ignore[misc]
        if sum(own) < LEAST_PART * sum(whole) or sum(rest) < LEAST_PART * sum(whole) or min(rest) <= 0:
            continue
        ratios = [one / other for one, other in zip(own, rest, strict=True)]
        steady = _rises(ratios) and _rises(own, fit=0.3)
        slope, _ = line_through(range(PARTS), ratios)
        found[name] = slope * (PARTS - 1) * sum(rest) / PARTS if steady else 0.0
    return found


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
    over = main_lines(snapshot, lambda line: bool(_gone_over(line, snapshot.growth_sites)))
    if over.share >= 0.5 * EXPLAINED:
        sites = [site for line in over.lines for site in _gone_over(line, snapshot.growth_sites)]
        return Cause(over, tuple(dict.fromkeys(sites)))
    keeping = tuple(site for site in snapshot.growth_sites if site.keeps_graph)
    if phase in ("backward", "forward") and keeping:
        return Cause(Lines(0.0, ()), keeping)
    return Cause(main_lines(snapshot, lambda line: line.phase == phase), ())


def _gone_over(line: HotLine, sites: Sequence[GrowthSite]) -> list[GrowthSite]:
    """The sites whose grown thing this line, or the line that calls it, takes as a whole."""
    texts = [line.text, *(frame.text for frame in line.via[-2:])]
    return [site for site in sites if any(_takes_all(text, site) for text in texts if text)]


def _takes_all(text: str, site: GrowthSite) -> bool:
    match = _GROWN.match(site.text)
    if match is None or text == site.text:
        return False
    # All of it: not one element, not a slice, not its length, nor a method of it.
    whole = rf"(?<![\w.])(?<!len\(){re.escape(match[1])}(?:\.(?:values|items|keys)\(\))?(?![\w.\[(]|\s*[-+*/]?=(?!=))"
    return re.search(whole, text) is not None


def _unmeasured(snapshot: Snapshot) -> Judgement:
    cause = _cause(snapshot, "")
    if not cause.sites or cause.lines.share < HEAVY:
        return Abstention(id=ID, reason="only the hook times steps")
    share = cause.lines.share
    return Finding(
        Verdict(
            id=ID,
            severity="warning",
            share=round(share, 4),
            speedup=round(without(share), 3),
            confidence=0.5,
            title=f"{percent(share)} of the time goes over something that every step makes longer",
            where=_where(snapshot, cause),
            evidence=(
                f"{_place(cause.sites[0].file, cause.sites[0].line)} adds to it at every step",
                "read from the code and the stacks: only the hook times steps",
            ),
            fixes=_fixes(cause, share),
        ),
        level=share / HEAVY,
    )


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
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        confidence=confidence(bool(cause.sites), growth.part > 0.1, steps=growth.steps, share=share),
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
        text = f"{place} keeps the graph of every step: detach() what is carried from step to step"
    else:
        text = f"keep a running sum or a bounded window instead of all that {place} collects"
    return (Fix(text=text, speedup=round(without(share), 2)),)


def _place(file: str, line: int) -> str:
    return f"{file.rsplit('/', 1)[-1]}:{line}"


RULE = Rule(ID, judge, BAND)
