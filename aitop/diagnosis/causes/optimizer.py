"""optimizer-bound: the optimizer takes longer than it would if it updated all parameters together."""

from __future__ import annotations

from aitop.diagnosis.device import host_limit, on_gpu, timed_on_device
from aitop.diagnosis.evidence import main_lines, running
from aitop.diagnosis.op_cost import CUDA_TOGETHER, DENORMAL, FOREACH, FUSED, ONE_BY_ONE
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.snapshot import Snapshot
from aitop.model.steps import HookFacts
from aitop.model.units import count, percent
from aitop.model.verdict import Fix

# What foreach saves of a loop over many small tensors: the estimate if the parameters were not counted.
UNCOUNTED = 1.0 - FOREACH[0] / ONE_BY_ONE[0]
# How much slower this machine may be than the one on which the costs in `op_cost` were measured.
SLOWER = 1.5
# If at least this share of the optimizer's state is slowed by denormal numbers, they are why an update takes so long.
LEAST_DENORMAL = 0.01
FLUSH = (
    "torch.set_flush_denormal(True) once at the start, in the thread that trains: denormal numbers count as zero then,"
    " which changes no weight by more than rounding does"
)
OTHER_MAKING = (
    "update all parameters together: with torch._foreach_* functions if it loops over them, else compiled"
    " (torch.compile of the update), or with an optimizer of torch's and fused=True if one does the same"
)
# A change after which the update still takes this share of its time is not worth making.
SAME = 0.8


@rule("optimizer-bound", 0.2, 0.14, scope=Scope(each_unit=True))
def judge(snapshot: Snapshot) -> Explanation | None:
    """The verdict on an optimizer that takes longer than updating its parameters needs."""
    steps = snapshot.steps
    share = steps.phases.optimizer if steps else None
    if share is None or steps is None:
        return None
    lines = main_lines(snapshot, lambda entry: entry.phase == "optimizer")
    if lines.entries:
        # Waits that another cause has claimed, such as those for the GIL, would remain with any other update.
        share = min(share, lines.share)
    facts, expected, denormal = snapshot.facts, None, None
    if facts is not None and steps.mean:
        seconds = steps.mean * running(snapshot)
        denormal = _without_denormals(facts, share * seconds) if slowed_by_denormals(snapshot) else None
        needed = denormal or _batched_seconds(facts, share * seconds)
        expected = None if needed is None else min(share, needed / seconds)
    lost = share - expected if expected is not None else share * UNCOUNTED
    unproven = on_gpu(snapshot) and not timed_on_device(snapshot)
    if unproven:
        lost = min(lost, host_limit(snapshot))
    lost = min(0.99, lost)
    evidence = [f"the optimizer takes {percent(share)} of each step"]
    if facts is not None and facts.parameters is not None and expected is not None:
        evidence.append(_needs(facts, expected, denormal=denormal is not None))
    return Explanation(
        share=lost,
        signals=(expected is not None, steps.basis == "hook" and lines.share > 0.5 * share, share > 0.4),
        doubtful=unproven,
        subtype=None if denormal is None else "denormal",
        title=f"{percent(lost)} of each step is {_beyond(facts, expected, denormal=denormal is not None)}",
        lines=lines,
        evidence=evidence,
        fixes=_fixes(facts, share, lost) if denormal is None else (fix(FLUSH, lost),),
    )


def _beyond(facts: HookFacts | None, expected: float | None, *, denormal: bool) -> str:
    """Words for what the time beyond the expected share is lost in."""
    if denormal:
        return "lost in an update that computes with denormal numbers"
    if facts is None or expected is None:
        return "lost in the optimizer if it updates parameters one by one"
    if _of_other_making(facts):
        return "lost in an update that takes longer than one of all parameters together"
    return "lost in an update of many operations" if facts.foreach else "lost in updating parameters one by one"


def _of_other_making(facts: HookFacts) -> bool:
    """Whether the optimizer is not torch's own: in how many operations it updates is not known, nor what it is told."""
    return facts.foreach is None and facts.own_optimizer is True


