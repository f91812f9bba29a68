"""python-overhead: the interpreter, rather than operations, takes the time: around tiny operations, or in code between
them.

A thread that holds the GIL on a line runs Python there, since large operations release it. So the ledger's "python" of
the forward pass is what Python and the calls of operations cost, whatever the code looks like.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from aitop.diagnosis import op_cost
from aitop.diagnosis.device import host_limit, host_unproven, on_gpu
from aitop.diagnosis.evidence import (
    AT_WORK,
    HOST,
    MOST_HELD,
    NO_LINES,
    ONCE,
    RUNNING,
    Lines,
    each_unit,
    function_of,
    hands_over,
    held_by_line,
    interval,
    lines_of,
    main_lines,
    operations_of_step,
    records,
    running,
    seen_once,
    shares_by,
    short_place,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, estimated, fix, without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.units import count, percent
from aitop.model.verdict import Fix
from aitop.stacks.libraries import COMPUTES

# A line calls operations one by one from Python if it holds the GIL for at least this part of its time: tiny operations
# hold it for 21 % and more, an nn.GRU for 1 to 5 %. More is required where the operations were not counted.
LEAST_HELD, LEAST_HELD_UNCOUNTED = 0.1, 0.25
# In a smaller share of the time there are too few samples of the GIL to judge it without a count of operations.
LEAST_SEEN = 0.1
# Below this share, Python between the phases is not worth naming beside that of the model.
SOME = 0.05
# Below this share, writing down stacks is not worth naming, whatever else Python takes.
LEAST_DEBUGGING = 0.1
# The share of the time that is saved by doing the same work in one operation.
BATCHED_AWAY = 0.88


class Calls(msgspec.Struct, frozen=True):
    """What calls of operations cost, as a share (0..1) of a step, and the Python of the lines that call them.

    `seen` is the part of it on lines that hold the lock for long enough even if chance favoured them in the samples.
    The rest is of other lines, and what their backward pass may cost.
    """

    share: float
    seen: float
    python: Lines


NO_CALLS = Calls(0.0, 0.0, NO_LINES)


@rule("python-overhead", 0.15, 0.1, scope=Scope(each_unit=True, idle=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Python between tiny operations, in the forward pass or beside it."""
    if snapshot.kind == "unknown" and not records(snapshot):
        return "no phase of a step was seen: Python may be all that the program is there for"
    debugging = main_lines(snapshot, lambda entry: entry.work == "anomaly")
    if debugging.share >= LEAST_DEBUGGING:
        return _anomaly_detection(snapshot, debugging)
    gpu = on_gpu(snapshot)
    beside = _in_python(
        main_lines(snapshot, lambda entry: _of_host(entry) and not (_model(entry) or hands_over(entry)))
    )
    model = main_lines(snapshot, lambda entry: entry.phase == "forward" or _model(entry))
    python = lines_of(entry for entry in model.entries if entry.does == "python")
    held = python.share / model.share if model.share > 0 else 0.0
    # On a GPU, how long the device waits tells what launches cost (launch-bound); here only Python itself counts.
    per_op = None if gpu else _seconds_per_op(snapshot, model)
    counted, tiny = per_op is not None, per_op is not None and per_op <= op_cost.MOSTLY_CALLING
    calls = Calls(python.share, python.share, python) if gpu else _of_calls(snapshot, model, tiny=tiny, counted=counted)
    in_model = calls.share
    between = min(beside.share, host_limit(snapshot)) if beside.share >= SOME or not in_model else 0.0
    share = min(0.99, between + in_model, host_limit(snapshot, in_phases=True))
    if share <= 0.0:
        return None
    mostly_model = in_model > between
    # The backward pass of calls was counted with the operations of the graph, or it is only taken to be like theirs.
    surely = 0.7 * (share if counted else min(share, between + calls.seen))
    if per_op is not None and not tiny:
        # Operations that are not tiny take more than their calls: only what holds the GIL is certain to go.
        surely = min(surely, 1.0 - without(python.share + between, (*python.entries, *beside.entries)).most)
    claims = (*((python if gpu else model).entries if in_model else ()), *(beside.entries if between else ()))
    # The lines where Python runs, not those of native calls that take long beside it.
    lines = calls.python if mostly_model else beside
    gradients = lines.part(lambda entry: entry.phase == "backward") > 0.5
    between_words = "in gradients of its own" if gradients else "between its phases"
    around = "around tiny operations" if mostly_model else between_words
    once = not in_model and seen_once(snapshot, lines)
    evidence = [f"the interpreter's lock is held {percent(held)} of the forward pass"] if in_model else []
    if mostly_model and tiny and per_op is not None:
        each = f"{count(round(operations_of_step(snapshot) or 0))} operations a step at {per_op * 1e6:.0f} µs each"
        evidence.append(f"{each}: little more than the cost of a call")
    if mostly_model:
        evidence.append("how long one large operation would take instead is not known: the gain may be larger")
    evidence += [f"most of it at {short_place(lines.where[0])}"] if lines.where else []
    # Small operations between the phases do arithmetic as well, which is left if they are made larger.
    held_between = beside.part(lambda entry: entry.does == "python")
    calls_between = without(share * min(1.0, op_cost.WHOLE_CALL * held_between), beside.entries)
    # What large operations would take instead is not known: at most all of the share is saved.
    of_model = estimated(share, surely, share + 0.9 * (1.0 - share))
    return Explanation(
        severity="info" if once else None,
        share=share,
        saved=of_model if mostly_model else replace(without(share, claims), most=calls_between.most),
        signals=(tiny and bool(in_model), held >= LEAST_HELD or between > 0.1, bool(lines.lines)),
        # On a GPU every operation takes the host a few microseconds, however much it computes: that costs something
        # only if the device idles.
        doubtful=once or host_unproven(snapshot, in_phases=bool(in_model)),
        title=f"{percent(share)} of {each_unit(snapshot)} is Python {around}",
        lines=lines,
        claims=claims,
        evidence=[*evidence, ONCE] if once else evidence,
        fixes=_fixes(lines, min(share, max(in_model, between)), mostly_model=mostly_model),
    )


