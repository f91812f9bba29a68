"""gc-stall: the step stands still while Python's garbage collector walks over all objects, asked to or by itself."""

from __future__ import annotations

from aitop.diagnosis.evidence import (
    UNPROVEN,
    Lines,
    confidence,
    enough,
    host_limit,
    host_unproven,
    main_lines,
    part,
    records,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "gc-stall"
BAND = Band(enter=0.05, leave=0.03)
CRITICAL_SHARE = 0.3


def judge(snapshot: Snapshot) -> Judgement:
    """Time in the collector, measured in the process, or on a line that asks for a collection."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    asked = main_lines(snapshot, lambda entry: entry.activity == "collect" and entry.where is not None)
    steps = records(snapshot)
    measured = part(snapshot, "gc")
    share = min(max(measured or 0.0, asked.share), host_limit(snapshot))
    if share < BAND.leave:
        # Collections that nobody asked for show on no stack.
        return None if measured is not None else Abstention(id=ID, reason="only the hook sees the collector at work")
    explicit = asked.share >= 0.3 * share
    signals = (measured is not None and measured >= BAND.leave, explicit)
    unproven = host_unproven(snapshot)
    severity: Severity = "critical" if share >= CRITICAL_SHARE and all(signals) and not unproven else "warning"
    sure = confidence(*signals, base=0.6, steps=len(steps))
    return Finding(
        Verdict(
            id=ID,
            severity=severity,
            share=round(share, 4),
            speedup=round(without(share), 3),
            confidence=min(sure, UNPROVEN) if unproven else sure,
            title=f"{percent(share)} of the time goes into garbage collection",
            where=asked.where if explicit else (),
            evidence=_evidence(snapshot, asked, measured),
            fixes=_explicit(asked, share) if explicit else _automatic(share),
        ),
        level=share,
        claims=main_lines(snapshot, lambda entry: entry.activity == "collect").entries,
    )


def _evidence(snapshot: Snapshot, asked: Lines, measured: float | None) -> tuple[str, ...]:
    steps = records(snapshot)
    pauses = sorted(step.gc for step in steps if step.gc > 0)
    found = []
    if pauses and measured:
        told = f"pauses in {len(pauses)} of {len(steps)} steps, {duration(pauses[len(pauses) // 2])} each"
        found.append(f"{told}, {percent(measured)} of step time (measured in the process)")
    if asked.lines:
        found.append(f"{percent(asked.share)} of stack samples stand at {_place(asked)}")
    else:
        found.append("no line asks for it: the collector starts by itself, and walks over every object that is alive")
    return tuple(found)


def _explicit(asked: Lines, share: float) -> tuple[Fix, ...]:
    gain = without(share)
    return (
        Fix(text=f"leave out the collection at {_place(asked)}: memory is reused without it", speedup=round(gain, 2)),
        Fix(text=f"call it every 100 steps instead ({_place(asked)})", speedup=round(gain / without(share / 100), 2)),
    )


def _automatic(share: float) -> tuple[Fix, ...]:
    return (
        Fix(
            text="gc.collect(); gc.freeze() once data and model are built: they are never walked over again",
            speedup=round(without(0.9 * share), 2),
        ),
        Fix(text="gc.set_threshold(50_000, 50, 50), or arrays instead of lists and dicts of many small objects"),
    )


def _place(lines: Lines) -> str:
    first = lines.where[0]
    return f"{first.file.rsplit('/', 1)[-1]}:{first.line}"


RULE = Rule(ID, judge, BAND)
