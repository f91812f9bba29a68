"""optimizer-bound: the optimizer takes longer than an update of all parameters together would."""

from __future__ import annotations

import math

import msgspec

from aitop.diagnosis.causes.oversubscription import others_have_cores
from aitop.diagnosis.device import host_limit, on_gpu, timed_on_device
from aitop.diagnosis.evidence import main_lines, records, running
from aitop.diagnosis.op_cost import CUDA_TOGETHER, FOREACH, FUSED, ONE_BY_ONE
from aitop.diagnosis.rule import CRITICAL_SHARE, Explanation, rule
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.snapshot import Snapshot
from aitop.model.steps import HookFacts
from aitop.model.units import count, percent
from aitop.model.verdict import Fix

# Where nobody counted the parameters: what foreach saves of a loop over many small ones.
UNCOUNTED = 1.0 - FOREACH[0] / ONE_BY_ONE[0]
# The same machine may be so much slower than the one on which those were measured.
SLOWER = 1.5
# What torch's own optimizer takes beyond so many times as long is a fight for cores or memory, and none of its doing.
NOT_ITS_OWN = 6.0


@rule("optimizer-bound", 0.2, 0.14, scope=Scope(each_unit=True))
def judge(snapshot: Snapshot) -> Explanation | None:
    """The optimizer takes far longer than its parameters justify."""
    steps = snapshot.steps
    share = steps.phases.optimizer if steps else None
    if share is None or steps is None:
        return None
    facts = _of_whole_step(snapshot, share)
    expected, own = None, share
    if facts is not None and steps.mean:
        seconds = steps.mean * running(snapshot)
        needed = _batched_seconds(facts, share * seconds)
        expected = None if needed is None else min(share, needed / seconds)
        own = min(share, _most_of_its_own(facts) / seconds)
    lost = own - min(own, expected) if expected is not None else share * UNCOUNTED
    unproven = on_gpu(snapshot) and not timed_on_device(snapshot)
    if unproven:
        lost = min(lost, host_limit(snapshot))
    lost = min(0.99, lost)
    lines = main_lines(snapshot, lambda entry: entry.phase == "optimizer")
    # Phases of so little are stretched by whoever has the core.
    stretched = lost < CRITICAL_SHARE and others_have_cores(snapshot)
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
    return Explanation(
        severity="info" if stretched else None,
        share=lost,
        signals=(expected is not None, steps.basis == "hook" and lines.share > 0.5 * share, share > 0.4),
        base=0.45,
        doubtful=unproven,
        title=f"{percent(lost)} of each step is {beyond}",
        lines=lines,
        evidence=evidence,
        fixes=_fixes(facts, lost),
    )


def _batched_seconds(facts: HookFacts, taken: float) -> float | None:
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
    target = _seconds(facts, FUSED if facts.foreach or _large(facts) else FOREACH)
    in_proportion = taken * min(1.0, target / _seconds(facts, FOREACH if facts.foreach else ONE_BY_ONE))
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
    return max(1e-9, (facts.parameter_tensors or 1) * cost[0] + (facts.parameters or 0) * cost[1])


def _fixes(facts: HookFacts | None, lost: float) -> tuple[Fix, ...]:
    rarely = fix("accumulate gradients over several batches and update less often")
    if facts is not None and facts.fused:
        return (rarely,)
    if facts is not None and (facts.foreach or (not facts.cuda and facts.parameters is not None and _large(facts))):
        return (fix("fused=True updates all parameters in one operation", lost), rarely)
    return (
        fix("foreach=True updates all parameters in a few operations", lost),
        fix("fused=True, where the optimizer has it, takes a third of that again"),
    )