def _anomaly_detection(snapshot: Snapshot, debugging: Lines) -> Explanation:
    """The verdict on torch's anomaly detection, which was left on."""
    # It also looks for NaN in every gradient: at most all of the backward pass goes with it.
    backward = main_lines(snapshot, lambda entry: entry.phase == "backward" and entry.work != "anomaly").share
    share = min(debugging.share, 0.99)
    return Explanation(
        share=share,
        saved=estimated(share, 0.85 * share, min(0.99, share + backward)),
        signals=(True, bool(records(snapshot))),
        title=f"{percent(share)} of {each_unit(snapshot)} writes down the Python stack of each operation",
        lines=debugging,
        evidence=("that is torch's anomaly detection, which also looks for NaN in every gradient",),
        fixes=(fix("torch.autograd.set_detect_anomaly(False): it is there to find one fault, not to train", share),),
    )


def _of_calls(snapshot: Snapshot, model: Lines, *, tiny: bool, counted: bool) -> Calls:
    """What calls of operations from these lines cost on the CPU, forward and backward."""
    if not tiny and snapshot.kind != "training":
        # In inference, what it costs to call the model for a few samples is a matter of the batch (underbatched).
        return NO_CALLS
    least_held, least_seen = (LEAST_HELD, 0.0) if tiny else (LEAST_HELD_UNCOUNTED, LEAST_SEEN)
    forward = lines_of(entry for entry in model.entries if entry.phase == "forward")
    calling = _calling(forward, least_held)
    beside = _calling(lines_of(entry for entry in model.entries if entry.phase != "forward"), least_held)
    both, seen = calling.share + beside.share, calling.seen + beside.seen
    if both < least_seen:
        return NO_CALLS
    python = lines_of((*calling.python.entries, *beside.python.entries))
    # If the operations of the autograd graph are not tiny, the tiny ones are not in the graph: they have no backward.
    if calling.share <= least_seen or (counted and not tiny):
        return Calls(both, seen, python)
    # Calls are taken to make up the same part of the backward pass as of the forward pass.
    backward = main_lines(snapshot, lambda entry: entry.phase == "backward").share
    return Calls(both + backward * calling.share / forward.share, seen, python)


