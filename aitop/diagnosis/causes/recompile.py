"""recompile: torch.compile keeps compiling, or breaks its graph, long after the run has warmed up."""

from __future__ import annotations

from itertools import pairwise

from aitop.diagnosis.causes.device_gaps import short_place
from aitop.diagnosis.evidence import (
    Lines,
    confidence,
    enough,
    main_lines,
    main_stacks,
    records,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Series, Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "recompile"
CRITICAL_SHARE = 0.3
BAND = Band(enter=0.08, leave=0.05)
# Compiling at the start is as it should be, and again for evaluation and for a smaller last batch. It must take turns
# with steps in so many windows of stacks, and still go on; or be counted more often than that. Where steps are not
# counted, what is seen of their backward passes and updates stands for them, and one window more.
MIN_WINDOWS = 3
MIN_STEPS_BESIDE = 6
PART_OF_WINDOW = 0.05
STILL_SECONDS = 5.0
MIN_RISES = 3
STEPPING = 0.02
SEEN_SECONDS = 30.0


def judge(snapshot: Snapshot) -> Judgement:
    """Whether compiling goes on while steps are made."""
    compiling = main_lines(snapshot, lambda entry: entry.activity == "compile")
    rises = _rises(snapshot.series.get("recompiles"), snapshot.time)
    if not compiling.lines and not rises:
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    if len(rises) < MIN_RISES and not _lasting(snapshot):
        return Abstention(id=ID, reason="torch.compile is at work; whether it goes on after warm-up is not known")
    # Compiling makes so many objects that the collector starts by itself: that ends with it.
    collecting = main_lines(snapshot, lambda entry: entry.activity == "collect" and entry.where is None)
    share = compiling.share
    if share < BAND.leave:
        return None
    return Finding(
        _verdict(snapshot, share, compiling, rises), level=share, claims=(*compiling.entries, *collecting.entries)
    )


def _rises(series: Series | None, now: float) -> list[tuple[float, float]]:
    """When the counter of recompilations rose lately, and by how much."""
    if series is None:
        return []
    known = [(time, value) for time, value in zip(series.times, series.values, strict=True) if value is not None]
    return [
        (after[0], after[1] - before[1])
        for before, after in pairwise(known)
        if after[1] > before[1] and after[0] >= now - SEEN_SECONDS
    ]


def _lasting(snapshot: Snapshot) -> bool:
    """Whether compiling takes turns with steps in several windows of stacks, the newest among them."""
    compiling = _known(snapshot.series.get("compiling"), snapshot.time)
    begins = [compiling[0][0] - 1.0, *(time for time, _ in compiling)] if compiling else []
    seen = [(begin, until) for begin, (until, part) in zip(begins, compiling, strict=False) if part >= PART_OF_WINDOW]
    steps = [step.end for step in records(snapshot)]
    if steps:
        beside = [sum(begin < end <= until for end in steps) for begin, until in seen]
        enough_seen = sum(map(bool, beside)) >= MIN_WINDOWS and sum(beside) >= MIN_STEPS_BESIDE
    else:
        updating = dict(_known(snapshot.series.get("updating"), snapshot.time))
        enough_seen = sum(updating.get(until, 0.0) > 0.0 for _, until in seen) > MIN_WINDOWS
    return enough_seen and seen[-1][1] >= snapshot.time - STILL_SECONDS


def _known(series: Series | None, now: float) -> list[tuple[float, float]]:
    """Times and values of a series that were measured lately."""
    if series is None:
        return []
    return [
        (time, value)
        for time, value in zip(series.times, series.values, strict=True)
        if value is not None and time >= now - SEEN_SECONDS
    ]


def _verdict(snapshot: Snapshot, share: float, compiling: Lines, rises: list[tuple[float, float]]) -> Verdict:
    counted = int(sum(by for _, by in rises))
    signals = (len(rises) >= MIN_RISES, bool(compiling.lines), len(records(snapshot)) >= 20)
    severity: Severity = "critical" if share >= CRITICAL_SHARE and sum(signals) >= 2 else "warning"
    process = main_stacks(snapshot)
    samples = process.samples if process is not None else 0
    evidence = [f"{percent(compiling.share)} of {samples} stack samples are inside of the compiler"]
    facts = snapshot.facts
    if counted and rises:
        seconds = max(1.0, snapshot.time - rises[0][0])
        evidence.append(f"{counted} recompilations in the last {seconds:.0f} s")
    if facts is not None and facts.recompile_reasons:
        evidence.append(f"the newest: {facts.recompile_reasons[-1]}")
    if facts is not None and facts.graph_breaks:
        evidence.append(f"{facts.graph_breaks} graph breaks since the start")
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(min(0.99, share)), 3),
        confidence=confidence(*signals, base=0.5, steps=len(records(snapshot))),
        title=f"{percent(share)} of each step goes into compiling again what was compiled before",
        where=compiling.where,
        evidence=tuple(evidence),
        fixes=_fixes(snapshot, share, compiling),
    )


def _fixes(snapshot: Snapshot, share: float, compiling: Lines) -> tuple[Fix, ...]:
    first = compiling.where[0] if compiling.where else None
    at = f" at {short_place(first.file, first.line)}" if first is not None else ""
    gone = round(without(min(0.99, share)), 2)
    shapes = sorted({step.samples for step in records(snapshot) if step.samples})
    varying = f" (batches of {shapes[0]} to {shapes[-1]} were seen)" if len(shapes) > 1 else ""
    return (
        Fix(text=f"pad inputs to a few fixed shapes before the compiled call{at}{varying}", speedup=gone),
        Fix(
            text="torch._dynamo.mark_dynamic on the size that varies, or torch.compile(dynamic=True)",
            speedup=gone,
        ),
        Fix(
            text="pass Python numbers that change (step, rate) as tensors; TORCH_LOGS=recompiles names the guard",
            speedup=gone,
        ),
    )


RULE = Rule(ID, judge, BAND)
