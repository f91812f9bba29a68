"""optimizer-bound: the optimizer takes longer than an update of all parameters together would."""

from __future__ import annotations

import math

import msgspec

from aitop.diagnosis.causes.oversubscription import others_have_cores
from aitop.diagnosis.evidence import (
    UNPROVEN,
    confidence,
    enough,
    host_limit,
    main_lines,
    on_gpu,
    records,
    running,
    timed_on_device,
)
from aitop.diagnosis.op_cost import CUDA_TOGETHER, FOREACH, FUSED, ONE_BY_ONE
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.steps import HookFacts
from aitop.model.units import count, percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

CRITICAL_SHARE = 0.3
# Where nobody counted the parameters: what foreach saves of a loop over many small ones.
UNCOUNTED = 1.0 - FOREACH[0] / ONE_BY_ONE[0]
# The same machine may be so much slower than the one on which those were measured.
SLOWER = 1.5
# What torch's own optimizer takes beyond so many times as long is a fight for cores or memory, and none of its doing.
NOT_ITS_OWN = 6.0


def judge(snapshot: Snapshot) -> Judgement:
    """The optimizer takes far longer than its parameters justify."""
    missing = enough(snapshot)
    if missing:
        return Abstention(id="optimizer-bound", reason=missing)
    share = snapshot.steps.phases.optimizer if snapshot.steps else None
    if share is None or snapshot.steps is None:
        return None
    mean = snapshot.steps.mean
    facts = _of_whole_step(snapshot, share)
    expected, own = None, share
    if facts is not None and mean:
        ran = mean * running(snapshot)
        needed = batched_seconds(facts, share * ran)
        expected = None if needed is None else min(share, needed / ran)
        own = min(share, _most_of_its_own(facts) / ran)
    lost = own - min(own, expected) if expected is not None else share * UNCOUNTED
    unproven = on_gpu(snapshot) and not timed_on_device(snapshot)
    if unproven:
        lost = min(lost, host_limit(snapshot))
    lines = main_lines(snapshot, lambda entry: entry.phase == "optimizer")
    signals = (expected is not None, snapshot.steps.basis == "hook" and lines.share > 0.5 * share, share > 0.4)
    severity: Severity = "critical" if lost >= CRITICAL_SHARE and sum(signals) >= 2 and not unproven else "warning"
    if lost < CRITICAL_SHARE and others_have_cores(snapshot):
        # Phases of so little are stretched by whoever has the core.
        severity = "info"
    sure = confidence(*signals, base=0.45, steps=len(records(snapshot)))
    beyond = "lost in the optimizer if it updates parameters one by one"
    if expected is not None:
        batched = facts is not None and facts.foreach
        beyond = "lost in an update of many operations" if batched else "lost in updating parameters one by one"
    evidence = [f"the optimizer takes {percent(share)} of each step"]
    if facts is not None and facts.parameters is not None and expected is not None:
        names = ", ".join(facts.optimizers) or "the optimizer"
        tensors = f" in {count(facts.parameter_tensors)} tensors" if facts.parameter_tensors else ""
        how = "in one operation" if facts.foreach else "together"
        evidence.append(
            f"{names}: {count(facts.parameters)} parameters{tensors} updated {how} need {percent(expected)}"
        )
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
            fixes=_fixes(facts, lost),
        ),
        level=lost,
        claims=lines.entries,
    )


def batched_seconds(facts: HookFacts, taken: float) -> float | None:
    """What the update would take if it were made together, of the `taken` seconds; None without a count of parameters.

    How much faster that is was measured; the run's own time says how fast its machine is, and of an optimizer that is
    not torch's own perhaps only that it does more than an update.
    """
    if facts.parameters is None:
        return None
    if facts.cuda:
        return _seconds(facts, CUDA_TOGETHER)
    if facts.fused:
        return taken
    now = FOREACH if facts.foreach else ONE_BY_ONE
    then = FUSED if facts.foreach or _large(facts) else FOREACH
    target = _seconds(facts, then)
    in_proportion = taken * min(1.0, target / _seconds(facts, now))
    # How torch's own do it is known: what they take beyond that is the machine's, and stays with any of them.
    return in_proportion if facts.foreach is not None else min(in_proportion, SLOWER * target)


def _most_of_its_own(facts: HookFacts) -> float:
    """The longest (seconds) that an update can take by the way it is made; no limit where that way is not known."""
    if facts.cuda or facts.foreach is None or facts.parameters is None:
        return math.inf
    return NOT_ITS_OWN * _seconds(facts, FUSED if facts.fused else FOREACH if facts.foreach else ONE_BY_ONE)


def _of_whole_step(snapshot: Snapshot, share: float) -> HookFacts | None:
    """The facts, without a count of parameters that is of a part of them only.

    Of a step that calls several modules by itself only the largest was counted: where its parameters cannot take so
    long, there are more.
    """
    facts, mean = snapshot.facts, snapshot.steps.mean if snapshot.steps else None
    calls = sorted(step.forwards for step in records(snapshot))
    if facts is None or not mean or not calls or calls[len(calls) // 2] < 2:
        return facts
    if share * mean * running(snapshot) <= _most_of_its_own(facts):
        return facts
    return msgspec.structs.replace(facts, parameters=None, parameter_tensors=None)


def _large(facts: HookFacts) -> bool:
    """Whether tensors are so large that foreach gains nothing on a CPU."""
    return _seconds(facts, FOREACH) > 0.8 * _seconds(facts, ONE_BY_ONE)


def _seconds(facts: HookFacts, cost: tuple[float, float]) -> float:
    tensors = facts.parameter_tensors or 1
    return max(1e-9, tensors * cost[0] + (facts.parameters or 0) * cost[1])


def _fixes(facts: HookFacts | None, lost: float) -> tuple[Fix, ...]:
    gain = round(without(min(0.99, lost)), 2)
    rarely = Fix(text="accumulate gradients over several batches and update less often")
    if facts is not None and facts.fused:
        return (rarely,)
    if facts is not None and (facts.foreach or (not facts.cuda and facts.parameters is not None and _large(facts))):
        return (Fix(text="fused=True updates all parameters in one operation", speedup=gain), rarely)
    return (
        Fix(text="foreach=True updates all parameters in a few operations", speedup=gain),
        Fix(text="fused=True, where the optimizer has it, takes a third of that again"),
    )


RULE = Rule("optimizer-bound", judge, Band(enter=0.2, leave=0.14))
