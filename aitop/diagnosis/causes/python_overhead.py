"""python-overhead: the interpreter, rather than operations, takes the time: around tiny operations, or between phases.

Who holds the interpreter's lock on a line runs Python there: large operations let go of it. So the ledger's "python" of
the forward pass is what Python and the calls of operations cost, whatever the code looks like.
"""

from __future__ import annotations

from dataclasses import dataclass

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes.device_gaps import short_place
from aitop.diagnosis.evidence import (
    UNPROVEN,
    Lines,
    confidence,
    device_idle,
    enough,
    host_limit,
    host_unproven,
    main_lines,
    on_gpu,
    phase_share,
    records,
    running,
    seen_once,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import range_of, without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.units import count, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "python-overhead"
CRITICAL_SHARE = 0.3
# The interpreter's lock is held for at least this part of a forward pass whose operations are called one by one from
# Python, and more where they were not counted. One call that runs many operations inside hardly holds it.
LEAST_HELD, LEAST_HELD_UNCOUNTED = 0.06, 0.25
# Of a smaller part of the time too few looks at the lock are had to judge it without a count.
LEAST_SEEN = 0.1
# The same work in one operation still takes some of the time.
BATCHED_AWAY = 0.88
SOME = 0.05
ONCE = "seen in one stretch of time so far: how often it comes is not known yet"


@dataclass(frozen=True)
class Overhead:
    """Shares of step time: `model` around tiny operations, `beside` between the phases. `per_op` in seconds."""

    model: float
    of_model: Lines
    beside: float
    of_beside: Lines
    per_op: float | None
    held: float

    @property
    def mostly_model(self) -> bool:
        """Whether the larger of the two is around tiny operations."""
        return self.model > self.beside

    @property
    def lines(self) -> Lines:
        """The entries of what counts, those of the larger one first."""
        parts = [self.of_model.entries if self.model else (), self.of_beside.entries if self.beside else ()]
        first, then = parts if self.mostly_model else reversed(parts)
        return Lines(sum(entry.share for entry in (*first, *then)), (*first, *then))


def judge(snapshot: Snapshot) -> Judgement:
    """Python between tiny operations, in the forward pass or beside it."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    if snapshot.kind == "unknown" and not records(snapshot):
        return Abstention(id=ID, reason="no phase of a step was seen: Python may be all that the program is there for")
    overhead = _overhead(snapshot)
    share = min(0.99, overhead.beside + overhead.model, device_idle(snapshot))
    if share <= 0.0:
        return None
    return Finding(_verdict(snapshot, overhead, share), level=share, claims=overhead.lines.entries)


def _overhead(snapshot: Snapshot) -> Overhead:
    gpu = on_gpu(snapshot)
    beside = main_lines(snapshot, lambda entry: entry.phase == "host" and entry.does == "python" and not _model(entry))
    model = main_lines(snapshot, lambda entry: entry.phase == "forward" or _model(entry))
    python = Lines(*_python(model))
    held = python.share / model.share if model.share > 0 else 0.0
    per_op = None if gpu else _seconds_per_op(snapshot, model.share)
    share = 0.0
    if gpu:
        # What launches take is told by how long the device waits for them; Python proper stays Python.
        share = python.share
    elif per_op is not None and per_op >= op_cost.SMALL:
        share = python.share
    elif per_op is not None and held >= LEAST_HELD:
        part = max(held, min(BATCHED_AWAY, op_cost.FORWARD / per_op))
        share = (model.share + phase_share(snapshot, "backward")) * part
    elif held >= LEAST_HELD_UNCOUNTED and model.share >= LEAST_SEEN and snapshot.kind == "training":
        # In inference the cost of calling the model for a few samples is a matter of the batch.
        # As much of the backward pass goes back through calls as the forward pass was made of.
        share = (model.share + phase_share(snapshot, "backward")) * held
    share_beside = min(beside.share, host_limit(snapshot)) if beside.share >= SOME or not share else 0.0
    return Overhead(share, python if gpu else model, share_beside, beside, per_op, held)


def _model(entry: Entry) -> bool:
    """Whether host code is the model or its loss written by hand: it computes with tensors within the step."""
    return entry.phase == "host" and entry.position == "within" and entry.work in ("tensor", None)


def _python(lines: Lines) -> tuple[float, tuple[Entry, ...]]:
    entries = tuple(entry for entry in lines.entries if entry.does == "python")
    return sum(entry.share for entry in entries), entries


def _seconds_per_op(snapshot: Snapshot, share: float) -> float | None:
    """Mean CPU time of one autograd node's forward; None where the graph was not counted."""
    ops = snapshot.facts.ops if snapshot.facts else None
    mean = snapshot.steps.mean if snapshot.steps else None
    if not ops or not mean:
        return None
    return share * mean * running(snapshot) / ops


def _verdict(snapshot: Snapshot, overhead: Overhead, share: float) -> Verdict:
    # On a GPU every operation takes the host a few microseconds, however much it computes: does the device idle?
    unproven = host_unproven(snapshot)
    counted = overhead.per_op is not None and bool(overhead.model)
    lines = overhead.lines
    signals = (counted, overhead.held >= LEAST_HELD or overhead.beside > 0.1, bool(lines.lines))
    once = not overhead.model and seen_once(snapshot, lines)
    critical = share >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven
    severity: Severity = "info" if once else "critical" if critical else "warning"
    sure = confidence(*signals, base=0.45, steps=len(records(snapshot)))
    around = "around tiny operations" if overhead.mostly_model else "between its phases"
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(share), 3),
        # What large operations would take instead is not known: at the least what Python takes goes, at most all of it.
        speedup_range=range_of(0.7 * share, share + 0.9 * (1.0 - share)) if overhead.mostly_model else None,
        confidence=min(sure, UNPROVEN) if unproven or once else sure,
        title=f"{percent(share)} of each step is Python {around}",
        where=lines.where,
        evidence=(*_evidence(snapshot, overhead), *((ONCE,) if once else ())),
        fixes=_fixes(overhead, share),
    )


def _evidence(snapshot: Snapshot, overhead: Overhead) -> tuple[str, ...]:
    evidence = []
    facts = snapshot.facts
    if overhead.model:
        evidence.append(f"the interpreter's lock is held {percent(overhead.held)} of the forward pass")
    if overhead.mostly_model and overhead.per_op is not None and facts is not None:
        evidence.append(
            f"{count(facts.ops)} operations a step at {overhead.per_op * 1e6:.0f} µs each: hardly worth a call"
        )
    if overhead.mostly_model:
        evidence.append("how long one large operation would take instead is not known: the gain may be larger")
    where = overhead.lines.where
    if where:
        evidence.append(f"most of it at {short_place(where[0].file, where[0].line)}")
    return tuple(evidence)


def _fixes(overhead: Overhead, share: float) -> tuple[Fix, ...]:
    where = overhead.lines.where
    gone = round(without(share), 2)
    place = f" at {short_place(where[0].file, where[0].line)}" if where else ""
    if overhead.mostly_model:
        return (
            Fix(text=f"do the work{place} in fewer, larger tensor operations", speedup=gone),
            Fix(text="torch.compile fuses small operations where they cannot be put together by hand"),
        )
    doing = f"what {where[0].function}{place} does" if where else "it"
    return (Fix(text=f"do {doing} less often, vectorise it, or move it out of the loop", speedup=gone),)


RULE = Rule(ID, judge, Band(enter=0.15, leave=0.1))
