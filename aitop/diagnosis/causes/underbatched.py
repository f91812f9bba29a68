"""underbatched: batches are so small that most of a step costs the same for any number of samples or requests."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from statistics import median_high
from typing import Literal

import msgspec

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes.oversubscription import BECAUSE_OF_OTHERS, others_have_cores
from aitop.diagnosis.causes.serving.turns import BATCH, FEW_SAMPLES, room, small_batches
from aitop.diagnosis.device import NO_ROOM, idle_share, memory_taken, on_gpu
from aitop.diagnosis.evidence import (
    AT_LEISURE,
    MIN_STEPS,
    Lines,
    above_forward,
    batch_of,
    cores_wanted,
    lines_of,
    main_lines,
    producer_entries,
    records,
    running,
    server_idle_share,
    share_of_steps,
)
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Length, Scope, estimated, fix, with_batch
from aitop.model.snapshot import Snapshot
from aitop.model.steps import HookFacts, StepRecord
from aitop.model.units import count, duration, percent, plural
from aitop.model.verdict import Fix, Setting

# What one core computes in matrix products (FLOP/s), and what it reads of weights (bytes/s). More than MOST_READERS
# cores read no faster: they share the memory.
CORE_FLOPS, CORE_BYTES, MOST_READERS = 70e9, 10e9, 4
# The least share of a forward pass that does not depend on the batch.
LEAST_FIXED = 0.3
# Less work beside the model (cores) is not worth a word.
LEAST_BESIDE = 0.05
# If reading all weights would take more than this many times the forward pass, not all are read: a mixture of experts.
ALL_READ = 3.0
MOSTLY_IDLE = 0.5
# The least part of the model's time in calls that do not need each other, where a request makes several of them.
MOSTLY_APART = 0.8
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Cost(msgspec.Struct, frozen=True):
    """Seconds of a forward pass (or step) of `samples` samples: `fixed`, however many there are, and `each` per sample.

    `basis` is what that follows from: how long the device idles, which is measured; how many operations are called; or
    how long reading `weights` weights takes, None where not all of them are read.
    """

    samples: float
    fixed: float
    each: float
    basis: Literal["device", "operations", "weights"]
    weights: int | None = None

    @property
    def measured(self) -> bool:
        """Whether it is no estimate."""
        return self.basis == "device"


@rule("underbatched", 0.3, 0.22, scope=Scope(capacity=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the same work would be done sooner in larger batches."""
    facts, training = snapshot.facts, snapshot.kind == "training"
    engine = None if training else small_batches(snapshot)
    if engine is not None:
        return engine
    if not training and snapshot.serving is not None and room(snapshot.serving) is False:
        # An engine may pack many requests into what looks like one sample.
        return None
    if snapshot.steps is None or snapshot.steps.basis != "hook":
        return "how many samples a step takes is known only from inside of the process"
    steps = [step for step in records(snapshot) if step.samples]
    if len(steps) < MIN_STEPS:
        return "the model's inputs have no first dimension that could be a batch"
    if training and (acting := _policy_calls(snapshot, steps)) is not None:
        return acting
    samples = median_high(map(batch_of, steps))
    # A server that has once taken more takes as many as there are.
    most = samples if training else max(map(batch_of, steps))
    if most > FEW_SAMPLES or facts is None:
        return None
    if not training and others_have_cores(snapshot):
        return BECAUSE_OF_OTHERS
    if training and on_gpu(snapshot) and memory_taken(snapshot) >= NO_ROOM:
        return "the device's memory has no room for larger batches"
    calls = 1 if training else _calls_of_a_request(snapshot, steps)
    together = BATCH if training else calls if calls > 1 else _under_way(snapshot)
    if together < 2:
        return None
    waiting = server_idle_share(snapshot)
    # What a request costs matters at leisure, too. But a GPU then idles for want of requests.
    busy = waiting <= AT_LEISURE or (calls > 1 and not on_gpu(snapshot))
    cost = _cost(snapshot, steps, samples, facts) if busy else None
    if cost is None:
        return None
    batched = with_batch(together, cost.samples, cost.fixed, cost.each, surely=cost.measured)
    part = 1.0 if training else _of_the_model(snapshot)
    share, low, high = (part * (1.0 - length) for length in (batched.likely, batched.most, batched.least))
    beside = 0.0 if training or snapshot.serving is None else _beside_the_model(snapshot)
    likely, low = max(0.0, share - beside), max(0.0, low - beside)
    saved = estimated(likely, low, high if cost.measured else share + 0.6 * (1.0 - share))
    return Explanation(
        # How large a batch may be in training is not only a matter of speed.
        severity="info" if training and cost.samples > 1 else None,
        share=share,
        saved=saved,
        signals=(cost.measured, waiting < 0.1, cost.samples <= 1),
        # Only how long a GPU idles is measured; elsewhere the cost of a sample is an estimate.
        doubtful=not cost.measured or calls > 1,
        title=_title(cost, calls, together, share),
        # The lines that call the model, not those within it: batches are put together there.
        where=lines_of(map(above_forward, main_lines(snapshot, lambda entry: entry.phase == "forward").lines)).where,
        claims=() if training else _around_call(snapshot).entries,
        evidence=_evidence(snapshot, cost, waiting, beside, saved.speedup, calls),
        fixes=_fixes(snapshot, cost, share if training else saved, together, calls),
    )


