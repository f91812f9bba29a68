"""What the iterations of an engine are made of: time outside of the model, and batches that are too small. Pure."""

from __future__ import annotations

from statistics import fmean

from aitop.diagnosis.device import host_limit, host_unproven
from aitop.diagnosis.evidence import AT_LEISURE, MIN_STEPS, lines_of, waits_for_requests
from aitop.diagnosis.rule import Explanation
from aitop.diagnosis.served import idle_share
from aitop.diagnosis.what_if import fix, turn_cost
from aitop.model.phases import Phase
from aitop.model.serving import Serving
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration, percent
from aitop.model.verdict import Setting

# The phases of an iteration outside of the model: scheduling, making its inputs, handling its tokens, and the rest.
AROUND: tuple[Phase, ...] = ("schedule", "prepare", "output", "host")
NAMES: dict[Phase, str] = {"schedule": "scheduling", "prepare": "preparing inputs", "output": "handling outputs"}
# Batches of at most FEW_SAMPLES are small; up to BATCH samples are proposed.
FEW_SAMPLES, BATCH = 4, 32
# At least so many requests wait on average: they could be in the batch.
LEAST_WAITING = 1.0
# An engine that waits for requests for less of its time than this is full. One that rests answers all requests anyway:
# its work around the model makes answers later, not fewer.
FULL = 0.1
# A KV cache that is so full has no room for more requests at once.
KV_FULL = 0.9


def around_model(snapshot: Snapshot) -> Explanation | None:
    """The verdict on time that an engine's iterations spend outside of the model."""
    serving = snapshot.serving
    ledger = next((one for one in snapshot.ledgers if serving and one.pid == serving.pid), None)
    if serving is None or ledger is None or ledger.unit != "iteration":
        return None
    if not any(one.model is not None for one in serving.iterations):
        return None
    lines = lines_of(entry for entry in ledger.main if entry.phase in AROUND and not waits_for_requests(entry))
    share = min(lines.share, host_limit(snapshot, in_phases=True), 0.99)
    parts = {phase: sum(entry.share for entry in lines.entries if entry.phase == phase) for phase in AROUND}
    named = [f"{NAMES.get(key, 'between them')} {percent(part)}" for key, part in parts.items() if part >= 0.01]
    lasts = fmean(one.seconds for one in serving.iterations)
    full = (idle_share(serving) or 0.0) < FULL
    return Explanation(
        subtype="iteration",
        severity=None if full else "info",
        share=share,
        gains=full,
        signals=(ledger.length is not None, len(serving.iterations) >= 10 * MIN_STEPS),
        doubtful=host_unproven(snapshot, in_phases=True),
        title=f"{percent(share)} of the engine's time passes in its iterations outside of the model",
        lines=lines,
        evidence=(
            f"of the engine's time: {', '.join(named)}",
            f"{len(serving.iterations)} iterations, {duration(lasts)} each on average",
        ),
        fixes=(
            fix("larger batches: most of this comes once an iteration, however many requests are in it"),
            fix("overlap it with the model (asynchronous scheduling), or several tokens an iteration", share),
        ),
    )


def room(serving: Serving) -> bool | None:
    """Whether at most FEW_SAMPLES requests are in an engine's batches while others wait; None if it made too few."""
    sizes = [float(one.requests) for one in serving.iterations if one.requests]
    if len(sizes) < MIN_STEPS:
        return None
    return max(sizes) <= FEW_SAMPLES and _waiting(serving) >= LEAST_WAITING


def _waiting(serving: Serving) -> float:
    """How many requests wait for each engine on average."""
    return (serving.queue or 0.0) / (serving.engines or 1)


def small_batches(snapshot: Snapshot) -> Explanation | None:
    """The verdict on an engine whose batches have at most FEW_SAMPLES requests while others wait.

    None where it waits for requests for more than AT_LEISURE of its time, or iterations do not tell their cost.
    """
    serving = snapshot.serving
    if serving is None or not room(serving):
        return None
    sizes = [float(one.requests) for one in serving.iterations if one.requests]
    idle, cost = idle_share(serving) or 0.0, turn_cost(serving.iterations)
    if cost is None or idle > AT_LEISURE:
        return None
    now = fmean(sizes)
    fit = now * KV_FULL / serving.kv_used if serving.kv_used else BATCH
    size = int(min(BATCH, round(now + _waiting(serving)), fit))
    if size < max(2.0, now):
        # The cache keeps requests out of the batch: `queue-bound` says so.
        return None
    prefilled = fmean(one.prefill_tokens or 0 for one in serving.iterations)
    length = cost.with_batch(now, size, prefilled)
    share = max(0.0, 1.0 - length.likely)
    return Explanation(
        share=share,
        saved=length,
        signals=(True, idle < FULL, now < 2.0),
        title=f"{now:.1f} requests are in a batch while {_waiting(serving):.0f} wait: "
        f"batches of {size} would save {percent(share)} of the time",
        evidence=(
            f"an iteration takes {duration(cost.fixed)}, and {duration(cost.decode)} more for each request in it",
            f"the engine waits for requests {percent(idle)} of the time",
        ),
        fixes=(
            fix(
                f"let up to {size} requests into a batch (max_num_seqs, max_batch_size)",
                length,
                Setting(name="max_batch_size", to=size, current=round(max(sizes))),
            ),
        ),
    )
