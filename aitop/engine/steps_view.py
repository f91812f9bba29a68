"""Step records to what a step looks like: rate, percentiles, phase shares. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.snapshot import Phases, Steps
from aitop.model.steps import StepRecord

# Fast steps are timed on the device only now and then.
ENOUGH_ON_DEVICE = 8


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered, non-empty values lie (nearest rank)."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def steps_view(pid: int, records: Sequence[StepRecord], count: int) -> Steps | None:
    """Steps of one process in the window, None where there were none. `count` is of all steps seen."""
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
    )


def _phases(records: Sequence[StepRecord], total: float) -> Phases:
    """Shares of step time. A device clock decides where there is one: a waiting host is not a starving device."""
    on_device = [record for record in records if record.device_forward is not None]
    if len(on_device) >= ENOUGH_ON_DEVICE:
        return _device_phases(records, on_device, total)
    data = sum(record.data_wait + record.loader_start for record in records)
    forward = sum(record.forward for record in records)
    backward = sum(record.backward for record in records)
    optimizer = sum(record.optimizer for record in records)
    transfers = [record.transfer_apart for record in records if record.transfer_apart is not None]
    transfer = sum(transfers) if transfers else None
    collectives = [record.communication_apart for record in records if record.communication_apart is not None]
    communication = sum(collectives) if collectives else None
    outside = max(0.0, total - data - forward - backward - optimizer - (transfer or 0.0) - (communication or 0.0))
    return Phases(
        data_wait=data / total,
        transfer=None if transfer is None else transfer / total,
        forward=forward / total,
        backward=backward / total,
        optimizer=optimizer / total,
        communication=None if communication is None else communication / total,
        outside=outside / total,
    )


def _device_phases(records: Sequence[StepRecord], timed: Sequence[StepRecord], total: float) -> Phases:
    """Shares by the device clock. What a step computes hardly varies: the mean of the `timed` steps stands for all."""
    forward = sum(record.device_forward or 0.0 for record in timed) / len(timed)
    backward = sum(record.device_backward or 0.0 for record in timed) / len(timed)
    optimizer = sum(record.device_optimizer or 0.0 for record in timed) / len(timed)
    busy = forward + backward + optimizer
    data = sum(
        starved(record) if record.device_idle is not None else min(_waited(record), max(0.0, record.seconds - busy))
        for record in records
    )
    count = len(records)
    return Phases(
        data_wait=data / total,
        forward=min(1.0, forward * count / total),
        backward=min(1.0, backward * count / total),
        optimizer=min(1.0, optimizer * count / total),
        outside=max(0.0, total - data - busy * count) / total,
    )


def starved(record: StepRecord) -> float:
    """Seconds of the step in which waiting for data held up the device (or, without one, the host)."""
    waited = _waited(record)
    return waited if record.device_idle is None else min(waited, record.device_idle)


def _waited(record: StepRecord) -> float:
    return record.data_wait + record.loader_start
