"""The device itself: gpu-shared and thermal-throttle."""

from __future__ import annotations

from aitop.diagnosis.evidence import own_devices
from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.gpu import GpuDevice, GpuProcess
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent, size
from aitop.model.verdict import Fix, Severity, Verdict

SHARED_MEMORY = 0.05
CONTENDED = 0.8
# Clocks that are held back by less cost nothing to speak of.
LEAST_HELD_BACK = 0.05


def shared(snapshot: Snapshot) -> Judgement:
    """Somebody else computes on a device that the run uses."""
    worst: tuple[float, GpuDevice] | None = None
    for device in own_devices(snapshot):
        level = _taken(device)
        if worst is None or level > worst[0]:
            worst = (level, device)
    if worst is None or worst[0] <= 0:
        return None
    level, device = worst
    others = [process for process in device.processes or () if not process.mine]
    busiest = max(others, key=lambda process: (process.sm or 0.0, process.memory or 0))
    computing = [process.sm for process in others if process.sm is not None]
    # While the step waits for data, nobody takes the device from it.
    waits = (snapshot.steps.phases.data_wait or 0.0) if snapshot.steps else 0.0
    taken = min(0.95, sum(computing)) * (1.0 - waits) if any(computing) else None
    contended = device.busy is not None and device.busy >= CONTENDED
    severity: Severity = "critical" if taken is not None and taken >= 0.5 and contended else "warning"
    if computing and taken is None:
        severity = "info"
    return Finding(
        Verdict(
            id="gpu-shared",
            severity=severity,
            share=None if taken is None else round(taken, 4),
            speedup=None if taken is None else round(without(taken), 3),
            confidence=0.85 if taken else 0.5,
            title=f"GPU {device.index} is shared with {len(others)} other process{'es' if len(others) > 1 else ''}",
            evidence=tuple(_uses(process) for process in others[:4]),
            fixes=(Fix(text=f"use another device (CUDA_VISIBLE_DEVICES), or end pid {busiest.pid} if it is stray"),),
        ),
        level=level,
    )


def _uses(process: GpuProcess) -> str:
    name = f" {process.name}" if process.name else ""
    computing = "" if process.sm is None else f" uses {percent(process.sm)} of the SMs' time,"
    memory = "an unknown amount of memory" if process.memory is None else f"{size(process.memory)} of memory"
    return f"pid {process.pid}{name}{computing} holds {memory}"


def _taken(device: GpuDevice) -> float:
    """How much of the device others take: their SM share, or their memory where that is not told."""
    others = [process for process in device.processes or () if not process.mine]
    computing = sum(process.sm or 0.0 for process in others)
    memory = sum(process.memory or 0 for process in others) / device.memory_total if device.memory_total else 0.0
    return max(computing, memory if memory > SHARED_MEMORY else 0.0)


def throttled(snapshot: Snapshot) -> Judgement:
    """The clocks are held back by heat."""
    hot = [device for device in own_devices(snapshot) if any("thermal" in reason for reason in device.throttle or ())]
    if not hot:
        return None
    device = min(hot, key=_clock_share)
    held_back = 1.0 - _clock_share(device)
    known = bool(device.sm_clock and device.sm_clock_max)
    if known and held_back < LEAST_HELD_BACK:
        return None
    # Only what the device does gets faster with its clock.
    share = held_back * (1.0 if device.busy is None else device.busy)
    severity: Severity = "critical" if share >= 0.3 else "warning"
    clocks = f"SM clock {device.sm_clock} of {device.sm_clock_max} MHz" if known else "its clock is not known"
    return Finding(
        Verdict(
            id="thermal-throttle",
            severity=severity,
            share=round(share, 4) if known else None,
            speedup=round(without(min(0.9, share)), 3) if known else None,
            confidence=0.9,
            title=f"GPU {device.index} is held back by heat: {clocks}",
            evidence=(
                f"reasons: {', '.join(device.throttle or ())}",
                *((f"{device.temperature:.0f} °C",) if device.temperature is not None else ()),
            ),
            fixes=(
                Fix(text="check fans, airflow and neighbours; a lower power limit often runs faster than throttling"),
            ),
        ),
        level=1.0,
    )


def _clock_share(device: GpuDevice) -> float:
    if not device.sm_clock or not device.sm_clock_max:
        return 1.0
    return min(1.0, device.sm_clock / device.sm_clock_max)


RULES = (
    Rule("gpu-shared", shared, Band(enter=0.05, leave=0.03)),
    Rule("thermal-throttle", throttled, Band(enter=0.5, leave=0.5)),
)
