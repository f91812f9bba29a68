"""A profile as text: what held the device or the processor, by kind, by operator, by kernel."""

from __future__ import annotations

from aitop.model.profile import KernelRow, OpRow, Profile
from aitop.model.text import printable
from aitop.model.units import count, duration, percent, size

ROWS = 15
WIDTH = 100
NAME = 44


def profile_text(profile: Profile, rows: int = ROWS, width: int = WIDTH) -> str:
    """Every part as lines of at most `width` columns, ending with a line feed."""
    parts = [head(profile), classes(profile), devices(profile), operators(profile, rows), kernels(profile, rows)]
    return "\n\n".join("\n".join(line[:width].rstrip() for line in part) for part in parts if part) + "\n"


def head(profile: Profile) -> list[str]:
    """What was profiled, and what that cost the run."""
    steps = f"{profile.steps} step{'s' if profile.steps != 1 else ''}"
    each = duration(profile.seconds / profile.steps) if profile.steps else "–"
    took = duration(profile.seconds)
    lines = [f"Profile of process {profile.pid}: {steps} in {took} ({each} a step, with the profiler on)"]
    holds = profile.holds
    lines.append(
        f"the run was held for {duration(holds.total)}: {duration(holds.start)} to start, {duration(holds.stop)} to "
        f"stop, {duration(holds.save)} to write {count(profile.events)} events"
    )
    if profile.peak_memory is not None:
        lines.append(f"peak memory allocated: {size(profile.peak_memory)}")
    return lines


def classes(profile: Profile) -> list[str]:
    """Time by kind of work."""
    where = "device" if profile.kernels else "host"
    lines = [f"{where + ' time by kind':<{NAME}}{'time':>10}{'share':>8}"]
    lines += [f"{row.kind:<{NAME}}{duration(row.seconds):>10}{percent(row.share):>8}" for row in profile.classes]
    return lines if profile.classes else []


def devices(profile: Profile) -> list[str]:
    """How each device spent the time; nothing where there is none."""
    lines = []
    for use in profile.devices:
        total = use.busy + use.idle
        idle = percent(use.idle / total) if total else "–"
        delay = (
            f", a kernel begins {duration(use.launch_delay)} after its launch" if use.launch_delay is not None else ""
        )
        lines.append(
            f"device {use.device}: idle {idle} of the time in {count(use.gaps)} gaps, the longest "
            f"{duration(use.longest_gap)}{delay}"
        )
    return lines


def operators(profile: Profile, rows: int) -> list[str]:
    """The dearest operators: by device time, else by their own time on the host."""
    shown = profile.ops[:rows]
    if not shown:
        return []
    device, memory = shown[0].device is not None, shown[0].allocated is not None
    title = f"{'operator':<{NAME}}{'calls':>8}{'host':>10}{'own':>10}"
    title += f"{'device':>10}" if device else ""
    title += f"{'allocated':>11}" if memory else ""
    return [title, *[_operator(row, device, memory) for row in shown]]


def kernels(profile: Profile, rows: int) -> list[str]:
    """The dearest kernels; nothing where there is no device."""
    if not profile.kernels:
        return []
    return [f"{'kernel':<{NAME + 18}}{'calls':>8}{'device':>10}", *[_kernel(row) for row in profile.kernels[:rows]]]


def _operator(row: OpRow, device: bool, memory: bool) -> str:
    line = f"{_name(row.name, NAME)}{count(row.calls):>8}{duration(row.host):>10}{duration(row.self_host):>10}"
    line += f"{duration(row.device):>10}" if device else ""
    return line + (f"{size(row.allocated):>11}" if memory else "")


def _kernel(row: KernelRow) -> str:
    return f"{_name(row.name, NAME + 18)}{count(row.calls):>8}{duration(row.device):>10}"


def _name(name: str, room: int) -> str:
    """The name in exactly `room` columns, its middle left out where it is too long."""
    name = printable(name)
    if len(name) >= room:
        half = (room - 2) // 2
        name = f"{name[:half]}…{name[-(room - 2 - half) :]}"
    return f"{name:<{room}}"
