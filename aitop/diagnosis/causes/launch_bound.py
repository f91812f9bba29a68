"""launch-bound: the device is done with each operation before the host has launched the next one."""

from __future__ import annotations

from aitop.diagnosis import op_cost
from aitop.diagnosis.causes.device_gaps import activity_of_devices, idle_share, idle_words, share_of
from aitop.diagnosis.evidence import Lines, confidence, enough, main_lines, on_gpu, records
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.ledger import Entry
from aitop.model.snapshot import Phases, Snapshot
from aitop.model.steps import StepRecord
from aitop.model.units import count, duration, percent
from aitop.model.verdict import Abstention, Fix, Setting, Severity, Verdict

ID = "launch-bound"
CRITICAL_SHARE = 0.3
BAND = Band(enter=0.2, leave=0.14)
MANY_OPS = 100


def judge(snapshot: Snapshot) -> Judgement:
    """Whether the device idles while the host is busy launching forward, backward and optimizer."""
    if not on_gpu(snapshot):
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    launching = _launching(snapshot)
    if launching is None or launching < BAND.leave:
        return None
    idle = idle_share(snapshot)
    if idle is None:
        reason = f"the host launches work in {percent(launching)} of each step; whether the GPU idles is not measured"
        return Abstention(id=ID, reason=reason)
    share = min(launching, idle - _explained(snapshot))
    each = op_seconds(snapshot)
    if share < BAND.leave or (each is not None and each * 1e6 > op_cost.LAUNCH * 1e6):
        return None
    return Finding(_verdict(snapshot, share, launching, each), level=share)


def _launching(snapshot: Snapshot) -> float | None:
    """Share of step time in which the host runs forward, backward and optimizer without waiting for the device."""
    steps = records(snapshot)
    if steps:
        return share_of(steps, _host_work)
    phases = snapshot.steps.phases if snapshot.steps else Phases()
    known = [share for share in (phases.forward, phases.backward, phases.optimizer) if share is not None]
    waits = main_lines(snapshot, lambda entry: entry.phase in ("forward", "backward", "optimizer") and _waits(entry))
    return max(0.0, sum(known) - waits.share) if known else None


def _host_work(step: StepRecord) -> float:
    work = step.forward + step.backward + step.optimizer
    # What blocks or copies beyond the time outside of the phases must lie inside of them.
    aside = (step.blocking or 0.0) + (step.transfer or 0.0)
    return max(0.0, work - max(0.0, aside - step.outside))


def _other(step: StepRecord) -> float:
    """Seconds of data, waits, copies and work between phases. Waits and copies may lie between the phases, too."""
    waits = (step.blocking or 0.0) + (step.transfer or 0.0)
    return step.data_wait + step.loader_start + max(step.outside, waits)


def _waits(entry: Entry) -> bool:
    return entry.activity in ("wait-device", "wait-lock", "compile") or entry.work in ("read", "copy")


def _explained(snapshot: Snapshot) -> float:
    """Share of step time in which the device may idle for another reason: data, waits, copies, work between phases."""
    steps = records(snapshot)
    if steps:
        total = sum(step.seconds for step in steps)
        return sum(map(_other, steps)) / total if total > 0 else 0.0
    phases = snapshot.steps.phases if snapshot.steps else Phases()
    return sum(share or 0.0 for share in (phases.data_wait, phases.transfer, phases.communication, phases.outside))


def op_seconds(snapshot: Snapshot) -> float | None:
    """Host time of one operation's forward, None where they were not counted or are few."""
    ops = snapshot.facts.ops if snapshot.facts else None
    forwards = sorted(step.forward for step in records(snapshot))
    return forwards[len(forwards) // 2] / ops if ops and ops >= MANY_OPS and forwards else None


def _verdict(snapshot: Snapshot, share: float, launching: float, each: float | None) -> Verdict:
    lines = main_lines(snapshot, lambda entry: entry.phase == "forward" and not _waits(entry))
    small = activity_of_devices(snapshot, "sm")
    signals = (each is not None, len(idle_words(snapshot)) > 1 or (small is not None and small < 0.4), launching > 0.7)
    severity: Severity = "critical" if share >= CRITICAL_SHARE and sum(signals) >= 2 else "warning"
    evidence = [f"launching forward, backward and optimizer keeps the host busy {percent(launching)} of each step"]
    evidence += idle_words(snapshot)
    if each is not None and snapshot.facts is not None:
        evidence.append(f"{count(snapshot.facts.ops)} operations a step, launched at {duration(each)} each")
    if small is not None:
        evidence.append(f"SMs at work {percent(small)} of the time")
    return Verdict(
        id=ID,
        severity=severity,
        share=round(share, 4),
        speedup=round(without(min(0.99, share)), 3),
        confidence=confidence(*signals, base=0.45, steps=len(records(snapshot))),
        title=f"{percent(share)} of each step the GPU waits for the host to launch its next operation",
        where=lines.where,
        evidence=tuple(evidence),
        fixes=_fixes(snapshot, lines, share),
    )


def _fixes(snapshot: Snapshot, lines: Lines, share: float) -> tuple[Fix, ...]:
    gone = round(without(min(0.99, share)), 2)
    facts = snapshot.facts
    root = f" of {facts.root}" if facts is not None and facts.root else ""
    launches = f" its {count(facts.ops)} launches" if facts is not None and facts.ops else " the launches"
    found = [Fix(text=f'torch.compile(mode="reduce-overhead"){root} replays{launches} as CUDA graphs', speedup=gone)]
    samples = [step.samples for step in records(snapshot) if step.samples]
    if samples:
        batch = sorted(samples)[len(samples) // 2]
        larger = batch * 2 ** max(1, round(1.0 / max(0.05, 1.0 - share)) - 1).bit_length()
        setting = Setting(name="batch_size", to=larger, current=batch)
        text = f"batch {batch} → {larger}: as many launches for more samples"
        found.append(Fix(text=text, speedup=gone, setting=setting))
    optimizer = snapshot.steps.phases.optimizer if snapshot.steps else None
    if facts is not None and facts.foreach is False and not facts.fused and (optimizer or 0.0) > 0.1:
        part = min(0.99, share, optimizer or 0.0)
        text = f"fused=True (or foreach=True): {count(facts.parameter_tensors)} tensors are updated one after the other"
        found.append(Fix(text=text, speedup=round(without(part), 2)))
    return tuple(found)


RULE = Rule(ID, judge, BAND)
