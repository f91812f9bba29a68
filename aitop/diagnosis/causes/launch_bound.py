"""launch-bound: the device finishes each operation before the host has launched the next one."""

from __future__ import annotations

from statistics import median_high

from aitop.diagnosis.device import NO_ROOM, activity_of_devices, idle_share, idle_words, memory_taken, on_gpu
from aitop.diagnosis.evidence import batch_of, each_unit, main_lines, operations_of_step, records, share_of_steps
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import count, duration, percent
from aitop.model.verdict import Fix, Setting

ENTER, LEAVE = 0.2, 0.14
# With fewer operations in a step, their mean length says little.
MANY_OPS = 100


@rule("launch-bound", ENTER, LEAVE, applies=on_gpu, scope=Scope(each_unit=True, idle=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the device idles while the host is busy launching forward, backward and optimizer."""
    launching = _launching(snapshot)
    if launching is None or launching < LEAVE:
        return None
    idle = idle_share(snapshot)
    if idle is None:
        of = f"{percent(launching)} of {each_unit(snapshot)}"
        return f"the host launches work in {of}; whether the GPU idles is not measured"
    share = min(0.99, launching, idle - _explained(snapshot))
    each = _op_seconds(snapshot)
    if share < LEAVE:
        return None
    small, words, ops = activity_of_devices(snapshot, "sm"), idle_words(snapshot), operations_of_step(snapshot)
    phases = "the forward pass" if snapshot.kind == "inference" else "forward, backward and optimizer"
    evidence = [f"launching {phases} keeps the host busy {percent(launching)} of {each_unit(snapshot)}"]
    evidence += words
    if each is not None and ops is not None:
        evidence.append(f"{count(round(ops))} operations a step, launched at {duration(each)} each")
    if small is not None:
        evidence.append(f"SMs at work {percent(small)} of the time")
    return Explanation(
        share=share,
        signals=(each is not None, len(words) > 1 or (small is not None and small < 0.4), launching > 0.7),
        title=f"{percent(share)} of {each_unit(snapshot)} passes while the GPU waits for the host to launch operations",
        lines=main_lines(snapshot, lambda entry: entry.phase == "forward" and not _waits(entry)),
        claims=(),
        evidence=evidence,
        fixes=_fixes(snapshot, share),
    )


def _launching(snapshot: Snapshot) -> float | None:
    """Share of step time in which the host runs forward, backward and optimizer without waiting for the device."""
    steps = records(snapshot)
    if steps:
        return share_of_steps(steps, _host_work)
    phases = snapshot.phases
    known = [share for share in (phases.forward, phases.backward, phases.optimizer) if share is not None]
    waits = main_lines(snapshot, lambda entry: entry.phase in ("forward", "backward", "optimizer") and _waits(entry))
    return max(0.0, sum(known) - waits.share) if known else None


def _aside(step: StepRecord) -> float:
    """Seconds of a step in which the host waits for the device, or copies."""
    return (step.blocking or 0.0) + (step.transfer or 0.0)


def _host_work(step: StepRecord) -> float:
    # Waits and copies that take longer than the time outside of the phases must partly lie inside of these.
    return max(0.0, step.forward + step.backward + step.optimizer - max(0.0, _aside(step) - step.outside))


def _waits(entry: Entry) -> bool:
    return entry.activity in ("wait-device", "wait-lock", "compile") or entry.work in ("read", "copy")


def _explained(snapshot: Snapshot) -> float:
    """Share of step time in which the device may idle for another reason: data, waits, copies, work between phases."""
    steps = records(snapshot)
    if steps:
        # The larger of the two, since waits and copies may lie between the phases as well.
        other = share_of_steps(steps, lambda step: step.loading + max(step.outside, _aside(step)))
        return other or 0.0
    phases = snapshot.phases
    return sum(share or 0.0 for share in (phases.data_wait, phases.transfer, phases.communication, phases.outside))


def _op_seconds(snapshot: Snapshot) -> float | None:
    """Median seconds of the host for one operation of the forward pass; None where they were not counted or are few."""
    ops = operations_of_step(snapshot)
    forwards = [step.forward for step in records(snapshot)]
    return median_high(forwards) / ops if ops and ops >= MANY_OPS and forwards else None


def _fixes(snapshot: Snapshot, share: float) -> list[Fix]:
    facts = snapshot.facts
    root = f" of {facts.root}" if facts is not None and facts.root else ""
    ops = operations_of_step(snapshot)
    launches = f" its {count(round(ops))} launches" if ops else " the launches"
    fixes = [fix(f'torch.compile(mode="reduce-overhead"){root} replays{launches} as CUDA graphs', share)]
    batches = [batch_of(step) for step in records(snapshot) if step.samples]
    if batches and memory_taken(snapshot) < NO_ROOM:
        batch = round(median_high(batches))
        # Times a power of two, at least 2, that gives the device enough work to fill the idle share.
        larger = batch * 2 ** max(1, round(1.0 / max(0.05, 1.0 - share)) - 1).bit_length()
        setting = Setting(name="batch_size", to=larger, current=batch)
        fixes.append(fix(f"batch {batch} → {larger}: as many launches for more samples", share, setting))
    optimizer = snapshot.phases.optimizer or 0.0
    if facts is not None and facts.foreach is False and not facts.fused and optimizer > 0.1:
        text = f"fused=True (or foreach=True): {count(facts.parameter_tensors)} tensors are updated one after the other"
        fixes.append(fix(text, min(share, optimizer)))
    return fixes