def _title(cost: Cost, calls: int, together: int, share: float) -> str:
    samples = plural(round(cost.samples), "sample")
    saved = f"{together} would save {percent(share)} of the time"
    if calls > 1:
        return f"a request calls the model {calls} times, for {samples} each: one batch of {saved}"
    return f"{samples} per forward pass: batches of {saved}"


def _calls_of_a_request(snapshot: Snapshot, steps: Sequence[StepRecord]) -> int:
    """How many calls of the model one request makes, if they could be made as one.

    1 if a call needs what another gave, or if that is not known: it is read from the dataflow of the code around them.
    """
    model = main_lines(snapshot, lambda entry: entry.phase == "forward")
    entries = [entry for entry in model.entries if entry.apart]
    apart = sum(entry.share for entry in entries)
    if snapshot.serving is None or snapshot.steps is None or apart <= 0.0 or apart < MOSTLY_APART * model.share:
        return 1
    if len({above_forward(entry).at for entry in entries}) > 1:
        # Of two models in a row, each call of the second one needs what the first one gave.
        return 1
    # Only those that the same process answered meanwhile. Probes ask for no model, where it is known who does.
    answered = snapshot.serving.requests_of(snapshot.steps.pid)
    answered = tuple(one for one in answered if one.model is not None) or answered
    number = sum(steps[0].end < one.end <= steps[-1].end for one in answered)
    return max(1, round((len(steps) - 1) * apart / model.share / number)) if number else 1


def _under_way(snapshot: Snapshot) -> int:
    """How many requests a batch can have: no more than there are at a time, and no more than BATCH."""
    there = snapshot.serving.concurrency if snapshot.serving is not None else None
    return BATCH if there is None else min(BATCH, round(there))


def _beside_the_model(snapshot: Snapshot) -> float:
    """Cores that other threads of the model's process need for its requests, however many are in a batch.

    They take turns with the model at the GIL. While a batch of all requests under way computes, they have nothing to
    do, so their work adds to the time of each request. Other processes go on with the next requests, and do not count.
    """
    models = {ledger.pid for ledger in snapshot.ledgers}
    return cores_wanted(entry for entry in producer_entries(snapshot) if entry.pid in models)


def _of_the_model(snapshot: Snapshot) -> float:
    """Share of all time that is spent once per batch: in the model, and in the host code around its call."""
    forward = share_of_steps(records(snapshot), attrgetter("forward")) or 0.0
    return min(0.99, forward + min(_around_call(snapshot).share, max(0.0, 1.0 - forward)))


def _around_call(snapshot: Snapshot) -> Lines:
    """The host code around the model's call that runs once per batch.

    Code that the call itself runs is left out, such as processors that are passed to `generate`: it may run per sample.
    """
    calls = {above_forward(entry).at for entry in main_lines(snapshot, lambda entry: entry.phase == "forward").lines}
    return main_lines(
        snapshot,
        lambda entry: entry.within_step and calls.isdisjoint((frame.file, frame.line) for frame in entry.via),
    )


