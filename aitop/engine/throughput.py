"""What steps achieve: tokens, floating-point operations, and the share of what the device could do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from aitop.engine.peaks import peak
from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.snapshot import Steps
from aitop.model.steps import HookFacts, StepRecord

# For each parameter and token, forward and backward, or forward alone.
TRAINED, INFERRED = 6, 2


class Operations(NamedTuple):
    """Floating-point operations of some steps together, and in words how they were told."""

    flops: float
    basis: str


def operations(facts: HookFacts, records: Sequence[StepRecord]) -> Operations | None:
    """None where they cannot be told: for inference without ids, and for graphs that hide their shapes."""
    if not records:
        return None
    if records[-1].kind == "train":
        backwards = sum(record.backwards for record in records)
        if facts.flops_per_backward is not None and backwards:
            return Operations(facts.flops_per_backward * backwards, facts.flops_basis or "shapes in the graph")
        return _by_tokens(facts, records, TRAINED)
    return _by_tokens(facts, records, INFERRED)


def _by_tokens(facts: HookFacts, records: Sequence[StepRecord], times: int) -> Operations | None:
    tokens = [record.tokens for record in records if record.tokens is not None]
    if len(tokens) < len(records) or not sum(tokens) or not facts.parameters:
        return None
    return Operations(float(times * facts.parameters * sum(tokens)), f"{times} × parameters × tokens")


def compute_dtype(facts: HookFacts) -> str | None:
    """The dtype that products are made in; tf32 where float32 may be rounded to it."""
    dtype = facts.flops_dtype or facts.autocast or (facts.parameter_dtypes[0] if facts.parameter_dtypes else None)
    if dtype == "float32" and facts.flops_dtype is None and facts.matmul_precision in ("high", "medium"):
        return "tf32"
    return dtype


def device_of(pid: int | None, gpu: GpuSample | None) -> GpuDevice | None:
    """A device that the process computes on; of several the first, as long as all are of one name."""
    devices = gpu.devices if gpu is not None else ()
    used = [device for device in devices if any(process.pid == pid for process in device.processes or ())]
    used = used or [device for device in devices if device.mine]
    return used[0] if used and len({device.name for device in used}) == 1 else None


def with_throughput(steps: Steps, facts: HookFacts | None, gpu: GpuSample | None) -> tuple[Steps, HookFacts | None]:
    """`steps` with their rate of operations, and its share of the device's peak where that and the dtype are known.

    `facts` come back with the operations of one step, the mean of the window's.
    """
    total = sum(record.seconds for record in steps.recent)
    made = operations(facts, steps.recent) if facts is not None else None
    if facts is None or made is None or total <= 0:
        return steps, facts
    rate = made.flops / total
    device, dtype = device_of(steps.pid, gpu), compute_dtype(facts)
    # A process that has not touched CUDA computes elsewhere.
    most = peak(device.name, dtype) if facts.cuda and device and device.name and dtype else None
    steps = msgspec.structs.replace(steps, flops_per_second=rate, mfu=rate / most if most else None)
    return steps, msgspec.structs.replace(facts, flops=made.flops / len(steps.recent), flops_basis=made.basis)
