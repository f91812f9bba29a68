"""The step computes: compute-bound (healthy), optimizer-bound."""

from __future__ import annotations

from aitop.diagnosis.causes.requests import leisure
from aitop.diagnosis.evidence import (
    UNPROVEN,
    confidence,
    device_busy,
    enough,
    host_unproven,
    records,
    timed_on_device,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.model.snapshot import Phases, Snapshot
from aitop.model.units import operations, percent
from aitop.model.verdict import Abstention, Verdict

CRITICAL_SHARE = 0.3
MOSTLY = 0.8
# A device that is busy for more, or less, of the time limits the step, or does not.
BUSY_DEVICE, IDLE_DEVICE = 0.8, 0.5

# Who waits for requests for so much of the time could serve more.
AT_LEISURE = 0.5

UNSEEN = "in which types and how large batches it computes, and whether that is too much, is not known without the hook"


def compute_bound(snapshot: Snapshot) -> Judgement:
    """Most of the step is forward, backward and optimizer: the device is the limit."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id="compute-bound", reason=missing)
    phases = snapshot.steps.phases if snapshot.steps else Phases()
    computing = _sum(phases.forward, phases.backward, phases.optimizer)
    if computing is None:
        return None
    busy = device_busy(snapshot)
    parts = {"forward": phases.forward, "backward": phases.backward, "optimizer": phases.optimizer}
    evidence = [", ".join(f"{name} {percent(share)}" for name, share in parts.items() if share is not None)]
    if busy is not None:
        evidence.append(f"GPU busy {percent(busy)} of the time")
        if not timed_on_device(snapshot) and busy > max(computing, BUSY_DEVICE):
            # The host waits for the device outside of the phases, as in .item(): that is computing, too.
            computing = busy
    evidence += _achieved(snapshot)
    unseen = snapshot.facts is None
    if unseen:
        evidence.append(UNSEEN)
    idle = busy is not None and busy < IDLE_DEVICE
    between = phases.outside is not None and computing < MOSTLY and phases.outside > 1.0 - MOSTLY
    sure = confidence(phases.data_wait is not None, computing > MOSTLY, steps=len(records(snapshot)))
    waiting = leisure(snapshot).share
    level = computing
    if waiting >= AT_LEISURE:
        told = f"{percent(waiting)} of the time is waiting for requests: nothing holds this run up"
        level = max(waiting, computing / max(0.01, 1.0 - waiting))
    elif idle:
        told = f"{percent(computing)} of each step computes, but the GPU is busy only {percent(busy)} of the time"
    elif between:
        told = f"{percent(computing)} of each step computes, {percent(phases.outside)} passes between the phases"
    else:
        told = f"{percent(computing)} of each step computes: nothing else is worth removing first"
    return Finding(
        Verdict(
            id="compute-bound",
            severity="info",
            share=round(computing, 4),
            confidence=min(sure, UNPROVEN) if idle or between or unseen or host_unproven(snapshot) else sure,
            title=told,
            evidence=tuple(evidence),
        ),
        level=level,
    )


def _achieved(snapshot: Snapshot) -> list[str]:
    """What the run computes in a second, and how much of what its devices could do that is, where it is known."""
    steps, facts = snapshot.steps, snapshot.facts
    if steps is None or steps.flops_per_second is None:
        return []
    dtype = facts.flops_dtype if facts is not None else None
    told = f"{operations(steps.flops_per_second)} achieved" + (f" in {dtype}" if dtype else "")
    if steps.mfu is not None:
        told += f": {percent(steps.mfu)} of what the GPU can do (MFU)"
    return [told]


def _sum(*shares: float | None) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) if known else None


RULE = Rule("compute-bound", compute_bound, Band(enter=0.5, leave=0.4), only_alone=True)