def _cost(snapshot: Snapshot, steps: Sequence[StepRecord], samples: float, facts: HookFacts) -> Cost | None:
    """The cost of a batch of these few samples; None where nothing says that larger ones would help.

    A training step may add up the gradients of several batches, each with a backward pass.
    """
    if on_gpu(snapshot):
        beside = share_of_steps(steps, _beside_batches) or 0.0 if snapshot.kind == "training" else 0.0
        idle = None if (idles := idle_share(snapshot)) is None else idles - beside
        if idle is None or idle < MOSTLY_IDLE:
            return None
        whole = median_high(step.seconds / max(1, step.backwards) for step in steps)
        # The idle time of the device is a fixed cost that more samples could fill; its busy time grows with the batch,
        # and so does the time in which data are loaded.
        return Cost(samples, whole * idle, whole * (1.0 - idle) / samples, "device")
    if snapshot.kind == "training":
        passes = [(step, max(1, step.backwards)) for step in steps]
        return _of_operations(
            median_high(step.seconds / batches for step, batches in passes),
            median_high(step.forward / batches for step, batches in passes),
            median_high((step.forward + step.backward) / batches for step, batches in passes),
            median_high(_beside_batches(step) / batches for step, batches in passes),
            samples,
            facts.ops,
            running(snapshot),
        )
    return _of_weights(steps, samples, facts, running(snapshot))


def _of_operations(  # noqa: PLR0917
    whole: float, forward: float, computing: float, beside: float, samples: float, ops: int | None, ran: float
) -> Cost | None:
    """The cost of `whole` seconds with a forward pass of `ops` operations; None unless these mostly cost their calls.

    `computing` is the part of the seconds in passes, `beside` that in which data are loaded or the model is not
    trained; `ran` is the part in which the process had a core.
    """
    each = forward * ran / ops if ops else 0.0
    if not 0.0 < each <= op_cost.MOSTLY_CALLING:
        return None
    computes = max(0.05, 1.0 - op_cost.FORWARD / each) * computing
    # With few samples, computing mostly leaves vector registers unfilled: 1 / FEW_SAMPLES of it grows with the batch.
    grows = computes / FEW_SAMPLES + beside
    return Cost(samples, max(0.0, whole - grows), grows / samples, "operations")


def _beside_batches(step: StepRecord) -> float:
    """Seconds of a step that no larger batch makes fewer per sample: loading, checkpoints, evaluation."""
    return step.loading + step.save + step.evaluation


def _policy_calls(snapshot: Snapshot, steps: Sequence[StepRecord]) -> Explanation | None:
    """The verdict on a policy that is called for few samples at a time between the updates of a training run."""
    calls, seconds = sum(step.no_grad_forwards for step in steps), sum(step.no_grad for step in steps)
    of_all = sum(step.no_grad_samples for step in steps)
    if main_lines(snapshot, lambda entry: entry.phase == "environment").entries:
        # Where several updates follow, the policy did not act for each of them.
        calls += sum(step.evaluation_forwards for step in steps)
        seconds += sum(step.evaluation for step in steps)
        of_all += sum(step.evaluation_samples for step in steps)
    samples = of_all / calls if calls else 0.0
    if calls < 2 * len(steps) or not 0.0 < samples <= FEW_SAMPLES or snapshot.facts is None or on_gpu(snapshot):
        return None
    # The graph of the loss has all operations of the model, and a few more.
    cost = _of_operations(*(seconds / calls,) * 3, 0.0, samples, snapshot.facts.ops, running(snapshot))
    if cost is None:
        return None
    batched = with_batch(BATCH, cost.samples, cost.fixed, cost.each, surely=False)
    model = main_lines(snapshot, lambda entry: entry.phase == "forward")
    around = _around_call(snapshot)
    part = seconds / sum(step.seconds for step in steps)
    share, low, high = (part * (1.0 - length) for length in (batched.likely, batched.most, batched.least))
    # What is done with each output, such as sampling an action, can be done for a batch as well.
    share, high = share + around.share * (1.0 - batched.likely), high + around.share
    saved = estimated(min(0.99, share), low, min(0.99, high))
    saving = f"batches of {BATCH} would save {percent(share)} of the time"
    passes = f"{calls / len(steps):.0f} forward passes without gradient a step"
    return Explanation(
        share=min(0.99, share),
        saved=saved,
        signals=(True, cost.samples <= 1),
        doubtful=True,
        title=f"the policy is called for {cost.samples:.0f} at a time: {saving}",
        where=lines_of((*map(above_forward, model.entries), *around.entries)).where,
        claims=(*model.entries, *around.entries),
        evidence=(
            f"{passes}, {plural(round(cost.samples), 'sample')} and {duration(seconds / calls)} each",
            f"about {duration(cost.fixed)} of it is the same for any number of samples",
        ),
        fixes=(fix(f"call the policy once for all environments (step {BATCH} side by side)", saved),),
    )


