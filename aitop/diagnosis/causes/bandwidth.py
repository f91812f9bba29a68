"""memory-bandwidth-bound: the device moves bytes rather than computes."""

from __future__ import annotations

from aitop.diagnosis.causes.device_gaps import activity_of_devices, idle_share
from aitop.diagnosis.evidence import confidence, enough, main_lines, on_gpu, records
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Abstention, Fix, Severity, Verdict

ID = "memory-bandwidth-bound"
# No kernel gets more than about nine tenths of what memory carries; half of it on average is the mark of those that
# wait for memory.
BAND = Band(enter=0.5, leave=0.42)
SEVERE = 0.65
BUSY_TENSOR_CORES = 0.35
MOST_IDLE = 0.35


def judge(snapshot: Snapshot) -> Judgement:
    """Whether the memory of a busy device is its limit."""
    if not on_gpu(snapshot):
        return None
    missing = enough(snapshot)
    if missing:
        return Abstention(id=ID, reason=missing)
    dram = activity_of_devices(snapshot, "dram")
    if dram is None:
        reason = "how busy the GPU's memory is, is not measured here (GPM counters need Hopper or later)"
        return Abstention(id=ID, reason=reason)
    idle = idle_share(snapshot)
    tensor = activity_of_devices(snapshot, "tensor")
    if (idle is not None and idle > MOST_IDLE) or (tensor is not None and tensor >= max(BUSY_TENSOR_CORES, dram)):
        return None
    return Finding(_verdict(snapshot, dram, tensor, idle), level=dram)


def _verdict(snapshot: Snapshot, dram: float, tensor: float | None, idle: float | None) -> Verdict:
    lines = main_lines(snapshot, lambda entry: entry.phase == "forward")
    sm = activity_of_devices(snapshot, "sm")
    wide = _wide(snapshot)
    # Bytes halved are time halved, for what waits for memory.
    saved = dram / 2 if wide else 0.0
    severity: Severity = "warning" if dram >= SEVERE else "info"
    told = [f"memory busy {percent(dram)} of the time"]
    told += [f"tensor cores {percent(tensor)}"] if tensor is not None else []
    told += [f"SMs {percent(sm)}"] if sm is not None else []
    evidence = [", ".join(told)]
    evidence += [f"GPU idle {percent(idle)} of the time"] if idle is not None else []
    evidence += [f"activations and weights in {wide}"] if wide else []
    fixes = [Fix(text="torch.compile fuses elementwise operations, normalisations and losses: fewer trips to memory")]
    if wide:
        half = Fix(text=f"autocast to bfloat16: half the bytes of {wide}", speedup=round(without(saved), 2))
        fixes.insert(0, half)
    fused = "quantised weights" if snapshot.kind == "inference" else "a fused optimizer"
    fixes.append(Fix(text=f"fused kernels: scaled_dot_product_attention, {fused}, channels_last for convolutions"))
    return Verdict(
        id=ID,
        severity=severity,
        share=round(dram, 4),
        speedup=round(without(saved), 3) if wide else None,
        confidence=min(0.7, confidence(tensor is not None, idle is not None, base=0.45, steps=len(records(snapshot)))),
        title=f"the GPU's memory is the limit: busy {percent(dram)} of the time",
        where=lines.where,
        evidence=tuple(evidence),
        fixes=tuple(fixes),
    )


def _wide(snapshot: Snapshot) -> str | None:
    """float32 where the run computes in it."""
    facts = snapshot.facts
    return "float32" if facts is not None and not facts.autocast and "float32" in facts.parameter_dtypes else None


RULE = Rule(ID, judge, BAND)
