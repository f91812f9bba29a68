"""The step computes: compute-bound (healthy), optimizer-bound."""

from __future__ import annotations

from aitop.diagnosis.evidence import (
    UNPROVEN,
    confidence,
    device_busy,
    enough,
    host_limit,
    host_unproven,
    main_lines,
    on_gpu,
    records,
    running,
    timed_on_device,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Phases, Snapshot
from aitop.model.steps import HookFacts
from aitop.model.units import count, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

CRITICAL_SHARE = 0.3
# An Adam update reads and writes about 28 bytes a parameter; one core moves some 10 GB/s, a GPU hundreds.
CPU_SECONDS_PER_PARAMETER = 3e-9
CUDA_SECONDS_PER_PARAMETER = 3e-11
# A foreach update makes about a dozen operations on each tensor: 0.8 µs each on a core, next to nothing on a GPU.
CPU_SECONDS_PER_TENSOR = 10e-6
CUDA_SECONDS_PER_TENSOR = 0.3e-6
MOSTLY = 0.8
# A device that is busy for more, or less, of the time limits the step, or does not.
BUSY_DEVICE, IDLE_DEVICE = 0.8, 0.5


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
    evidence = [
        f"forward {percent(phases.forward)}, backward {percent(phases.backward)}, optimizer {percent(phases.optimizer)}"
    ]
    if busy is not None:
        evidence.append(f"GPU busy {percent(busy)} of the time")
        if not timed_on_device(snapshot) and busy > max(computing, BUSY_DEVICE):
            # The host waits for the device outside of the phases, as in .item(): that is computing, too.
            computing = busy
    idle = busy is not None and busy < IDLE_DEVICE
    between = phases.outside is not None and computing < MOSTLY and phases.outside > 1.0 - MOSTLY
    sure = confidence(phases.data_wait is not None, computing > MOSTLY, steps=len(records(snapshot)))
    if idle:
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
            confidence=min(sure, UNPROVEN) if idle or between or host_unproven(snapshot) else sure,
            title=told,
            evidence=tuple(evidence),
        ),
        level=computing,
    )


def optimizer_bound(snapshot: Snapshot) -> Judgement:
    """The optimizer takes far longer than its parameters justify."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id="optimizer-bound", reason=missing)
    share = snapshot.steps.phases.optimizer if snapshot.steps else None
    if share is None or snapshot.steps is None:
        return None
    facts, mean = snapshot.facts, snapshot.steps.mean
    expected = None
    needed = _update_seconds(facts) if facts is not None else None
    if needed is not None and mean:
        expected = min(share, needed / (mean * running(snapshot)))
    lost = share - (expected or 0.0)
    if expected is not None and share < 1.5 * expected:
        return None
    unproven = on_gpu(snapshot) and not timed_on_device(snapshot)
    if unproven:
        lost = min(lost, host_limit(snapshot))
    lines = main_lines(snapshot, lambda line: line.phase == "optimizer")
    signals = (expected is not None, snapshot.steps.basis == "hook" and lines.share > 0.5 * share, share > 0.4)
    severity: Severity = "critical" if lost >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven else "warning"
    sure = confidence(*signals, base=0.45, steps=len(records(snapshot)), share=lost)
    beyond = "optimizer beyond what its parameters need" if expected is not None else "the optimizer"
    batched = facts is not None and bool(facts.foreach or facts.fused)
    evidence = [f"the optimizer takes {percent(share)} of each step"]
    if facts is not None and facts.parameters is not None and expected is not None:
        names = ", ".join(facts.optimizers) or "the optimizer"
        tensors = f" in {count(facts.parameter_tensors)} tensors" if facts.parameter_tensors else ""
        evidence.append(f"{names}: {count(facts.parameters)} parameters{tensors} should need {percent(expected)}")
    return Finding(
        Verdict(
            id="optimizer-bound",
            severity=severity,
            share=round(lost, 4),
            speedup=round(without(min(0.99, lost)), 3),
            confidence=min(sure, UNPROVEN) if unproven else sure,
            title=f"{percent(lost)} of each step is {beyond}",
            where=lines.where,
            evidence=tuple(evidence),
            fixes=(
                Fix(text="accumulate gradients over several batches and update less often")
                if batched
                else Fix(
                    text="foreach=True or fused=True updates all parameters in a few operations",
                    speedup=round(without(min(0.99, lost)), 2),
                ),
            ),
        ),
        level=lost,
    )


def _update_seconds(facts: HookFacts) -> float | None:
    """What a batched update of all parameters would take, None where they were not counted."""
    if facts.parameters is None:
        return None
    if facts.cuda:
        return facts.parameters * CUDA_SECONDS_PER_PARAMETER + (facts.parameter_tensors or 0) * CUDA_SECONDS_PER_TENSOR
    return facts.parameters * CPU_SECONDS_PER_PARAMETER + (facts.parameter_tensors or 0) * CPU_SECONDS_PER_TENSOR


def _sum(*shares: float | None) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) if known else None


RULES = (
    Rule("optimizer-bound", optimizer_bound, Band(enter=0.25, leave=0.18)),
    Rule("compute-bound", compute_bound, Band(enter=0.5, leave=0.4), only_alone=True),
)
