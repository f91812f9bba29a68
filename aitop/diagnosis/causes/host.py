"""host-bound: host code on the critical path that no other cause explains, with its line. Asked last."""

from __future__ import annotations

from aitop.diagnosis.causes.device_gaps import short_place
from aitop.diagnosis.causes.requests import takes_request
from aitop.diagnosis.evidence import (
    MIN_SAMPLES,
    UNPROVEN,
    Lines,
    confidence,
    host_limit,
    host_unproven,
    main_lines,
    main_stacks,
    records,
    within_first,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ledger import Activity
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "host-bound"
BAND = Band(enter=0.15, leave=0.1)
CRITICAL_SHARE = 0.3
DOING: dict[Activity, str] = {
    "python": "runs Python",
    "native": "runs native code",
    "wait": "waits",
    "wait-lock": "waits for a lock",
    "wait-core": "waits for a core",
    "wait-disk": "waits for storage",
    "wait-network": "waits for the network",
    "wait-queue": "waits for another thread or process",
    "wait-child": "waits for a child process",
    "wait-device": "waits for the device",
    "sleep": "sleeps",
    "spawn": "starts processes",
    "collect": "collects garbage",
    "compile": "compiles",
}


def judge(snapshot: Snapshot) -> Judgement:
    """What is left of the host's time when every other cause has claimed its own."""
    process = main_stacks(snapshot)
    if process is None or process.samples < MIN_SAMPLES:
        return Abstention(id=ID, reason=f"{MIN_SAMPLES} stack samples are needed")
    serving = snapshot.kind == "inference"
    lines = main_lines(
        snapshot,
        lambda entry: (
            entry.phase in ("host", "environment")
            and entry.where is not None
            # Array operations between the model's call and its update are the loss.
            and not (entry.position == "within" and entry.work == "tensor")
            and not (serving and takes_request(entry))
        ),
    )
    share = min(lines.share, host_limit(snapshot), 0.99)
    if share < BAND.leave or not lines.where:
        return None
    return Finding(_verdict(snapshot, lines, share), level=share, claims=lines.entries)


def _verdict(snapshot: Snapshot, lines: Lines, share: float) -> Verdict:
    first = lines.where[0]
    steps = records(snapshot)
    # Without any phase of a step the line is all the program does: that says where the time goes, not that it is lost.
    stepping = bool(steps) or snapshot.kind != "unknown"
    unproven = host_unproven(snapshot)
    # A line that computes may be the work itself; a wait or a sleep is none.
    computes = lines.part(lambda entry: entry.does in ("python", "native")) > 0.5
    top = share * (first.share or 1.0)
    critical = stepping and not unproven and share >= CRITICAL_SHARE and (not computes or bool(steps))
    severity: Severity = "info" if not stepping and computes else "critical" if critical else "warning"
    doing = _doing(lines, first.file, first.line)
    place = short_place(first.file, first.line)
    gone = share * within_first(lines)
    fixes = (
        (Fix(text=f"shorten {first.function} ({place}), or overlap it with the step", speedup=round(without(gone), 2)),)
        if stepping or not computes
        else (Fix(text=f"look at {first.function} ({place}) first"),)
    )
    unit = "each step" if steps else "the time"
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(min(0.99, share)), 3) if stepping or not computes else None,
        confidence=UNPROVEN if unproven or not stepping else confidence(bool(steps), top > 0.5 * share, base=0.5),
        title=f"{percent(share)} of {unit} is host code: {first.function} {doing}",
        where=lines.where,
        evidence=(
            f"{percent(top)} at {place}, which {doing}",
            *_others(lines),
            *(() if stepping else ("no phase of a training step and no model call was seen in its stacks",)),
        ),
        fixes=fixes,
    )


def _doing(lines: Lines, file: str, line: int) -> str:
    """What the heaviest line does most, in words."""
    weights: dict[Activity, float] = {}
    for entry in lines.entries:
        if (entry.file, entry.line) == (file, line):
            weights[entry.does] = weights.get(entry.does, 0.0) + entry.share
    return DOING[max(weights, key=lambda activity: weights[activity])]


def _others(lines: Lines) -> tuple[str, ...]:
    rest = lines.where[1:3]
    if not rest:
        return ()
    return ("then " + ", ".join(f"{short_place(where.file, where.line)} {percent(where.share)}" for where in rest),)


RULE = Rule(ID, judge, BAND)
