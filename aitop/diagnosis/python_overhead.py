"""python-overhead: Python between tiny operations, in the model or its loss, or beside the phases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aitop.diagnosis.device_gaps import short_place
from aitop.diagnosis.evidence import (
    NEARLY,
    UNPROVEN,
    Lines,
    by_samples,
    confidence,
    device_idle,
    enough,
    host_limit,
    host_unproven,
    main_lines,
    main_stacks,
    of_outside,
    on_gpu,
    records,
    running,
    samples_of,
    seen_once,
)
from aitop.diagnosis.hand_update import updating
from aitop.diagnosis.hand_written import calling_model, feeding, training_loops
from aitop.diagnosis.loops import carries_state, heads_of, hold_most
from aitop.diagnosis.preprocessing import making_input
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import HotLine, Phases, Snapshot
from aitop.model.units import count, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "python-overhead"
CRITICAL_SHARE = 0.3
MANY_OPS = 150
TINY_OP_US = 30.0
# What dispatching one operation and its node of the graph costs on the host, however little it computes.
DISPATCH_US = 4.5
# The same work in one operation still takes some of the time; how much, where operations were not counted, is a guess.
BATCHED_AWAY, GUESSED = 0.88, 0.7
# Where a turn of the loop needs what the one before it made, other ways to compute the same gain less.
IN_ORDER = 0.5
SOME = 0.05
# Operations on large tensors run without the interpreter's lock: a thread that calls only such ones hardly holds it.
# Nor does one in a backward pass, whatever it goes back through: of the rest of its time it has to hold it for longer.
HOLDS_LOCK, OF_THE_REST = 0.1, 0.2
# More than this part of what computes between the forward and the backward pass is not taken for a loss by its place.
MOST_OF_ALL = 0.6
LOSS = re.compile(r"^[\w.]*loss\w*(?: [-+*/])? ?=", re.IGNORECASE)
ONCE = "seen in one stretch of time so far: how often it comes is not known yet"
# A process that is trained without calling a module: what computes before its backward pass is its model.
NO_MODULE = 0.03
# A backward pass takes about as long as its forward pass, or longer.
WITHOUT_GRADIENT = 3.0


@dataclass(frozen=True)
class Overhead:
    """Shares of step time: `model` around tiny operations, `beside` between the phases. `per_op` in microseconds.

    `mostly_model`: the larger of the two is around tiny operations.
    """

    model: float
    beside: float
    lines: Lines
    seen: float
    per_op: float | None
    loops: bool
    mostly_model: bool


def judge(snapshot: Snapshot) -> Judgement:
    """Python between tiny operations, in the forward pass or beside it."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    found = _overhead(snapshot)
    share = min(0.99, found.beside + found.model, device_idle(snapshot))
    return Finding(_verdict(snapshot, found, share), level=share) if share > 0 else None


def _overhead(snapshot: Snapshot) -> Overhead:
    feeds, makes, updates = feeding(snapshot), making_input(snapshot), updating(snapshot)
    gpu = on_gpu(snapshot)
    # What is called for the model's call and in its line belongs to the call of inference.
    calls = calling_model(snapshot) if snapshot.kind == "inference" else lambda line: False
    aside = main_lines(
        snapshot,
        lambda line: (
            _aside(line, gpu) and not feeds(line) and not makes(line) and not calls(line) and not updates(line)
        ),
    )
    # What computes by hand, beside every module, may be the model or its loss: then it is judged as the model is.
    by_hand = _computing(aside) if snapshot.kind == "training" and not gpu else Lines(0.0, ())
    inside = main_lines(snapshot, lambda line: line.phase == "forward" and line.activity in ("python", "compute"))
    if gpu:
        # What launches take is told by how long the device waits for them; Python proper stays Python.
        inside = Lines(sum(line.share for line in _python(inside)), _python(inside))
    both = Lines(inside.share + by_hand.share, inside.lines + by_hand.lines)
    per_op = None if gpu else _microseconds_per_op(snapshot, by_hand.share)
    uncounted = per_op is not None and per_op >= TINY_OP_US and _outside_of_graph(snapshot)
    per_op = None if uncounted else per_op
    heads = heads_of(snapshot, both)
    loops = hold_most(both, snapshot, heads)
    tiny = per_op < TINY_OP_US if per_op is not None else _tiny_by_stacks(snapshot, loops, bool(heads))
    model = 0.0
    if gpu:
        model = inside.share
    elif tiny:
        part = min(BATCHED_AWAY, DISPATCH_US / per_op) if per_op else GUESSED
        part = min(part, IN_ORDER) if carries_state(both) else part
        model = (both.share + (0.0 if uncounted else _backward_of(snapshot, both))) * part
    own = by_hand.lines if tiny or _is_model(snapshot, by_hand) else _for_the_loss(snapshot, by_hand)
    aside = Lines(aside.share - sum(line.share for line in own), tuple(line for line in aside.lines if line not in own))
    beside = min(of_outside(snapshot, aside, NEARLY), host_limit(snapshot)) if aside.share >= SOME or not model else 0.0
    mostly_model = model > aside.share
    first, then = (both.lines, aside.lines) if mostly_model else (aside.lines, both.lines * bool(model))
    seen = aside.share + (both.share if model else 0.0)
    return Overhead(model, beside, Lines(seen, first + then), seen, per_op, loops, mostly_model)


