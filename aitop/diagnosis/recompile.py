"""recompile: torch.compile keeps compiling, or breaks its graph, long after the run has warmed up."""

from __future__ import annotations

from itertools import pairwise

from aitop.diagnosis.device_gaps import short_place
from aitop.diagnosis.evidence import (
    Lines,
    by_samples,
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
# Compiling at the start is as it should be, and again for evaluation and for a smaller last batch: it must be seen in
# so many windows that show something else, too, for so long, and still go on; or be counted more often than that.
MIN_WINDOWS = 3
MIN_SECONDS = 5.0
STILL_SECONDS = 5.0
MIN_RISES = 3
STEPPING = 0.02
SEEN_SECONDS = 30.0


def judge(snapshot: Snapshot) -> Judgement:
    """Whether compiling goes on while steps are made."""
    compiling = main_lines(snapshot, lambda line: line.activity == "compile")
    rises = _rises(snapshot.series.get("recompiles"), snapshot.time)
    if not compiling.lines and not rises:
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    lasting = _lasting(snapshot.series.get("compiling"), snapshot.time)
    if len(rises) < MIN_RISES and not (lasting and _steps_beside(snapshot)):
        return Abstention(id=ID, reason="torch.compile is at work; whether it goes on after warm-up is not known")
    process = main_stacks(snapshot)
    share = by_samples(compiling.share, process.samples) if process is not None else compiling.share
    if share < BAND.leave:
        return None
    return Finding(_verdict(snapshot, share, compiling, rises), level=share)


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


def _lasting(series: Series | None, now: float) -> bool:
    """Whether compiling takes turns with other work in several windows of stacks."""
    if series is None:
        return False
    seen = [
        time
        for time, value in zip(series.times, series.values, strict=True)
        if value and value < 1.0 and time >= now - SEEN_SECONDS
    ]
    long = len(seen) >= MIN_WINDOWS and seen[-1] - seen[0] >= MIN_SECONDS
    return long and seen[-1] >= now - STILL_SECONDS


def _steps_beside(snapshot: Snapshot) -> bool:
    """Whether steps are made between compilations: a forward pass alone may be one long compilation."""
    if len(records(snapshot)) >= 20:
        return True
    phases = snapshot.steps.phases if snapshot.steps else None
    if phases is None:
        return False
    running = main_lines(snapshot, lambda line: line.phase == "forward" and line.activity != "compile").share
    return (phases.backward or 0.0) + (phases.optimizer or 0.0) + running >= STEPPING


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
        confidence=confidence(*signals, base=0.5, steps=len(records(snapshot)), share=share),
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
