"""compute-bound: most of the time is computing, so nothing else is worth removing first."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from aitop.diagnosis.causes import needless
from aitop.diagnosis.causes.comm_bound import exchanging
from aitop.diagnosis.causes.oversubscription import others_have_cores
from aitop.diagnosis.device import IDLE_DEVICE, device_busy, host_unproven, on_gpu, timed_on_device
from aitop.diagnosis.evidence import (
    by_hand,
    each_unit,
    judged_pid,
    lines_of,
    main_lines,
    place_of,
    server_idle_share,
    serves,
    short_place,
    stepping,
    waits_for_requests,
    where_of,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Length, estimated, fix
from aitop.model.ledger import Entry, Ledger
from aitop.model.snapshot import Snapshot
from aitop.model.units import operations, percent
from aitop.model.verdict import Where

MOSTLY = 0.8
# The device limits the step if it is busy for more than this part of the time.
BUSY_DEVICE = 0.8
# A phase that takes less of the time is not listed: the backward pass of a server, say.
LEAST_TOLD = 0.005
# A server that waits for requests for this share of the time could serve more.
MOSTLY_IDLE = 0.5
# One process of several that run the same model is taken for overloaded if it is at work for FULL of the time and all
# of them on average for less than EVEN of that.
FULL, EVEN = 0.9, 0.75
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
    busiest = _busiest(snapshot)
    return (
        needless.tokens_again(snapshot)
        or needless.unused_gradients(snapshot, busiest)
        or needless.padding(snapshot, busiest)
        or needless.recomputed(snapshot)
        or _with_steps(snapshot)
    )


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
        serving = snapshot.serving
        seen = serving is not None and (bool(serving.requests) or serving.concurrency is not None)
        why = ": nothing holds this run up" if seen else ", or for a batch of them to fill"
        title = f"{percent(waiting)} of the time is waiting for requests{why}"
        level = max(waiting, computing / max(0.01, 1.0 - waiting))
    elif idle:
        title = f"{computes}, but the GPU is busy only {percent(busy)} of the time"
    elif between:
        rests = f"{percent(waiting)} is waiting for requests" if waiting > 0.5 * outside else None
        title = f"{computes}, {rests or f'{percent(outside)} passes between the phases'}"
    fixes = []
    frozen, uneven = needless.frozen(snapshot), _unevenly(snapshot)
    if frozen >= needless.LEAST_FROZEN:
        title = f"{computes}, {percent(frozen)} of it without gradients"
        evidence.append("a model runs without gradients in each step, as a teacher or a frozen part does")
        fixes.append(fix(needless.FROZEN, frozen))
    if uneven is not None:
        busiest, idlest = uneven.busiest, uneven.idlest
        title = f"{computes}, while pid {idlest.pid}, which runs the same model, rests {percent(idlest.rests)} of it"
        evidence.append(
            f"pid {busiest.pid} rests {percent(busiest.rests)} of the time: its requests may wait meanwhile"
        )
        fixes.append(
            fix("let all processes take requests from one queue, or hand each to the least busy", uneven.saved)
        )
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


class _Worker(NamedTuple):
    """A process that runs a model, and the share (0..1) of its time in which it has nothing to do."""

    pid: int
    rests: float


class _Uneven(NamedTuple):
    """The process that is never idle and the one that rests most, of those that run one model.

    `saved` is the time of a request that is saved where all of them work equally, if requests wait for the busiest.
    """

    busiest: _Worker
    idlest: _Worker
    saved: Length


def _unevenly(snapshot: Snapshot) -> _Uneven | None:
    """The processes that run the same model, if one of them does most of the work; None if they share it."""
    if snapshot.kind != "inference" or not snapshot.ledgers:
        return None
    models = [{entry.at for entry in ledger.main if _runs_model(entry)} for ledger in snapshot.ledgers]
    same = [ledger for ledger, lines in zip(snapshot.ledgers, models, strict=True) if lines & models[0]]
    workers = sorted((_Worker(ledger.pid, _rests(ledger)) for ledger in same), key=lambda worker: worker.rests)
    work = [1.0 - worker.rests for worker in workers]
    if len(workers) < 2 or work[0] < FULL or sum(work) > EVEN * len(work) * work[0]:
        return None
    share = 1.0 - sum(work) / len(work) / work[0]
    # If there is a single client, no request waits, and nothing is gained.
    return _Uneven(workers[0], workers[-1], estimated(share, 0.0, share))


def _runs_model(entry: Entry) -> bool:
    return entry.phase == "forward" and entry.where is not None


def _rests(ledger: Ledger) -> float:
    return min(1.0, sum(entry.share for entry in ledger.main if waits_for_requests(entry)))


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
