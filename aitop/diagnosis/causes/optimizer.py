"""optimizer-bound: the optimizer takes longer than it would if it updated all parameters together."""

from __future__ import annotations

from typing import NamedTuple

from aitop.diagnosis.device import host_limit, on_gpu, timed_on_device
from aitop.diagnosis.evidence import Lines, main_lines, running
from aitop.diagnosis.op_cost import CUDA_TOGETHER, DENORMAL, FOREACH, FUSED, ONE_BY_ONE, WHOLE_CALL
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, between, fix
from aitop.model.snapshot import Snapshot
from aitop.model.steps import HookFacts
from aitop.model.units import count, percent
from aitop.model.verdict import Fix

# What foreach saves of a loop over many small tensors: the estimate if parameters were not counted, and stacks do not
# show how they are updated.
UNCOUNTED = 1.0 - FOREACH[0] / ONE_BY_ONE[0]
# How the functions of torch.optim begin that update, with their costs, and how those end that can be fused on a CPU.
UPDATES = {"_single_tensor_": ONE_BY_ONE, "_multi_tensor_": FOREACH, "_fused_": FUSED}
FUSIBLE = ("_adam", "_adamw", "_sgd", "_adagrad")
# How much slower this machine may be than the one on which the costs in `op_cost` were measured.
SLOWER = 1.5
# If at least this share of the optimizer's state is slowed by denormal numbers, they are why an update takes so long.
LEAST_DENORMAL = 0.01
FLUSH = (
    "torch.set_flush_denormal(True) once at the start, in the thread that trains: denormal numbers count as zero then,"
    " which changes no weight by more than rounding does"
)
FUSE = "fused=True updates all parameters in one operation (on a CPU from torch 2.4 on)"
OTHER_MAKING = (
    "update all parameters together: with torch._foreach_* functions if it loops over them, else compiled"
    " (torch.compile of the update), or with an optimizer of torch's and fused=True if one does the same"
)
# A change after which the update still takes this share of its time is not worth making.
SAME = 0.8


# Embeddings are named if at least this part of all parameters is in them.
MOSTLY_LOOKED_UP = 0.5


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
    update = _update_on_cpu(lines) if facts is None and not on_gpu(snapshot) else None
    saved = update.saved if update is not None else UNCOUNTED
    lost = share - expected if expected is not None else share * saved
    unproven = on_gpu(snapshot) and not timed_on_device(snapshot)
    if unproven:
        lost = min(lost, host_limit(snapshot))
    lost = min(0.99, lost)
    evidence = [f"the optimizer takes {percent(share)} of each step"]
    if facts is not None and facts.parameters is not None and expected is not None:
        evidence.append(_needs(facts, expected, denormal=denormal is not None))
    if update is not None:
        takes = f"{percent(1.0 - update.most)} to {percent(1.0 - update.least)}"
        evidence.append(f"on a CPU one fused operation takes {takes} of the time of {update.function}")
    return Explanation(
        share=lost,
        saved=None if update is None else between(lost, share * update.least, share * update.most, lines.entries),
        signals=(
            expected is not None or update is not None,
            steps.basis == "hook" and lines.share > 0.5 * share,
            share > 0.4,
        ),
        doubtful=unproven,
        subtype=None if denormal is None else "denormal",
        title=f"{percent(lost)} of each step is {_beyond(facts, expected, update, denormal=denormal is not None)}",
        lines=lines,
        evidence=evidence,
        fixes=(fix(FLUSH, lost),) if denormal is not None else _fixes(facts, update, share, lost),
    )


class Update(NamedTuple):
    """How torch updates the parameters, by the `function` in which the samples of the optimizer end.

    On a CPU a fused update saves the part `saved` of its time, between `least` and `most`. That depends on how large
    the tensors are: the time of small ones is mostly calls of operations, of which a part is Python. `single`: it
    updates one tensor after the other.
    """

    function: str
    saved: float
    least: float
    most: float
    single: bool


def _update_on_cpu(lines: Lines) -> Update | None:
    """The Update that most samples show; None where it is not one of torch's that can be fused."""
    parts: dict[str, float] = {}
    for entry in lines.entries:
        for frame, part in entry.below:
            parts[frame.function] = parts.get(frame.function, 0.0) + part * entry.share
    for function in sorted(parts, key=lambda name: -parts[name]):
        for begins, cost in UPDATES.items():
            if function.startswith(begins) and function.endswith(FUSIBLE):
                small, large = (1.0 - fused / own for fused, own in zip(FUSED, cost, strict=True))
                calling = min(1.0, WHOLE_CALL * lines.part(lambda entry: entry.does == "python"))
                saved = calling * small + (1.0 - calling) * large
                return Update(function, saved, min(small, large), max(small, large), single=cost is ONE_BY_ONE)
    return None


def _beyond(facts: HookFacts | None, expected: float | None, update: Update | None, *, denormal: bool) -> str:
    """Words for what the time beyond the expected share is lost in."""
    if denormal:
        return "lost in an update that computes with denormal numbers"
    if update is not None:
        return "lost in updating parameters one by one" if update.single else "lost in an update of many operations"
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


def _sparse(facts: HookFacts | None, share: float) -> tuple[Fix, ...]:
    """The fix for an update of whole embeddings, of which a step uses some rows; empty where they are a small part."""
    if facts is None or not facts.parameters or "SparseAdam" in facts.optimizers:
        return ()
    part = (facts.looked_up_parameters or 0) / facts.parameters
    if part < MOSTLY_LOOKED_UP:
        return ()
    rows = f"{percent(part)} of the parameters are rows of embeddings"
    return (fix(f"update only the rows that a step uses (sparse=True, SparseAdam): {rows}", share * part),)


def _fixes(facts: HookFacts | None, update: Update | None, share: float, lost: float) -> tuple[Fix, ...]:
    return (*_sparse(facts, share), *_faster(facts, update, share, lost))


def _faster(facts: HookFacts | None, update: Update | None, share: float, lost: float) -> tuple[Fix, ...]:
    rarely = fix("accumulate gradients over several batches and update less often")
    foreach = "foreach=True updates all parameters in a few operations"
    if facts is not None and facts.fused:
        return (rarely,)
    if facts is not None and _of_other_making(facts):
        return (fix(OTHER_MAKING, lost), rarely)
    if update is not None:
        return (fix(FUSE, lost), fix(foreach, share * UNCOUNTED) if update.single else rarely)
    if facts is None or not (facts.foreach or (not facts.cuda and facts.parameters is not None and _fuses(facts))):
        return (fix(foreach, lost), fix("fused=True, where the optimizer has it, takes a third of the time of foreach"))
    gains = not facts.foreach and _with_foreach(facts) <= SAME
    return (fix(FUSE, lost), fix(foreach, share * (1.0 - _with_foreach(facts))) if gains else rarely)
