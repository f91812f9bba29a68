"""What a model computes for nothing: tokens again that it has computed, padding, and what could be kept."""

from __future__ import annotations

from itertools import pairwise

from aitop.diagnosis import op_cost
from aitop.diagnosis.device import on_gpu
from aitop.diagnosis.evidence import (
    above_forward,
    each_unit,
    lines_of,
    main_lines,
    operations_of_step,
    records,
    running,
)
from aitop.diagnosis.rule import Explanation
from aitop.diagnosis.series import line_through
from aitop.diagnosis.what_if import estimated, fix
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent
from aitop.model.verdict import Where

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
# Padding is a loss from LEAST_PADDED of a step on, and if LEAST_BATCHES were looked at. That the sequences of a batch
# are of unlike length is told, too, if this makes the loss WORTH_PACKING times as large.
LEAST_PADDED, LEAST_BATCHES, WORTH_PACKING = 0.15, 2, 1.15


def tokens_again(snapshot: Snapshot) -> Explanation | None:
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


def padding(snapshot: Snapshot, where: tuple[Where, ...]) -> Explanation | None:
    """The verdict on batches whose longest sequence is much shorter than their rows: the rest is padding.

    `where` are the lines that compute most.
    """
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
        where=where,
        claims=(),
        evidence=(
            f"batches are {seen.width:.0f} tokens wide, their longest sequences have {seen.longest:.0f} on average",
            f"all sequences have {seen.mean:.0f} on average, by the attention masks of {seen.looks} batches",
        ),
        fixes=tuple(fixes),
    )


def frozen(snapshot: Snapshot) -> float:
    """The share (0..1) of each training step that is forward passes without gradients; 0 where something else acts."""
    steps, forward = records(snapshot), snapshot.phases.forward
    whole = sum(step.forward for step in steps)
    acts = main_lines(snapshot, lambda entry: entry.phase == "environment").lines
    if snapshot.kind != "training" or forward is None or not whole or acts:
        return 0.0
    return forward * sum(step.no_grad for step in steps) / whole