def _calling(lines: Lines, least_held: float) -> Calls:
    """What calls cost on those of these lines that hold the GIL for at least `least_held` of their time.

    A call consists of Python, which holds the GIL, and of what torch does around the arithmetic, which does not.
    """
    whole, held = shares_by(lines.entries, lambda entry: entry.at), held_by_line(lines.entries)
    calling = {
        at: min(BATCHED_AWAY * whole[at], op_cost.WHOLE_CALL * share)
        for at, share in held.items()
        if share >= least_held * whole[at] > 0.0
    }
    looks: dict[tuple[str, int], float] = {}
    for entry in lines.lines:
        looks[entry.at] = looks.get(entry.at, 0.0) + entry.samples
    surely = [at for at in calling if interval(held[at] / whole[at], round(looks.get(at, 0.0)))[0] >= least_held]
    python = lines_of(entry for entry in lines.entries if entry.does == "python" and entry.at in calling)
    return Calls(sum(calling.values()), sum(calling[at] for at in surely), python)


def _in_python(host: Lines) -> Lines:
    """The Python of host code, with the small operations of the same functions: running these less saves both."""
    running = lines_of(entry for entry in host.entries if entry.does in RUNNING)
    python = [entry for entry in running.entries if entry.does == "python"]
    in_line, of_line = held_by_line(python), shares_by(running.lines, lambda entry: entry.at)
    in_function, of_function = shares_by(python, function_of), shares_by(running.lines, function_of)
    small = (
        entry
        for entry in running.lines
        if entry.does != "python"
        and in_line.get(entry.at, 0.0) >= MOST_HELD * of_line[entry.at]
        and in_function.get(function_of(entry), 0.0) >= LEAST_HELD_UNCOUNTED * of_function[function_of(entry)]
    )
    return lines_of((*python, *small))


def _of_host(entry: Entry) -> bool:
    """Whether code runs beside the model: around its phases, or in a gradient of the user's own without tensors."""
    return entry.phase in HOST or (entry.phase == "backward" and entry.work is None and entry.where is not None)


def _model(entry: Entry) -> bool:
    """Whether host code is the model or its loss written by hand: it computes with tensors within the step."""
    return entry.within_step and entry.work in (*COMPUTES, None) and entry.does in AT_WORK


def _seconds_per_op(snapshot: Snapshot, model: Lines) -> float | None:
    """Mean CPU time of one autograd node's forward, None where the graph was not counted.

    A model may have a loop of small operations beside a few large ones, which are most of the time but not of the
    operations. So the time is that of the lines with the calls, if all operations can be on these.
    """
    ops = operations_of_step(snapshot)
    mean = snapshot.steps.mean if snapshot.steps else None
    if not ops or not mean:
        return None
    whole, held = shares_by(model.entries, lambda entry: entry.at), held_by_line(model.entries)
    calling = sum(share for at, share in whole.items() if held.get(at, 0.0) >= LEAST_HELD * share)
    of_calls, of_all = (share * mean * running(snapshot) / ops for share in (calling, model.share))
    return of_calls if of_calls >= op_cost.FORWARD else of_all


def _fixes(lines: Lines, share: float, *, mostly_model: bool) -> tuple[Fix, ...]:
    place = f" at {short_place(lines.where[0])}" if lines.where else ""
    if mostly_model:
        return (
            fix(f"do the work{place} in fewer, larger tensor operations", share),
            fix("torch.compile fuses small operations where they cannot be put together by hand"),
        )
    doing = f"what {lines.where[0].function}{place} does" if lines.where else "it"
    return (fix(f"do {doing} less often, vectorise it, or move it out of the loop", share),)