def _needs(facts: HookFacts, expected: float, *, denormal: bool) -> str:
    """Evidence of what an update of these parameters would take."""
    names = ", ".join(facts.optimizers) or "the optimizer"
    tensors = f" in {count(facts.parameter_tensors)} tensors" if facts.parameter_tensors else ""
    if denormal:
        return (
            f"{names}: {percent(facts.denormals or 0.0)} of its state is slowed by denormal numbers (below 1.2e-38),"
            " with which a CPU computes a hundred times as slowly; without them"
            f" {count(facts.parameters or 0)} parameters{tensors} need {percent(expected)}"
        )
    how = "in one operation" if facts.foreach else "together"
    return f"{names}: {count(facts.parameters or 0)} parameters{tensors} updated {how} need {percent(expected)}"


def slowed_by_denormals(snapshot: Snapshot) -> bool:
    """Whether denormal numbers were found in the optimizer's state, and the processor is not known to take them well.

    On a GPU they cost nothing: the hook looks only at what is in the CPU's memory.
    """
    if snapshot.host is not None and snapshot.host.machine.slow_denormals is False:
        return False
    return snapshot.facts is not None and (snapshot.facts.denormals or 0.0) >= LEAST_DENORMAL


def _without_denormals(facts: HookFacts, taken: float) -> float | None:
    """Seconds that the update would take without denormal numbers instead of `taken`; None where they do not slow it.

    They come from weights that get no gradient any more: their moving averages shrink until rounding stops them.
    """
    if facts.parameters is None:
        return None
    usual = _seconds(facts, FUSED if facts.fused else FOREACH if facts.foreach else ONE_BY_ONE)
    normal = max(usual, taken - (facts.denormals or 0.0) * facts.parameters * DENORMAL)
    return normal if normal < SAME * taken else None


def _batched_seconds(facts: HookFacts, taken: float) -> float | None:
    """Seconds that the update would take in a few operations instead of `taken`; None without a count of parameters.

    How much faster that is was measured (`op_cost`). The time that the run takes now says how fast its machine is; if
    the optimizer is not torch's own, it may also include more than an update.
    """
    if facts.foreach is None and facts.own_optimizer is False:
        # torch's own LBFGS, Muon and their like have no faster implementation.
        return taken
    if facts.parameters is None:
        return None
    if facts.cuda:
        return _seconds(facts, CUDA_TOGETHER)
    if facts.fused:
        return taken
    target = _seconds(facts, FUSED if _fuses(facts) else FOREACH)
    in_proportion = taken * min(1.0, target / _seconds(facts, FOREACH if facts.foreach else ONE_BY_ONE))
    # torch's own optimizers do no more than an update: what they take beyond the measured cost is due to the machine,
    # and would remain. Another one may be slow by itself: of its time only what a SLOWER machine explains would remain.
    return in_proportion if facts.foreach is not None else min(in_proportion, SLOWER * target)


def _fuses(facts: HookFacts) -> bool:
    """Whether to recommend fused=True on a CPU: the optimizer offers it, or foreach is in use or would gain nothing."""
    return facts.fused is not None or bool(facts.foreach) or _with_foreach(facts) > SAME


def _with_foreach(facts: HookFacts) -> float:
    """The time with foreach on a CPU as a part of that of a loop: the larger the tensors, the less foreach gains."""
    return _seconds(facts, FOREACH) / _seconds(facts, ONE_BY_ONE)


def _seconds(facts: HookFacts, cost: tuple[float, float]) -> float:
    return max(1e-9, (facts.parameter_tensors or 1) * cost[0] + (facts.parameters or 0) * cost[1])


def _fixes(facts: HookFacts | None, share: float, lost: float) -> tuple[Fix, ...]:
    rarely = fix("accumulate gradients over several batches and update less often")
    foreach = "foreach=True updates all parameters in a few operations"
    if facts is not None and facts.fused:
        return (rarely,)
    if facts is not None and _of_other_making(facts):
        return (fix(OTHER_MAKING, lost), rarely)
    if facts is None or not (facts.foreach or (not facts.cuda and facts.parameters is not None and _fuses(facts))):
        return (fix(foreach, lost), fix("fused=True, where the optimizer has it, takes a third of that again"))
    fused = fix("fused=True updates all parameters in one operation (on a CPU from torch 2.4 on)", lost)
    gains = not facts.foreach and _with_foreach(facts) <= SAME
    return (fused, fix(foreach, share * (1.0 - _with_foreach(facts))) if gains else rarely)
