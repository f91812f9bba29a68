"""The device itself: gpu-shared and thermal-throttle."""

from __future__ import annotations

from aitop.diagnosis.rule import Band, Finding, Judgement, Rule
from aitop.diagnosis.what_if import without
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent, size
from aitop.model.verdict import Fix, Severity, Verdict

SHARED_MEMORY = 0.05


def shared(snapshot: Snapshot) -> Judgement:
    """Somebody else computes on a device that the run uses."""
    worst: tuple[float, GpuDevice] | None = None
    for device in _mine(snapshot):
        level = _taken(device)
        if worst is None or level > worst[0]:
            worst = (level, device)
    if worst is None or worst[0] <= 0:
        return None
    level, device = worst
    others = [process for process in device.processes or () if not process.mine]
    busiest = max(others, key=lambda process: (process.sm or 0.0, process.memory or 0))
    computing = [process.sm for process in others if process.sm is not None]
    taken = min(0.95, sum(computing)) if computing else None
    severity: Severity = "warning" if taken is None or taken < 0.5 else "critical"
    return Finding(
        Verdict(
            id="gpu-shared",
            severity=severity,
            share=None if taken is None else round(taken, 4),
            speedup=None if taken is None else round(without(taken), 3),
            confidence=0.85 if taken else 0.5,
            title=f"GPU {device.index} is shared with {len(others)} other process{'es' if len(others) > 1 else ''}",
            evidence=tuple(
                f"pid {process.pid} {process.name or ''}: SM {percent(process.sm)}, memory {size(process.memory)}"
                for process in others[:4]
            ),
            fixes=(Fix(text=f"use another device (CUDA_VISIBLE_DEVICES), or end pid {busiest.pid} if it is stray"),),
        ),
        level=level,
    )


def _mine(snapshot: Snapshot) -> list[GpuDevice]:
    return [device for device in snapshot.gpu.devices if device.mine and not device.lost] if snapshot.gpu else []


def _taken(device: GpuDevice) -> float:
    """How much of the device others take: their SM share, or their memory where that is not told."""
    others = [process for process in device.processes or () if not process.mine]
    computing = sum(process.sm or 0.0 for process in others)
    memory = sum(process.memory or 0 for process in others) / device.memory_total if device.memory_total else 0.0
    return max(computing, memory if memory > SHARED_MEMORY else 0.0)


def throttled(snapshot: Snapshot) -> Judgement:
    """The clocks are held back by heat."""
    hot = [device for device in _mine(snapshot) if any("thermal" in reason for reason in device.throttle or ())]
    if not hot:
        return None
    device = min(hot, key=_clock_share)
    share = 1.0 - _clock_share(device)
    severity: Severity = "critical" if share >= 0.3 else "warning"
    clocks = f"SM clock {device.sm_clock} of {device.sm_clock_max} MHz" if device.sm_clock else "clocks held back"
    return Finding(
        Verdict(
            id="thermal-throttle",
            severity=severity,
            share=round(share, 4),
            speedup=round(without(min(0.9, share)), 3),
            confidence=0.9,
            title=f"GPU {device.index} is held back by heat: {clocks}",
            evidence=(
                f"reasons: {', '.join(device.throttle or ())}",
                f"{device.temperature:.0f} °C" if device.temperature is not None else "temperature not supported",
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