def _aside(line: HotLine, gpu: bool) -> bool:
    """Plain computation between the phases. Where there is no device to wait for, reading a value is nothing else."""
    return line.phase == "outside" and line.activity in (
        ("python", "compute") if gpu else ("python", "compute", "sync")
    )


def _python(lines: Lines) -> tuple[HotLine, ...]:
    return tuple(line for line in lines.lines if line.activity == "python")


def _computing(lines: Lines) -> Lines:
    kept = tuple(line for line in lines.lines if line.activity == "compute")
    return Lines(sum(line.share for line in kept), kept)


def _is_model(snapshot: Snapshot, by_hand: Lines) -> bool:
    """Whether what computes by hand is the model itself: no module is called before the backward pass."""
    phases = snapshot.steps.phases if snapshot.steps else Phases()
    return bool(by_hand.lines) and (phases.forward or 0.0) < NO_MODULE and (phases.backward or 0.0) >= SOME


def _for_the_loss(snapshot: Snapshot, by_hand: Lines) -> tuple[HotLine, ...]:
    """What computes for the backward pass: it stands before that, after the forward pass, in the function with both.

    But not what one place takes most of, and that is not named a loss and does not call the model: it may be anything.
    """
    loops, calls = training_loops(snapshot), calling_model(snapshot)
    ends = _last_backward(snapshot)
    spans = {key: (loops[key].forward, ends[key]) for key in loops.keys() & ends.keys()}
    placed = [(line, place) for line in by_hand.lines if (place := _between(line, spans)) is not None]
    weights = Counter[int]()
    for line, (number, _) in placed:
        weights[number] += line.samples
    most = MOST_OF_ALL * sum(line.samples for line in by_hand.lines)
    return tuple(line for line, (number, text) in placed if LOSS.match(text) or weights[number] < most or calls(line))


def _last_backward(snapshot: Snapshot) -> Mapping[tuple[str, str], int]:
    """The last line of each function in or below which a backward pass is made."""
    found: dict[tuple[str, str], int] = {}
    for line in main_lines(snapshot, lambda line: line.phase == "backward").lines:
        found[line.file, line.function] = max(line.line, found.get((line.file, line.function), 0))
        for frame in line.via:
            found[frame.file, frame.function] = max(frame.line, found.get((frame.file, frame.function), 0))
    return found


def _between(line: HotLine, spans: Mapping[tuple[str, str], tuple[int, int]]) -> tuple[int, str] | None:
    """Where in a training function between forward and backward pass the line runs, with the code there."""
    frames = [(one.file, one.function, one.line, one.text) for one in line.via]
    for file, function, number, text in (*frames, (line.file, line.function, line.line, line.text)):
        first, last = spans.get((file, function), (0, -1))
        if first <= number <= last:
            return number, text or ""
    return None


def _tiny_by_stacks(snapshot: Snapshot, loops: bool, heads: bool) -> bool:
    """Without a count of operations: a loop of the user's whose operations hardly let go of the interpreter's lock."""
    process = main_stacks(snapshot)
    threads = snapshot.stacks.threads if snapshot.stacks else ()
    held = [one.gil for one in threads if process and (one.pid, one.thread) == (process.pid, process.thread)]
    known = [gil for gil in held if gil is not None]
    if not loops or not known:
        return loops and heads
    backward = (snapshot.steps.phases.backward if snapshot.steps else None) or 0.0
    least = min(HOLDS_LOCK, OF_THE_REST * (1.0 - backward))
    # The head of a loop is quick: to be seen on it there must be many turns.
    return min(known) >= (least / 2 if heads else least)


