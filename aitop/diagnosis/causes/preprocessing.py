"""preprocessing-bound: in inference, making the model's input (tokenising, decoding) takes most of a request."""

from __future__ import annotations

from dataclasses import dataclass

from aitop.diagnosis.causes.device_gaps import short_place
from aitop.diagnosis.causes.requests import leisure
from aitop.diagnosis.evidence import (
    COLD,
    NO_LINES,
    UNPROVEN,
    Lines,
    confidence,
    enough,
    free_cores,
    host_limit,
    host_unproven,
    left_cold,
    main_lines,
    records,
    samples_of,
    within_first,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import Loading, without
from aitop.model.ledger import Activity
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "preprocessing-bound"
CRITICAL_SHARE = 0.3
BAND = Band(enter=0.2, leave=0.14)
# A server that waits for so much of its time is not held up by anything: requests come too seldom.
AT_LEISURE = 0.3
WORKING: frozenset[Activity] = frozenset({"python", "native", "wait-core"})


@dataclass(frozen=True)
class Work:
    """What a request costs beside the model. Shares of all time; `waiting` is waiting for requests."""

    share: float
    lines: Lines
    measured: bool
    waiting: float


def judge(snapshot: Snapshot) -> Judgement:
    """Whether requests spend their time on the way to the model rather than in it."""
    if snapshot.kind == "training":
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    if snapshot.kind == "unknown":
        return Abstention(id=ID, reason="too few samples show a forward pass to tell inference from training")
    lines = making_input(snapshot)
    share = min(lines.share, host_limit(snapshot))
    work = Work(share, lines, bool(records(snapshot)), leisure(snapshot).share)
    if not lines.lines:
        return None
    return Finding(_verdict(snapshot, work), level=work.share, claims=lines.entries)


def making_input(snapshot: Snapshot) -> Lines:
    """Host work of inference that stands before the model's call, or in a data loader."""
    if snapshot.kind != "inference":
        return NO_LINES
    return main_lines(
        snapshot,
        lambda entry: (
            entry.activity in WORKING
            and (entry.phase == "data" or (entry.phase == "host" and entry.position == "before"))
        ),
    )


def _verdict(snapshot: Snapshot, work: Work) -> Verdict:
    share, lines = work.share, work.lines
    leisure = work.waiting >= AT_LEISURE
    # Of a server at leisure only the requests get faster, not how many there are.
    of_request = min(0.99, share / max(0.01, 1.0 - work.waiting) if leisure else share)
    unproven = host_unproven(snapshot)
    signals = (work.measured, bool(lines.lines), of_request >= 0.5)
    critical = of_request >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven
    severity: Severity = "info" if leisure else "critical" if critical else "warning"
    samples = samples_of(snapshot) or 0
    sure = confidence(*signals, base=0.5, steps=len(records(snapshot)))
    evidence = [f"{percent(lines.share)} of {samples} stack samples make the input, most of them: {_doing(lines)}"]
    gone = of_request * within_first(lines)
    cold = left_cold(snapshot, gone, computed=True)
    if cold:
        evidence.append(COLD)
    forward = snapshot.steps.phases.forward if snapshot.steps else None
    if forward is not None:
        evidence.append(f"the model itself takes {percent(forward)}")
    if leisure:
        evidence.append(f"{percent(work.waiting)} of the time is waiting for requests: they get faster, not more")
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(gone), 3),
        confidence=min(sure, UNPROVEN) if unproven else sure,
        title=f"{percent(of_request)} of each request is spent making the model's input",
        where=lines.where,
        evidence=tuple(evidence),
        fixes=_fixes(snapshot, of_request, gone, lines),
    )


def _doing(lines: Lines) -> str:
    """What most of the work is and where it is called, in words."""
    first = lines.where[0]
    named = {"decode": "decoding", "tokenize": "tokenising", "collate": "collating"}.get(_dominant(lines), "computing")
    return f"{named} in {first.function} ({short_place(first.file, first.line)})"


def _dominant(lines: Lines) -> str:
    weights: dict[str, float] = {}
    for entry in lines.entries:
        weights[entry.work or ""] = weights.get(entry.work or "", 0.0) + entry.share
    return max(weights, key=lambda work: weights[work])


def _fixes(snapshot: Snapshot, share: float, gone: float, lines: Lines) -> tuple[Fix, ...]:
    first = lines.where[0]
    place = f"{first.function} ({short_place(first.file, first.line)})"
    cheaper = {
        "tokenize": f"tokenise at {place} with a compiled tokenizer, several texts in a call, or keep known texts",
        "decode": f"make decoding in {place} cheaper: a faster decoder, a binary format, the size that the model needs",
    }.get(_dominant(lines), f"make {place} cheaper: vectorise it, keep results that come again, or do it once ahead")
    loading = Loading(1.0, share, 0, 1.0, free_cores(snapshot))
    processes = loading.best_workers()
    gain = loading.speedup_with(processes)
    found = [Fix(text=cheaper, speedup=round(without(gone), 2))]
    if gain > 1.05:
        named = "process" if processes == 1 else "processes"
        text = f"make inputs ahead in {processes} {named} of their own while the model runs"
        found.append(Fix(text=text, speedup=round(gain, 2)))
    return tuple(found)


RULE = Rule(ID, judge, BAND)