def _of_weights(steps: Sequence[StepRecord], samples: float, facts: HookFacts, ran: float) -> Cost | None:
    """The cost of a step, estimated from the size of the weights; None where nearly all of it grows with the batch.

    Each weight is read once per forward pass, for one sample or for many.

    `ran` is the part of the time in which the process had a core.
    """
    if not facts.parameters or not facts.parameter_tensors:
        return None
    forward = median_high(step.forward for step in steps) * ran
    threads = max(1, facts.threads or 1)
    weights = facts.parameters - (facts.looked_up_parameters or 0)
    width = ITEM_BYTES.get(facts.parameter_dtypes[0] if facts.parameter_dtypes else "", 4)
    reading = weights * width / (CORE_BYTES * min(threads, MOST_READERS))
    all_read = reading <= ALL_READ * forward
    if not all_read:
        reading = 0.0
    products = min(forward, 2.0 * weights * samples / (CORE_FLOPS * threads) * width / 4) if reading else 0.0
    fixed = min(reading + facts.parameter_tensors * op_cost.LAYER, forward - products)
    if fixed < LEAST_FIXED * forward:
        return None
    return Cost(samples, fixed / ran, (forward - fixed) / samples / ran, "weights", weights if all_read else None)


def _evidence(  # noqa: PLR0917
    snapshot: Snapshot, cost: Cost, waiting: float, beside: float, speedup: float, calls: int
) -> list[str]:
    training = snapshot.kind == "training"
    each_time = duration(cost.fixed + cost.each * cost.samples)
    evidence = [f"{plural(round(cost.samples), 'sample')} at a time, {each_time} each"]
    if cost.basis == "device":
        evidence.append(f"GPU idle {percent(idle_share(snapshot))} of the time")
    else:
        by = "the number of operations" if cost.basis == "operations" else "the size of the model"
        evidence.append(f"about {duration(cost.fixed)} of it is the same for any number of samples (by {by})")
    if cost.weights:
        evidence.append(f"{count(cost.weights)} parameters are read for every one of them")
    if not training:
        if calls > 1:
            evidence.append("no call is given what an earlier one gave, as far as the code around them shows")
        else:
            evidence.append(
                f"{percent(waiting)} of the time is waiting for requests: more of them are there to be taken"
            )
        if beside >= LEAST_BESIDE:
            evidence.append(f"{percent(beside)} of a core works for requests beside the model, in batches as without")
    if not cost.measured:
        alone = training or calls > 1
        what = "what else is done for each one alone" if alone else "what it costs to wake up for every single request"
        evidence.append(f"the gain is at least {speedup:.1f}×: {what} is not in that estimate")
    return evidence


def _fixes(snapshot: Snapshot, cost: Cost, saved: float | Length, together: int, calls: int) -> tuple[Fix, ...]:
    if main_lines(snapshot, lambda entry: entry.phase == "environment").entries:
        return (fix(f"step {together} environments side by side, with one policy call for all of them", saved),)
    if snapshot.kind == "training":
        text = f"batch {cost.samples:.0f} → {together}: more samples a second (adapt the learning rate)"
        return (fix(text, saved, Setting(name="batch_size", to=together, current=round(cost.samples))),)
    if calls > 1:
        return (fix(f"stack what the {calls} calls of a request are given, and call the model once", saved),)
    setting = Setting(name="max_batch_size", to=together, current=round(cost.samples))
    return (
        fix(f"take up to {together} waiting requests at once and stack them into one forward pass", saved, setting),
        fix("a serving layer with dynamic batching does so within a time limit"),
    )
