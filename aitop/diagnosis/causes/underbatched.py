"""underbatched: samples or requests are handled so few at a time that most of a step does not depend on how many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes.device_gaps import idle_share
from aitop.diagnosis.causes.requests import takes_request
from aitop.diagnosis.evidence import (
    MIN_STEPS,
    UNPROVEN,
    confidence,
    enough,
    main_lines,
    on_gpu,
    places,
    records,
    running,
)
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import range_of, without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import HookFacts, StepRecord
from aitop.model.units import count, duration, percent
from aitop.model.verdict import Abstention, Fix, Setting, Severity, Verdict, Where

ID = "underbatched"
BAND = Band(enter=0.3, leave=0.22)
CRITICAL_SHARE = 0.5
FEW_SAMPLES = 4
BATCH = 32
# What one core does with products of matrices, and reads of weights, in a second; more cores share the memory.
CORE_FLOPS, CORE_BYTES, MOST_READERS = 70e9, 10e9, 4
# What does not depend on the batch has to be so much of a forward pass.
LEAST_FIXED = 0.3
# Weights that would take longer to read than the step takes are not all read: those of embeddings.
ALL_READ = 3.0
MOSTLY_IDLE = 0.5
MOSTLY_FULL = 0.5
AT_LEISURE = 0.25
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Cost:
    """Seconds of a forward pass (or step) of `samples`: what it costs however many, and what each of them adds."""

    samples: float
    fixed: float
    each: float
    measured: bool

    @property
    def share(self) -> float:
        """What is left over of the time of a sample when BATCH of them share what is fixed (0..1)."""
        now = self.fixed / self.samples + self.each
        return max(0.0, 1.0 - (self.fixed / BATCH + self.each) / now) if now > 0 else 0.0


def judge(snapshot: Snapshot) -> Judgement:
    """Whether the same work would be done sooner in larger batches."""
    if snapshot.steps is None or snapshot.steps.basis != "hook":
        return Abstention(id=ID, reason="how many samples a step takes is known only from inside of the process")
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    steps = [step for step in records(snapshot) if step.samples]
    if len(steps) < MIN_STEPS:
        return Abstention(id=ID, reason="the model's inputs have no first dimension that could be a batch")
    samples = _middle([float(step.samples or 1) for step in steps])
    if samples > FEW_SAMPLES or snapshot.facts is None or any(step.kind == "generate" for step in steps):
        return None
    waiting = 0.0 if queue_is_full(snapshot) else main_lines(snapshot, _waits).share
    if waiting > AT_LEISURE:
        return None
    cost = _cost(snapshot, steps, samples, snapshot.facts)
    if cost is None:
        return None
    training = snapshot.kind == "training"
    share = cost.share * (1.0 if training else _of_the_model(snapshot, steps))
    return Finding(_verdict(snapshot, cost, share, waiting), level=share)


def queue_is_full(snapshot: Snapshot) -> bool:
    """Whether another thread stands in putting a request: then taking one takes a turn of that thread, no waiting."""
    ledger = snapshot.ledgers[0] if snapshot.ledgers else None
    if ledger is None or not records(snapshot):
        return False
    depths = [step.queue_ready for step in records(snapshot) if step.queue_ready is not None]
    return bool(depths) and sum(map(bool, depths)) >= MOSTLY_FULL * len(depths)


def _waits(entry: Entry) -> bool:
    return takes_request(entry)


def _of_the_model(snapshot: Snapshot, steps: Sequence[StepRecord]) -> float:
    """Share of all time that comes once a batch: calling the model, and what is done for it in the line that does.

    Taking requests from a full queue is a change of threads, of which there are fewer then.
    """
    forward = sum(step.forward for step in steps) / sum(step.seconds for step in steps)
    full = queue_is_full(snapshot)
    beside = main_lines(
        snapshot,
        lambda entry: entry.phase == "host" and (entry.position == "within" or (full and _waits(entry))),
    ).share
    return min(0.99, forward + min(beside, max(0.0, 1.0 - forward)))


def _cost(snapshot: Snapshot, steps: Sequence[StepRecord], samples: float, facts: HookFacts) -> Cost | None:
    """What a step of these few samples consists of; None where nothing says that batches would help."""
    if on_gpu(snapshot):
        idle = idle_share(snapshot)
        if idle is None or idle < MOSTLY_IDLE:
            return None
        whole = _middle([step.seconds for step in steps])
        # A device that idles has room for more at no cost; what it computes now grows with the batch.
        return Cost(samples, whole * idle, whole * (1.0 - idle) / samples, True)
    if snapshot.kind == "training":
        return _of_training(steps, samples, facts, running(snapshot))
    return _of_sizes(steps) or _of_weights(steps, samples, facts, running(snapshot))


def _of_training(steps: Sequence[StepRecord], samples: float, facts: HookFacts, ran: float) -> Cost | None:
    """Operations that take hardly longer than it takes to call them."""
    if not facts.ops:
        return None
    each = _middle([step.forward for step in steps]) * ran / facts.ops
    if not 0.0 < each <= op_cost.MOSTLY_CALLING:
        return None
    whole = _middle([step.seconds for step in steps])
    computes = max(0.05, 1.0 - op_cost.FORWARD / each) * _middle([step.forward + step.backward for step in steps])
    # What is computed on few samples is mostly what vectors of one sample cannot fill.
    return Cost(samples, whole - computes / FEW_SAMPLES, computes / FEW_SAMPLES / samples, False)


def _of_sizes(steps: Sequence[StepRecord]) -> Cost | None:
    """From batches of different sizes: the straight line of time over size, where there are enough of them."""
    sizes: dict[int, list[float]] = {}
    for step in steps:
        sizes.setdefault(step.samples or 1, []).append(step.forward)
    known = sorted((size, _middle(times)) for size, times in sizes.items() if len(times) >= 3)
    if len(known) < 2 or known[-1][0] < 2 * known[0][0]:
        return None
    (small, quick), (large, slow) = known[0], known[-1]
    each = max(0.0, (slow - quick) / (large - small))
    fixed = max(0.0, quick - each * small)
    return Cost(_middle([float(step.samples or 1) for step in steps]), fixed, each, True)


def _of_weights(steps: Sequence[StepRecord], samples: float, facts: HookFacts, ran: float) -> Cost | None:
    """From what the weights are: each is read once a forward pass, for one sample or for many.

    `ran` is the part of the time in which the process had a core.
    """
    if not facts.parameters or not facts.parameter_tensors:
        return None
    forward = _middle([step.forward for step in steps]) * ran
    threads = max(1, facts.threads or 1)
    width = ITEM_BYTES.get(facts.parameter_dtypes[0] if facts.parameter_dtypes else "", 4)
    reading = facts.parameters * width / (CORE_BYTES * min(threads, MOST_READERS))
    calling = facts.parameter_tensors * op_cost.LAYER
    if reading > ALL_READ * forward:
        reading = 0.0
    products = min(forward, 2.0 * facts.parameters * samples / (CORE_FLOPS * threads) * width / 4) if reading else 0.0
    fixed = min(reading + calling, forward - products)
    if fixed < LEAST_FIXED * forward:
        return None
    return Cost(samples, fixed / ran, (forward - fixed) / samples / ran, False)


def _verdict(snapshot: Snapshot, cost: Cost, share: float, waiting: float) -> Verdict:
    facts = snapshot.facts
    training = snapshot.kind == "training"
    steps = records(snapshot)
    signals = (cost.measured, waiting < 0.1, cost.samples <= 1)
    severity: Severity = "critical" if share >= CRITICAL_SHARE and cost.measured else "warning"
    # How large a batch may be in training is not only a matter of speed.
    if training and cost.samples > 1:
        severity = "info"
    one = cost.fixed + cost.each * cost.samples
    sure = confidence(*signals, base=0.4, steps=len(steps))
    how = "from batches of several sizes" if cost.measured and not on_gpu(snapshot) else "by the size of the model"
    evidence = [f"{cost.samples:.0f} sample{'s' * (cost.samples > 1)} a step, {duration(one)} each time"]
    if on_gpu(snapshot):
        evidence.append(f"GPU idle {percent(idle_share(snapshot))} of the time")
    else:
        evidence.append(f"about {duration(cost.fixed)} of it is the same for any number of samples ({how})")
    if facts is not None and facts.parameters:
        evidence.append(f"{count(facts.parameters)} parameters are read for every one of them")
    if not training and queue_is_full(snapshot):
        evidence.append("the queue of requests is full: another thread waits to put one")
    elif not training:
        evidence.append(f"{percent(waiting)} of the time is waiting for requests: more of them are there to be taken")
    if not cost.measured:
        evidence.append(
            f"at least {without(min(0.99, share)):.1f}×: what else is done for each one alone is not counted"
            if training
            else f"at least {without(min(0.99, share)):.1f}×: waking up for each request alone is not counted"
        )
    what = "samples" if training else "requests"
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(min(0.99, share)), 3),
        # Where batches of several sizes were not seen, the cost of a sample is an estimate.
        speedup_range=range_of(share * 0.9, share * 1.05)
        if cost.measured
        else range_of(share * 0.7, share + (1.0 - share) * 0.6),
        confidence=min(sure, 0.9 if cost.measured else UNPROVEN),
        title=f"{what} are taken {cost.samples:.0f} at a time: {percent(share)} of the time could serve {BATCH}",
        where=_calls_of_model(snapshot),
        evidence=tuple(evidence),
        fixes=_fixes(cost, share, training),
    )


def _calls_of_model(snapshot: Snapshot) -> tuple[Where, ...]:
    """The lines that call the model: there a batch is put together, however the model is written."""
    return places(
        [_above_forward(entry) for entry in main_lines(snapshot, lambda entry: entry.phase == "forward").lines]
    )


def _above_forward(entry: Entry) -> Entry:
    """The same on the line that calls the model, above whatever runs inside of it."""
    if not 0 < entry.callers <= len(entry.via):
        return entry
    caller = entry.via[entry.callers - 1]
    where = Where(pid=entry.pid, file=caller.file, line=caller.line, function=caller.function, text=caller.text)
    return msgspec.structs.replace(entry, where=where)


def _fixes(cost: Cost, share: float, training: bool) -> tuple[Fix, ...]:
    gone = round(without(min(0.99, share)), 2)
    if training:
        text = f"batch {cost.samples:.0f} → {BATCH}: more samples a second (adapt the learning rate)"
        return (
            Fix(text=text, speedup=gone, setting=Setting(name="batch_size", to=BATCH, current=round(cost.samples))),
        )
    return (
        Fix(text=f"take up to {BATCH} waiting requests at once and stack them into one forward pass", speedup=gone),
        Fix(text="a serving layer with dynamic batching does so within a time limit"),
    )


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


RULE = Rule(ID, judge, BAND)
