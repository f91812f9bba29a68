"""memory-bandwidth-bound: the device moves bytes rather than computes."""

from __future__ import annotations

from aitop.diagnosis.device import activity_of_devices, idle_share, on_gpu
from aitop.diagnosis.evidence import main_lines
from aitop.diagnosis.rule import Explanation, rule
from aitop.diagnosis.what_if import Scope, fix
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent

# No kernel gets more than about nine tenths of the memory's bandwidth; one that gets half of it on average waits for
# memory.
ENTER, LEAVE, SEVERE = 0.5, 0.42, 0.65
BUSY_TENSOR_CORES = 0.35
MOST_IDLE = 0.35


@rule("memory-bandwidth-bound", ENTER, LEAVE, applies=on_gpu, scope=Scope(capacity=True))
def judge(snapshot: Snapshot) -> Explanation | str | None:
    """Whether the memory of a busy device is its limit."""
    dram, sm, tensor = (activity_of_devices(snapshot, name) for name in ("dram", "sm", "tensor"))
    if dram is None:
        return "how busy the GPU's memory is, is not measured here (NVIDIA's GPM counters need Hopper or later)"
    idle = idle_share(snapshot)
    if (idle is not None and idle > MOST_IDLE) or (tensor is not None and tensor >= max(BUSY_TENSOR_CORES, dram)):
        return None
    facts = snapshot.facts
    wide = "float32" if facts is not None and not facts.autocast and "float32" in facts.parameter_dtypes else None
    busy = {"tensor cores": tensor, "SMs": sm}
    units = [f"{name} {percent(share)}" for name, share in busy.items() if share is not None]
    evidence = [", ".join([f"memory busy {percent(dram)} of the time", *units])]
    evidence += [f"GPU idle {percent(idle)} of the time"] if idle is not None else []
    evidence += [f"activations and weights in {wide}"] if wide else []
    fused = "quantised weights" if snapshot.kind == "inference" else "a fused optimizer"
    return Explanation(
        severity="warning" if dram >= SEVERE else "info",
        share=dram,
        # What waits for memory takes half the time for half the bytes.
        saved=dram / 2,
        gains=wide is not None,
        signals=(tensor is not None, idle is not None),
        most_sure=0.7,
        title=f"the GPU's memory is the limit: busy {percent(dram)} of the time",
        lines=main_lines(snapshot, lambda entry: entry.phase == "forward"),
        claims=(),
        evidence=evidence,
        fixes=(
            *([fix(f"autocast to bfloat16: half the bytes of {wide}", dram / 2)] if wide else []),
            fix("torch.compile fuses elementwise operations, normalisations and losses: fewer trips to memory"),
            fix(f"fused kernels: scaled_dot_product_attention, {fused}, channels_last for convolutions"),
        ),
    )
