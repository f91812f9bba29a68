"""Computes the figures of steps from step records: rate, percentiles, phase shares, operations per second, MFU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from aitop.model.gpu import GpuDevice, GpuSample
from aitop.model.peaks import peak
from aitop.model.snapshot import Phases, Steps
from aitop.model.steps import HookFacts, StepRecord, measured_in

# Floating-point operations per parameter and token: of forward and backward, and of a forward alone.
TRAINED, INFERRED = 6, 2
# The device clock is used from this many steps with device times on: fast steps have them only now and then.
ENOUGH_ON_DEVICE = 8


def quantile(ordered: Sequence[float], share: float) -> float:
    """The one of the ordered, non-empty values below which about `share` of them lie. Nothing is interpolated."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def steps_view(pid: int, records: Sequence[StepRecord], count: int, spread: Sequence[StepRecord] = ()) -> Steps | None:
    """The figures of one process's steps in the window; None without steps. `count` is the number of all steps seen."""
    if not records:
        return None
    seconds = sorted(record.seconds for record in records)
    total = sum(seconds)
    if total <= 0:
        return None
    samples = [record.samples for record in records if record.samples is not None]
    tokens = [record.tokens for record in records if record.tokens is not None]
    return Steps(
        basis="hook",
        pid=pid,
        count=count,
        p50=quantile(seconds, 0.5),
        p95=quantile(seconds, 0.95),
        mean=total / len(seconds),
        per_second=len(seconds) / total,
        samples_per_second=sum(samples) / total if len(samples) == len(records) else None,
        tokens_per_second=sum(tokens) / total if len(tokens) == len(records) else None,
        phases=_phases(records, total),
        recent=tuple(records),
        spread=tuple(spread),
    )


def _phases(records: Sequence[StepRecord], total: float) -> Phases:
    """Phase shares of step time, by the device's clock where there is one: it may be busy while the host waits."""
    on_device = [record for record in records if record.device_forward is not None]
    if len(on_device) >= ENOUGH_ON_DEVICE:
        return _device_phases(records, on_device, total)
    # As in the ledger: the steps before copies were timed have that time in no phase.
    watched = measured_in(records, attrgetter("transfer"))[0]
    length = sum(record.seconds for record in watched)
    records, total = (watched, length) if length > 0 else (records, total)

    def share(values: Iterable[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return sum(measured) / total if measured else None

    phases = Phases(
        data_wait=share(record.loading for record in records),
        transfer=share(record.transfer_apart for record in records),
        forward=share(record.forward for record in records),
        backward=share(record.backward for record in records),
        optimizer=share(record.optimizer for record in records),
        communication=share(record.communication_apart for record in records),
    )
    outside = max(0.0, 1.0 - sum(part for part in phases.shares().values() if part is not None))
    return msgspec.structs.replace(phases, outside=outside, others=_others(records, total, outside))


def _device_phases(records: Sequence[StepRecord], timed: Sequence[StepRecord], total: float) -> Phases:
    """Phase shares by the device's clock. What steps compute hardly varies, so the mean of `timed` stands for all.

    Where the host launches slowly, a timed step may take longer than the others: then the phases are scaled down, so
    that with the wait for data they add up to 1.
    """
    count = len(records)
    forward, backward, optimizer = (
        sum(getattr(record, f"device_{phase}") or 0.0 for record in timed) / len(timed) * count
        for phase in ("forward", "backward", "optimizer")
    )
    busy = forward + backward + optimizer
    # Without a measured idle time, the device was idle for as long as it did not compute.
    data = sum(
        min(
            record.loading,
            max(0.0, record.seconds - busy / count) if record.device_idle is None else record.device_idle,
        )
        for record in records
    )
    idle = sum(record.device_idle or 0.0 for record in timed) / len(timed) * count
    # How long all steps would be if they were like the timed ones.
    whole = max(total - data, busy + max(0.0, idle - data))
    left = (total - data) / total / whole if whole > 0 else 0.0
    outside = (whole - busy) * left
    # While the host copies, the device mostly idles; where it computes meanwhile, that time stays in its phase.
    copies = [(record.transfer_apart, record.seconds) for record in records if record.transfer_apart is not None]
    copied, of = (sum(part) for part in zip(*copies, strict=True)) if copies else (0.0, 0.0)
    transfer = min(outside, copied / of) if of > 0 else None
    outside -= transfer or 0.0
    return Phases(
        data_wait=data / total,
        transfer=transfer,
        forward=forward * left,
        backward=backward * left,
        optimizer=optimizer * left,
        outside=outside,
        others=_others(records, total, outside),
    )


def _others(records: Sequence[StepRecord], total: float, outside: float) -> dict[str, float]:
    """Shares of the phases that have no field in a record, limited to `outside` as only the host's clock times them."""
    shares: dict[str, float] = {}
    for key in dict.fromkeys(key for record in records for key in record.others):
        shares[key] = min(outside, sum(record.others.get(key, 0.0) for record in records) / total)
        outside -= shares[key]
    return shares


class Operations(NamedTuple):
    """Floating-point operations of some steps together; `basis` says how they were counted."""

    flops: float
    basis: str


def operations(facts: HookFacts, records: Sequence[StepRecord]) -> Operations | None:
    """The operations of these steps; None where neither the shapes in the graph nor the number of tokens tells them.

    Those of inference are known by the tokens alone.
    """
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
    """The dtype of matrix products; tf32 where torch may round float32 to it."""
    dtype = facts.flops_dtype or facts.autocast or (facts.parameter_dtypes[0] if facts.parameter_dtypes else None)
    if dtype == "float32" and facts.flops_dtype is None and facts.matmul_precision in ("high", "medium"):
        return "tf32"
    return dtype


def device_of(pid: int | None, gpu: GpuSample | None) -> GpuDevice | None:
    """The first device that the process computes on; None where there is none, or where several differ in name."""
    devices = gpu.devices if gpu is not None else ()
    used = [device for device in devices if device.runs(pid)]
    used = used or [device for device in devices if device.mine]
    return used[0] if used and len({device.name for device in used}) == 1 else None


def with_throughput(steps: Steps, facts: HookFacts | None, gpu: GpuSample | None) -> tuple[Steps, HookFacts | None]:
    """`steps` with their operations per second, and with the MFU where the device's peak for the dtype is known.

    The returned `facts` also say how the operations were counted.
    """
    total = sum(record.seconds for record in steps.recent)
    made = operations(facts, steps.recent) if facts is not None else None
    if facts is None or made is None or total <= 0:
        return steps, facts
    rate = made.flops / total
    device, dtype = device_of(steps.pid, gpu), compute_dtype(facts)
    # A process that has not touched CUDA computes elsewhere.
    whole = facts.cuda and device is not None and not device.mig
    most = peak(device.name, dtype) if whole and device and device.name and dtype else None
    mfu = rate / most if most else None
    # Operations of replicas on several devices (DataParallel) count as one process's.
    steps = msgspec.structs.replace(steps, flops_per_second=rate, mfu=mfu if mfu is None or mfu <= 1.0 else None)
    return steps, msgspec.structs.replace(facts, flops_basis=made.basis)
