"""Clock event ('throttle') reasons by name."""

from __future__ import annotations

# What a person who debugs a run wants to know: something holds the clocks below what the work asks for.
# Left out on purpose: gpu_idle (0x1, nothing to do), applications_clocks_setting (0x2, the clocks somebody chose,
# set on every data-centre card) and display_clock_setting (0x100).
REASONS: tuple[tuple[int, str], ...] = (
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake"),
)
_HIGHEST_MASK = (1 << 20) - 1


def reason_names(mask: int | None) -> tuple[str, ...] | None:
    """The reasons in NVML's bit mask that hold the clocks back, in the mask's order; None for garbage."""
    if mask is None or not 0 <= mask <= _HIGHEST_MASK:
        return None
    return tuple(name for bit, name in REASONS if mask & bit)
