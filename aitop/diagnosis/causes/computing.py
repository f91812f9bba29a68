"""compute-bound: most of the time is computing, so nothing else is worth removing first."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes.comm_bound import exchanging
from aitop.diagnosis.causes.oversubscription import others_have_cores
from aitop.diagnosis.device import IDLE_DEVICE, device_busy, host_unproven, on_gpu, timed_on_device
from aitop.diagnosis.evidence import (
    above_forward,
    by_hand,
    each_unit,
    judged_pid,
    lines_of,
    main_lines,
    operations_of_step,
    place_of,
    records,
    running,
    server_idle_share,
    serves,
    short_place,
    stepping,
    takes_request,
    where_of,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.series import line_through
from aitop.diagnosis.what_if import Length, estimated, fix
from aitop.model.ledger import Entry, Ledger
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, operations, percent
from aitop.model.verdict import Where

MOSTLY = 0.8
# The device limits the step if it is busy for more than this part of the time.
BUSY_DEVICE = 0.8
# A phase that takes less of the time is not listed: the backward pass of a server, say.
LEAST_TOLD = 0.005
# A server that waits for requests for this share of the time could serve more.
MOSTLY_IDLE = 0.5
# Calls of the model compute the whole sequence again for each token if, in this part of the pairs of looks at it, it
# grew by one per call; between the others a new one began. In a decoder without a cache 487 of 527 did, in seven
# other programs and servers at most 2 of 141.
GREW, LEAST_LOOKS = 0.6, 16
CACHE = (
    "keep the keys and values of earlier tokens (use_cache=True, past_key_values): each call then computes only the"
    " newest token"
)
# Passes without gradients are told of in training if they take this share of a step. What acts in an environment sees
# new inputs each time, and is left out.
LEAST_FROZEN = 0.15
FROZEN = (
    "keep what the model without gradients gives wherever its inputs and weights stay the same: for a frozen part, or a"
    " teacher of a fixed data set, compute it once"
)
# One process of several that run the same model is taken for overloaded if it is at work for FULL of the time and all
# of them on average for less than EVEN of that.
FULL, EVEN = 0.9, 0.75
# Padding is a loss from LEAST_PADDED of a step on, and if LEAST_BATCHES were looked at. That the sequences of a batch
# are of unlike length is told, too, if this makes the loss WORTH_PACKING times as large.
LEAST_PADDED, LEAST_BATCHES, WORTH_PACKING = 0.15, 2, 1.15
UNSEEN = "in which types and how large batches it computes, and whether that is too much, is not known without the hook"
NO_STEPS = "no phase of a training step and no model call was seen: whether all of it is needed is not known"


@rule("compute-bound", 0.5, 0.4, only_alone=True)
def compute_bound(snapshot: Snapshot) -> Explanation | None:
    """The verdict that most of the step is forward, backward and optimizer: the device is the limit."""
    if snapshot.serving is not None and others_have_cores(snapshot):
        # Its requests are held up by other programs that have the cores.
        return None
    if not stepping(snapshot) and not serves(snapshot):
        return _without_steps(snapshot)
    return _tokens_again(snapshot) or _padding(snapshot) or _with_steps(snapshot)


def _passes(snapshot: Snapshot) -> dict[str, float]:
    """The parts (0..1) of the time in what a step computes, by name; empty where none is known."""
    phases = snapshot.phases
    parts = {"forward": phases.forward, "backward": phases.backward, "optimizer": phases.optimizer}
    known = {name: share for name, share in parts.items() if share is not None}
    if known and snapshot.kind == "training":
        # What the hook's clock missed, such as gradients by torch.func, is in the ledger.
        known = {name: known.get(name, 0.0) for name in parts}
    if snapshot.serving is not None and not known:
        computed = main_lines(snapshot, lambda entry: entry.phase == "forward")
        return {"forward": computed.share} if computed.entries else {}
    if on_gpu(snapshot):
        return known
    lines = main_lines(snapshot, lambda entry: entry.phase in parts or entry.closure)
    if any(entry.closure for entry in lines.entries):
        # The hook's clock of the optimizer runs through its closure, which the ledger has in other phases.
        known["optimizer"] = 0.0
    known = {
        name: max(share, sum(entry.share for entry in lines.entries if entry.phase == name))
        for name, share in known.items()
    }
    written = by_hand(snapshot).share
    if written and any(known.values()):
        known["between them"] = written
    return known


def _with_steps(snapshot: Snapshot) -> Explanation | None:
    known, phases = _passes(snapshot), snapshot.phases
    if not known:
        return None
    # Compiling within the phases is not computing.
    compiling = main_lines(snapshot, lambda entry: entry.activity == "compile").share
    computing = max(0.0, sum(known.values()) - compiling)
    busy = device_busy(snapshot)
    evidence = [", ".join(f"{name} {percent(share)}" for name, share in known.items() if share >= LEAST_TOLD)]
    if busy is not None:
        evidence.append(f"GPU busy {percent(busy)} of the time")
        if not timed_on_device(snapshot) and busy > max(computing, BUSY_DEVICE):
            # The host may wait for the device outside of the phases, as in .item(): the device computes then, too.
            computing = busy
    evidence += _achieved(snapshot)
    unseen = snapshot.facts is None
    if unseen:
        evidence.append(UNSEEN)
    idle = busy is not None and busy < IDLE_DEVICE
    # The ledger knows more of what computes than the phases do, so that the two may overlap.
    outside = min(phases.outside or 0.0, 1.0 - computing)
    between = computing < MOSTLY and outside > 1.0 - MOSTLY
    waiting = server_idle_share(snapshot)
    level = computing
    computes = f"{percent(computing)} of {each_unit(snapshot)} computes"
    title = f"{computes}: nothing else is worth removing first"
    if unseen and snapshot.ranks is not None and judged_pid(snapshot) in exchanging(snapshot):
        title = f"{computes}, or is exchange between ranks: only the hook tells these apart"
    if waiting >= MOSTLY_IDLE:
        title = f"{percent(waiting)} of the time is waiting for requests: nothing holds this run up"
        level = max(waiting, computing / max(0.01, 1.0 - waiting))
    elif idle:
        title = f"{computes}, but the GPU is busy only {percent(busy)} of the time"
    elif between:
        rests = f"{percent(waiting)} is waiting for requests" if waiting > 0.5 * outside else None
        title = f"{computes}, {rests or f'{percent(outside)} passes between the phases'}"
    fixes = []
    frozen, uneven = _frozen(snapshot), _unevenly(snapshot)
    if frozen >= LEAST_FROZEN:
        title = f"{computes}, {percent(frozen)} of it without gradients"
        evidence.append("a model runs without gradients in each step, as a teacher or a frozen part does")
        fixes.append(fix(FROZEN, frozen))
    if uneven is not None:
        busiest, idlest = uneven.busiest, uneven.idlest
        title = f"{computes}, while pid {idlest.pid}, which runs the same model, rests {percent(idlest.rests)} of it"
        evidence.append(
            f"pid {busiest.pid} rests {percent(busiest.rests)} of the time: its requests may wait meanwhile"
        )
        fixes.append(fix("let all processes take requests from one queue, or hand each to the least busy", uneven.gone))
    return Explanation(
        severity="info",
        share=computing,
        gains=False,
        level=level,
        fixes=tuple(fixes),
        signals=(phases.data_wait is not None, computing > MOSTLY),
        doubtful=idle or between or unseen or host_unproven(snapshot),
        title=title,
        where=_busiest(snapshot),
        claims=(),
        evidence=evidence,
    )


def _frozen(snapshot: Snapshot) -> float:
    """The share (0..1) of each training step that is forward passes without gradients; 0 where something else acts."""
    steps, forward = records(snapshot), snapshot.phases.forward
    whole = sum(step.forward for step in steps)
    acts = main_lines(snapshot, lambda entry: entry.phase == "environment").lines
    if snapshot.kind != "training" or forward is None or not whole or acts:
        return 0.0
    return forward * sum(step.no_grad for step in steps) / whole


class _Worker(NamedTuple):
    """A process that runs a model, and the share (0..1) of its time in which it has nothing to do."""

    pid: int
    rests: float


class _Uneven(NamedTuple):
    """The process that is never idle and the one that rests most, of those that run one model.

    `gone` is the time of a request that is saved where all of them work equally, if requests wait for the busiest.
    """

    busiest: _Worker
    idlest: _Worker
    gone: Length


def _unevenly(snapshot: Snapshot) -> _Uneven | None:
    """The processes that run the same model, if one of them does most of the work; None if they share it."""
    if snapshot.kind != "inference" or not snapshot.ledgers:
        return None
    models = [{each.at for each in ledger.entries if _runs_model(each)} for ledger in snapshot.ledgers]
    same = [ledger for ledger, lines in zip(snapshot.ledgers, models, strict=True) if lines & models[0]]
    workers = sorted((_Worker(ledger.pid, _rests(ledger)) for ledger in same), key=lambda worker: worker.rests)
    work = [1.0 - worker.rests for worker in workers]
    if len(workers) < 2 or work[0] < FULL or sum(work) > EVEN * len(work) * work[0]:
        return None
    share = 1.0 - sum(work) / len(work) / work[0]
    # If there is a single client, no request waits, and nothing is gained.
    return _Uneven(workers[0], workers[-1], estimated(share, 0.0, share))


def _runs_model(entry: Entry) -> bool:
    return entry.lane == "main" and entry.phase == "forward" and entry.where is not None


def _rests(ledger: Ledger) -> float:
    main = [entry for entry in ledger.entries if entry.lane == "main"]
    return min(1.0, sum(entry.share for entry in main if entry.phase == "queue" or takes_request(entry)))


def _tokens_again(snapshot: Snapshot) -> Explanation | None:
    """The verdict on a decoder that computes its whole sequence again for each token, as it keeps no KV cache.

    The hook looks at a sequence's length now and then. How long a call takes for one token follows from how it grows
    with them.
    """
    steps = records(snapshot) if snapshot.kind == "inference" else ()
    looks = [after for before, after in pairwise(steps) if after.tokens is not None and after.tokens != before.tokens]
    if len(looks) < LEAST_LOOKS:
        return None
    tokens = [step.tokens or 0 for step in looks]
    grew = sum(
        later - earlier == (after.index - before.index) * (after.samples or 1)
        for (before, after), (earlier, later) in zip(pairwise(looks), pairwise(tokens), strict=True)
    )
    slope, fits = line_through(tokens, [step.forward for step in looks])
    if grew < GREW * (len(looks) - 1) or slope <= 0.0:
        return None
    seconds = sum(step.seconds for step in steps) / len(steps)
    mean, at_once = sum(tokens) / len(tokens), sum(step.samples or 1 for step in looks) / len(looks)
    forward = sum(step.forward for step in looks) / len(looks)
    share = min(0.99, min(forward, slope * (mean - at_once)) / seconds)
    return Explanation(
        severity="warning",
        subtype="prefix",
        share=share,
        gone=estimated(share, 0.7 * share, share + 0.5 * (1.0 - share)),
        signals=(fits > 0.5, grew > 0.8 * len(looks)),
        title=f"{percent(share)} of {each_unit(snapshot)} computes tokens that were computed before",
        where=lines_of(map(above_forward, main_lines(snapshot, lambda entry: entry.phase == "forward").lines)).where,
        claims=(),
        evidence=(
            f"each call of the model gets one token more than the one before: {mean:.0f} on average",
            f"by how calls get longer, one for the newest token alone would take {duration(forward - share * seconds)},"
            f" not {duration(forward)}",
        ),
        fixes=(fix(CACHE, share),),
    )


def _padding(snapshot: Snapshot) -> Explanation | None:
    """The verdict on batches whose longest sequence is much shorter than their rows: the rest is padding."""
    seen = snapshot.facts.padding if snapshot.facts is not None else None
    if seen is None or seen.looks < LEAST_BATCHES or not 0.0 < seen.mean <= seen.longest <= seen.width:
        return None
    phases, step, ops = snapshot.phases, snapshot.steps.mean if snapshot.steps else None, operations_of_step(snapshot)
    computing = (phases.forward or 0.0) + (phases.backward or 0.0)
    if not on_gpu(snapshot) and ops is not None and step:
        # What calls of operations take does not depend on the length of rows.
        computing -= min(computing, ops * (op_cost.FORWARD + op_cost.BACKWARD) / (step * running(snapshot)))
    shorter, equal = (computing * (1.0 - tokens / seen.width) for tokens in (seen.longest, seen.mean))
    if shorter < LEAST_PADDED:
        return None
    fixes = [fix("pad each batch to its longest sequence, not to a fixed length (padding=True, a collator)", shorter)]
    if equal > WORTH_PACKING * shorter:
        fixes.append(fix("also batch sequences of like length (group_by_length), or pack several into a row", equal))
    return Explanation(
        severity="warning",
        subtype="padding",
        share=shorter,
        level=computing,
        gone=estimated(shorter, 0.5 * shorter, shorter + 0.5 * (1.0 - shorter)),
        signals=(seen.looks >= 2 * LEAST_BATCHES, ops is not None),
        title=f"{percent(shorter)} of {each_unit(snapshot)} computes padding: no sequence fills the width of its batch",
        where=_busiest(snapshot),
        claims=(),
        evidence=(
            f"batches are {seen.width:.0f} tokens wide, their longest sequences have {seen.longest:.0f} on average",
            f"all sequences have {seen.mean:.0f} on average, by the attention masks of {seen.looks} batches",
        ),
        fixes=tuple(fixes),
    )


def _busiest(snapshot: Snapshot) -> tuple[Where, ...]:
    """The lines that compute most, each with its share of the time. The backward pass follows from the forward pass.

    Where the program is nothing but a library, as a server may be, it is the function that most of that passes through.
    """
    forward = main_lines(snapshot, lambda entry: entry.phase == "forward")
    lines = lines_of((*forward.lines, *by_hand(snapshot).lines))
    if not lines.lines and not forward.entries and snapshot.stacks is not None:
        # Another cause may have claimed them, which is only information.
        pid = judged_pid(snapshot)
        heaviest = next((line for line in snapshot.stacks.lines if line.pid == pid and line.phase == "forward"), None)
        return () if heaviest is None else (replace(where_of(pid, heaviest), share=heaviest.share),)
    if not lines.lines:
        return tuple(
            replace(where_of(entry.pid, frame), share=forward.share)
            for entry in forward.entries[:1]
            for frame, _ in entry.below[:1]
        )
    return tuple(replace(where, share=lines.share * (where.share or 0.0)) for where in lines.where)


def _without_steps(snapshot: Snapshot) -> Explanation | None:
    """The verdict on a program without steps whose time is mostly native code that works with arrays."""
    lines = by_hand(snapshot)
    busy = device_busy(snapshot)
    share = min(1.0, max(lines.share, busy or 0.0))
    if not lines.where:
        return None
    first, *others = lines.where
    evidence = [f"{percent(lines.share * (first.share or 1.0))} at {short_place(first)}"]
    if others:
        then = (f"{short_place(where)} {percent(lines.share * (where.share or 0.0))}" for where in others[:2])
        evidence.append("then " + ", ".join(then))
    if busy is not None:
        evidence.append(f"GPU busy {percent(busy)} of the time")
    return Explanation(
        severity="info",
        share=share,
        gains=False,
        doubtful=True,
        title=f"{percent(share)} of the time is native code at work: {place_of(first)}",
        lines=lines,
        evidence=[*evidence, NO_STEPS],
    )


def _achieved(snapshot: Snapshot) -> list[str]:
    """Evidence of the FLOP/s that the run reaches, and of its MFU; empty where they are not known."""
    steps, facts = snapshot.steps, snapshot.facts
    if steps is None or steps.flops_per_second is None:
        return []
    dtype = f" in {facts.flops_dtype}" if facts is not None and facts.flops_dtype else ""
    part = f": {percent(steps.mfu)} of what the GPU can do (MFU)" if steps.mfu is not None else ""
    return [f"{operations(steps.flops_per_second)} achieved{dtype}{part}"]
