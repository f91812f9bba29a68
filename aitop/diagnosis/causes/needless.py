"""What a model computes for nothing: tokens or activations again, padding, unused gradients, what could be kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from aitop.diagnosis import op_cost
from aitop.diagnosis.device import held_memory, on_gpu
from aitop.diagnosis.evidence import (
    MIN_SAMPLES,
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
from aitop.diagnosis.what_if import estimated, fix, varied
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import duration, percent
from aitop.model.verdict import Where

# Where the loop is the user's, calls of the model compute the whole sequence again for each token if this part of the
# calls got one token more than one of the last MOST_AT_ONCE calls did, each of which is continued once. Calls of any
# lengths do that by chance as often as they get one token less, so those are taken off. In a decoder without a cache
# 92 % of the calls did, in a server that answers two requests at once, now and then one, 98 %; in seven other programs
# and servers at most 2 of 141.
GREW, LEAST_LOOKS, MOST_AT_ONCE = 0.6, 16, 8
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
# Rows that no sequence fills are a loss from LEAST_PADDED of a step on, if LEAST_BATCHES were looked at. That a batch
# has sequences of unlike length is told beside them if this makes the loss WORTH_PACKING times as large; alone, it is a
# loss from LEAST_UNLIKE on: less is the price of batches in random order.
LEAST_PADDED, LEAST_BATCHES, WORTH_PACKING, LEAST_UNLIKE = 0.15, 2, 1.15, 0.3
# Activation checkpointing is told of from this share of a step on. It is worth a warning if no more than MOSTLY_FREE of
# the memory is used: activations that are kept may take as much again.
LEAST_RECOMPUTED, MOSTLY_FREE = 0.1, 0.5
KEEP_ACTIVATIONS = (
    "keep the activations, or checkpoint fewer layers, if that fits into memory (gradient_checkpointing=False,"
    " without torch.utils.checkpoint)"
)
# Gradients that no optimizer uses are told of from this share of a step on.
LEAST_UNUSED = 0.1
UNUSED = (
    "run what is not trained under torch.no_grad() if it is called apart, such as a teacher; else requires_grad_(False)"
    " for its parameters"
)


class Decoding(NamedTuple):
    """How a decoder without a KV cache calls its model. The lists have a value for each call that was looked at.

    lengths     tokens that the call computed
    forward     seconds that it took
    newest      tokens that no earlier call had computed, on average
    seconds     seconds from call to call, on average
    sequences   how many sequences are made at once
    """

    lengths: Sequence[float]
    forward: Sequence[float]
    newest: float
    seconds: float
    sequences: int = 1


def tokens_again(snapshot: Snapshot) -> Explanation | None:
    """The verdict on a decoder that computes its whole sequence again for each token, as it keeps no KV cache.

    The length of a call that computes one token only is derived from how calls get longer with the number of tokens.
    """
    steps = records(snapshot) if snapshot.kind == "inference" else ()
    calls = _by_setting(steps) or _by_growth(steps)
    if calls is None:
        return None
    mean, forward = sum(calls.lengths) / len(calls.lengths), sum(calls.forward) / len(calls.forward)
    slope, fits = line_through(calls.lengths, calls.forward)
    known_by_length = fits > 0.5 or varied(calls.lengths)
    again = min(forward, slope * (mean - calls.newest)) if known_by_length else None
    if again is not None and again <= 0.0:
        return None
    share = min(0.99, (forward if again is None else again) / calls.seconds)
    if again is None:
        title = (
            f"{percent(share)} of {each_unit(snapshot)} is calls that compute all earlier tokens again for a new one"
        )
        known = "calls of other lengths were not seen, so how long one for the newest token would take is not known"
    else:
        title = f"{percent(share)} of {each_unit(snapshot)} computes tokens that were computed before"
        known = (
            f"by how calls get longer, one for the newest token alone would take {duration(forward - again)},"
            f" not {duration(forward)}"
        )
    at_once = "" if calls.sequences == 1 else f" of its sequence ({calls.sequences} are made at once)"
    longer = f"each call of the model gets one token more than the previous one{at_once}: {mean:.0f} on average"
    return Explanation(
        severity="warning",
        subtype="prefix",
        share=share,
        level=max(share, _computing(snapshot)),
        saved=None if again is None else estimated(share, 0.7 * share, share + 0.5 * (1.0 - share)),
        gains=again is not None,
        signals=(again is not None, fits > 0.5),
        title=title,
        where=lines_of(map(above_forward, main_lines(snapshot, lambda entry: entry.phase == "forward").lines)).where,
        claims=(),
        evidence=(longer, known),
        fixes=(fix(CACHE, None if again is None else share),),
    )


def _by_setting(steps: Sequence[StepRecord]) -> Decoding | None:
    """Calls of `generate` that were told to keep no cache. A value is the mean call for one text of one `generate`."""
    texts = [(step, step.tokens, step.tokens_again) for step in steps if step.kind == "generate"]
    known = [(step, tokens, again) for step, tokens, again in texts if tokens and again]
    if not known or 2 * len(known) < len(texts):
        return None
    return Decoding(
        lengths=[again / tokens for _, tokens, again in known],
        forward=[step.forward / tokens for step, tokens, _ in known],
        newest=1.0,
        seconds=sum(step.seconds for step, _, _ in known) / sum(tokens for _, tokens, _ in known),
    )


def _by_growth(steps: Sequence[StepRecord]) -> Decoding | None:
    """Calls of a model that get one token more than an earlier one of their sequence, by looks at their lengths."""
    looks = [after for before, after in pairwise(steps) if after.tokens is not None and after.tokens != before.tokens]
    if len(looks) < LEAST_LOOKS:
        return None
    grew, sequences = max((_part_that_grew(looks, at_once), -at_once) for at_once in range(1, MOST_AT_ONCE + 1))
    if grew < GREW:
        return None
    return Decoding(
        lengths=[step.tokens or 0 for step in looks],
        forward=[step.forward for step in looks],
        newest=sum(step.samples or 1 for step in looks) / len(looks),
        seconds=sum(step.seconds for step in steps) / len(steps),
        sequences=-sequences,
    )


def _part_that_grew(looks: Sequence[StepRecord], at_once: int) -> float:
    """The part of the calls with one token more than one of the `at_once` before, less those with one token less.

    Of calls that were counted between two looks, all sequences are taken to have had equally many.
    """
    calls = net = 0
    # The looks that no call continued yet: with more tokens (1), with less (-1).
    not_continued = {sign: deque[StepRecord](maxlen=at_once) for sign in (1, -1)}
    for before, look in pairwise(looks):
        passed = look.index - before.index
        each_seen = passed <= MOST_AT_ONCE
        calls += passed if each_seen else 1
        for sign, ends in not_continued.items():
            ends.append(before)
            for end in ends:
                made = 1.0 if each_seen else (look.index - end.index) / at_once
                if (look.tokens or 0) - (end.tokens or 0) == sign * made * (look.samples or 1):
                    ends.remove(end)
                    net += sign
                    break
    return net / calls if calls else 0.0


def padding(snapshot: Snapshot, where: tuple[Where, ...]) -> Explanation | None:
    """The verdict on batches much wider than their longest sequence, or than their mean sequence: the rest is padding.

    `where` are the lines that compute most.
    """
    seen = snapshot.facts.padding if snapshot.facts is not None else None
    if seen is None or seen.looks < LEAST_BATCHES or not 0.0 < seen.mean <= seen.longest <= seen.width:
        return None
    step, ops = snapshot.steps.mean if snapshot.steps else None, operations_of_step(snapshot)
    computing = _computing(snapshot)
    if not on_gpu(snapshot) and ops is not None and step:
        # What calls of operations take does not depend on the length of rows.
        computing -= min(computing, ops * (op_cost.FORWARD + op_cost.BACKWARD) / (step * running(snapshot)))
    unfilled, unlike = (computing * (1.0 - tokens / seen.width) for tokens in (seen.longest, seen.mean))
    if unfilled >= LEAST_PADDED:
        share, why = unfilled, "no sequence fills the width of its batch"
        fixes = [fix("pad each batch to its longest sequence, not to a fixed length (padding=True, a collator)", share)]
        if unlike > WORTH_PACKING * unfilled:
            like = "also batch sequences of like length (group_by_length), or pack several into a row"
            fixes.append(fix(like, unlike))
    elif unlike >= LEAST_UNLIKE:
        share, why = unlike, "short sequences are batched with long ones"
        fixes = [fix("batch sequences of like length (group_by_length), or pack several into a row", share)]
    else:
        return None
    return Explanation(
        severity="warning",
        subtype="padding",
        share=share,
        level=computing,
        saved=estimated(share, 0.5 * share, share + 0.5 * (1.0 - share)),
        signals=(seen.looks >= 2 * LEAST_BATCHES, ops is not None),
        title=f"{percent(share)} of {each_unit(snapshot)} computes padding: {why}",
        where=where,
        claims=(),
        evidence=(
            f"batches are {seen.width:.0f} tokens wide, their longest sequences have {seen.longest:.0f} on average",
            f"all sequences have {seen.mean:.0f} on average, by the attention masks of {seen.looks} batches",
        ),
        fixes=tuple(fixes),
    )


def _computing(snapshot: Snapshot) -> float:
    """The part (0..1) of the time in forward and backward passes."""
    return (snapshot.phases.forward or 0.0) + (snapshot.phases.backward or 0.0)


def unused_gradients(snapshot: Snapshot, where: tuple[Where, ...]) -> Explanation | None:
    """The verdict on a backward pass that goes through parts of the model which no optimizer updates.

    `where` are the lines that compute most.
    """
    part = snapshot.facts.unused_gradients if snapshot.facts is not None else None
    share = (snapshot.phases.backward or 0.0) * (part or 0.0)
    if not part or share < LEAST_UNUSED:
        return None
    return Explanation(
        severity="warning",
        subtype="gradients",
        share=share,
        level=_computing(snapshot),
        saved=estimated(share, 0.6 * share, share + 0.3 * (1.0 - share)),
        signals=(True, share >= 2 * LEAST_UNUSED),
        title=f"{percent(share)} of {each_unit(snapshot)} computes gradients that no optimizer uses",
        where=where,
        claims=(),
        evidence=(
            f"{percent(part)} of the backward pass's operations lead only to parameters of no optimizer, by its graph",
            "these still have the gradients of earlier steps, while those of the optimizers' parameters are cleared",
        ),
        fixes=(fix(UNUSED, share),),
    )


def recomputed(snapshot: Snapshot) -> Explanation | None:
    """The verdict on activation checkpointing where there is memory without it: forward passes run again in backward.

    For information where much of the memory is taken, or where that is not known.
    """
    lines = main_lines(snapshot, lambda entry: entry.work == "recompute" and entry.phase == "backward")
    if lines.share < LEAST_RECOMPUTED:
        return None
    room = snapshot.host.memory_room if snapshot.host is not None else None
    taken = 1.0 - room[0] / room[1] if room else None
    where = "the machine's memory"
    if on_gpu(snapshot):
        fullest = max(held_memory(snapshot), key=lambda held: held.share, default=None)
        taken, where = (fullest.level, fullest.name) if fullest is not None else (None, "the device")
    free = taken is not None and taken <= MOSTLY_FREE
    known = "not known" if taken is None else percent(taken)
    share = lines.share
    return Explanation(
        severity="warning" if free else "info",
        subtype="recompute",
        share=share,
        level=_computing(snapshot),
        saved=estimated(share, 0.7 * share, share + 0.3 * (1.0 - share)),
        signals=(lines.samples >= MIN_SAMPLES, free),
        doubtful=on_gpu(snapshot),
        title=f"{percent(share)} of {each_unit(snapshot)} computes activations again, which checkpointing did not keep",
        where=lines.where,
        claims=(),
        evidence=(
            f"parts of the forward pass run again in the backward pass, in {lines.samples:.0f} stack samples",
            f"used of {where}: {known}",
        ),
        fixes=(fix(KEEP_ACTIVATIONS, share),),
    )


def frozen(snapshot: Snapshot) -> float:
    """The share (0..1) of each training step that is forward passes without gradients; 0 where something else acts."""
    steps, forward = records(snapshot), snapshot.phases.forward
    whole = sum(step.forward for step in steps)
    acts = main_lines(snapshot, lambda entry: entry.phase == "environment").lines
    if snapshot.kind != "training" or forward is None or not whole or acts:
        return 0.0
    return forward * sum(step.no_grad for step in steps) / whole