def _backward_of(snapshot: Snapshot, lines: Lines) -> float:
    """The backward pass of those lines, in proportion to their part of all that it goes back through."""
    phases = snapshot.steps.phases if snapshot.steps else Phases()
    by_hand = sum(line.share for line in lines.lines if line.phase == "outside")
    whole = (phases.forward or 0.0) + by_hand
    return phases.backward * min(1.0, lines.share / whole) if phases.backward and whole else 0.0


def _microseconds_per_op(snapshot: Snapshot, by_hand: float) -> float | None:
    """Mean CPU time of one autograd node's forward, None where the graph was not counted; large where it is small."""
    ops = snapshot.facts.ops if snapshot.facts else None
    steps = records(snapshot)
    if not ops or not steps:
        return None
    forwards = sorted(step.forward for step in steps)
    aside = by_hand * sum(step.seconds for step in steps) / len(steps)
    return (forwards[len(forwards) // 2] + aside) * running(snapshot) * 1e6 / ops if ops >= MANY_OPS else TINY_OP_US


def _outside_of_graph(snapshot: Snapshot) -> bool:
    """Whether most of a forward pass computes what no gradient goes back through: its operations were not counted."""
    phases = snapshot.steps.phases if snapshot.steps else Phases()
    return snapshot.kind == "training" and (phases.forward or 0.0) > WITHOUT_GRADIENT * (phases.backward or 0.0) > 0.0


def _verdict(snapshot: Snapshot, found: Overhead, share: float) -> Verdict:
    # On a GPU every operation takes the host a few microseconds, however much it computes: does the device idle?
    unproven = host_unproven(snapshot)
    counted = found.per_op is not None and bool(found.model)
    signals = (counted, found.beside > 0.1 or found.loops, bool(found.lines.lines))
    once = not found.model and seen_once(snapshot, found.lines)
    critical = share >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven
    severity: Severity = "info" if once else "critical" if critical else "warning"
    sampled = None if counted else samples_of(snapshot)
    sure = confidence(*signals, base=0.45, steps=len(records(snapshot)), share=share, samples=sampled)
    # How much of the operations' own work is left in one large operation is not to be seen before.
    guessed = found.model > SOME
    process = main_stacks(snapshot)
    gained = share if counted or process is None else by_samples(share, process.samples)
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(gained), 3),
        confidence=min(sure, UNPROVEN) if unproven or guessed or once else sure,
        title=f"{percent(share)} of each step is Python {_around(found)}",
        where=found.lines.where,
        evidence=(*_evidence(snapshot, found), *((ONCE,) if once else ())),
        fixes=_fixes(found, gained),
    )


def _around(found: Overhead) -> str:
    return "around tiny operations" if found.mostly_model else "between its phases"


def _evidence(snapshot: Snapshot, found: Overhead) -> tuple[str, ...]:
    told = []
    facts = snapshot.facts
    if found.mostly_model and found.per_op is not None and facts is not None:
        told.append(f"{count(facts.ops)} operations a step at {found.per_op:.0f} µs each: too small to be worth a call")
    if found.mostly_model and carries_state(found.lines):
        told.append(
            "each turn of the loop needs what the last one made: how much can be gained depends on the algorithm"
        )
    elif found.mostly_model:
        told.append("how long one large operation takes instead is not known before: the gain may be far larger")
    where = found.lines.where
    if where:
        told.append(f"{percent(found.seen)} of samples run Python, most at {short_place(where[0].file, where[0].line)}")
    return tuple(told)


def _fixes(found: Overhead, share: float) -> tuple[Fix, ...]:
    where = found.lines.where
    gone = round(without(share), 2)
    place = f" at {short_place(where[0].file, where[0].line)}" if where else ""
    if found.mostly_model:
        in_order = carries_state(found.lines)
        instead = (
            "a layer that loops inside (nn.RNN, nn.LSTM) or a closed form"
            if in_order
            else "one batched tensor operation"
        )
        return (
            Fix(text=f"replace the loop{place} by {instead}", speedup=gone),
            Fix(text="torch.compile fuses small operations where the loop cannot be rewritten"),
        )
    doing = f"what {where[0].function}{place} does" if where else "it"
    return (Fix(text=f"do {doing} less often, vectorise it, or move it out of the loop", speedup=gone),)


RULE = Rule(ID, judge, Band(enter=0.15, leave=0.1))
