"""thermal-throttle and power-cap: what holds back the clock of a device."""

from __future__ import annotations

import math

from aitop.diagnosis.device import own_devices, without_figures
from aitop.diagnosis.rule import Explanation, condition
from aitop.diagnosis.what_if import fix
from aitop.model.gpu import GpuDevice
from aitop.model.snapshot import Snapshot
from aitop.model.units import percent
from aitop.model.verdict import Fix, Severity

# A clock that is held back by less than this part costs next to nothing.
LEAST_HELD_BACK = 0.05
# A power limit below this part of the maker's was lowered by somebody.
LOWERED = 0.85
# The confidence in a gain from more power. Near the top, power grows about with the square of the clock, so the clock
# is taken to grow with the root of power: a guess.
PREDICTED = 0.5
UNTOLD = "the driver does not tell what holds the clocks back"


@condition("thermal-throttle")
def throttled(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on a clock that is held back by heat."""
    missing = _missing(snapshot)
    hot = [device for device in own_devices(snapshot) if any("thermal" in reason for reason in device.throttle or ())]
    if missing or not hot:
        return missing
    device = min(hot, key=_clock_share)
    held_back = 1.0 - _clock_share(device)
    known = bool(device.sm_clock and device.sm_clock_max)
    if known and held_back < LEAST_HELD_BACK:
        return None
    share = _worth(device, held_back)
    clocks = f"SM clock {device.sm_clock} of {device.sm_clock_max} MHz" if known else "its clock is not known"
    return Explanation(
        signals=(True, known),
        share=share if known else None,
        confidence=0.9,
        title=f"GPU {device.index} is held back by heat: {clocks}",
        evidence=(f"reasons: {', '.join(device.throttle or ())}", *_heat(device)),
        fixes=(fix("check fans, airflow and neighbours; a lower power limit often runs faster than throttling"),),
        level=1.0,
    )


@condition("power-cap")
def power_capped(snapshot: Snapshot) -> Explanation | str | None:
    """The verdict on a clock that is held back by a power limit: as designed, or because somebody lowered it."""
    missing = _missing(snapshot)
    capped = [device for device in own_devices(snapshot) if _by_power(device)]
    if missing or not capped:
        return missing
    device = max(capped, key=lambda one: ("hw_power_brake" in (one.throttle or ()), _gain(one), -_clock_share(one)))
    braked = "hw_power_brake" in (device.throttle or ())
    lowered = _limit_share(device) < LOWERED
    gain = _gain(device)
    share = _worth(device, 1.0 - 1.0 / gain) if lowered and gain > 1.0 else None
    severity: Severity = "warning" if braked or (lowered and (share or 0.0) >= LEAST_HELD_BACK) else "info"
    if braked:
        title = f"GPU {device.index} is slowed down by its power supply{_clock_words(device)}"
    elif lowered:
        title = f"GPU {device.index} may draw {device.power_limit:.0f} W of its {device.power_limit_default:.0f} W"
    else:
        title = f"GPU {device.index} runs at its power limit, as it does when it works hard{_clock_words(device)}"
    return Explanation(
        severity=severity,
        share=share,
        confidence=0.85 if share is None else PREDICTED,
        title=title,
        evidence=(f"reasons: {', '.join(device.throttle or ())}", *_power(device), *_heat(device)),
        fixes=_fixes(device, share, braked=braked, lowered=lowered),
        level=1.0,
    )


def _missing(snapshot: Snapshot) -> str | None:
    devices = own_devices(snapshot)
    if devices and all(device.throttle is None for device in devices):
        return UNTOLD
    return without_figures(snapshot)


def _by_power(device: GpuDevice) -> bool:
    return any(reason in ("sw_power_cap", "hw_power_brake") for reason in device.throttle or ())


def _limit_share(device: GpuDevice) -> float:
    """The power limit as a part of the maker's; 1 where either is not known."""
    if not device.power_limit or not device.power_limit_default:
        return 1.0
    return device.power_limit / device.power_limit_default


def _gain(device: GpuDevice) -> float:
    """The factor by which the clock may rise at the maker's power limit, at most to the highest clock of the device."""
    clock = _clock_share(device)
    return max(1.0, min(1.0 / clock, math.sqrt(1.0 / _limit_share(device))))


def _clock_share(device: GpuDevice) -> float:
    if not device.sm_clock or not device.sm_clock_max:
        return 1.0
    return min(1.0, device.sm_clock / device.sm_clock_max)


def _worth(device: GpuDevice, held_back: float) -> float:
    """The share of step time that the lost clock costs: only the time in which the device is busy would get shorter."""
    return held_back * (1.0 if device.busy is None else device.busy)


def _clock_words(device: GpuDevice) -> str:
    held = _clock_share(device) < 1.0 - LEAST_HELD_BACK
    return f": SM clock {device.sm_clock} of {device.sm_clock_max} MHz" if held else ""


def _power(device: GpuDevice) -> tuple[str, ...]:
    if device.power is None or device.power_limit is None:
        return ()
    drawn = f"{device.power:.0f} W drawn, limit {device.power_limit:.0f} W"
    if device.power_limit_default is None:
        return (drawn,)
    lowered = f", set to {percent(_limit_share(device))} of it" if _limit_share(device) < LOWERED else ""
    return (f"{drawn}; the maker's limit is {device.power_limit_default:.0f} W{lowered}",)


def _heat(device: GpuDevice) -> tuple[str, ...]:
    return () if device.temperature is None else (f"{device.temperature:.0f} °C",)


def _fixes(device: GpuDevice, share: float | None, *, braked: bool, lowered: bool) -> tuple[Fix, ...]:
    if braked:
        return (fix("the power supply or the rack asks for less: have its load and cabling checked"),)
    if lowered:
        restore = f"nvidia-smi -i {device.index} -pl {device.power_limit_default:.0f}"
        return (fix(f"if nobody lowered it on purpose: sudo {restore}", share),)
    return (fix("nothing to mend: lower precision or fewer operations get more done for the same power"),)
