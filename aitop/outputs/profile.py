"""A profile as text: where device or host time went, by kind of work, by operator and by kernel."""

from __future__ import annotations

from collections.abc import Sequence

from aitop.model.profile import DeviceUse, Profile
from aitop.model.text import printable
from aitop.model.units import count, duration, percent, plural, size

ROWS = 15
WIDTH = 100
NAME = 44
KERNEL_NAME = NAME + 18


def profile_text(profile: Profile) -> str:
    """All parts of the profile, in lines of at most WIDTH columns, ending with a line feed."""
    parts = [
        _head(profile),
        _classes(profile),
        [_device(use) for use in profile.devices],
        _operators(profile),
        _kernels(profile),
    ]
    return "\n\n".join("\n".join(line[:WIDTH].rstrip() for line in part) for part in parts if part) + "\n"


def _head(profile: Profile) -> list[str]:
    steps = plural(profile.steps, "step")
    each = duration(profile.seconds / profile.steps) if profile.steps else "–"
    holds, peak, length = profile.holds, profile.peak_memory, duration(profile.seconds)
    return [
        f"Profile of process {profile.pid}: {steps} in {length} ({each} a step, with the profiler on)",
        f"the run was held for {duration(holds.total)}: {duration(holds.start)} to start, {duration(holds.stop)} to "
        f"stop, {duration(holds.save)} to write {count(profile.events)} events",
        *([f"peak memory allocated: {size(peak)}"] if peak is not None else []),
    ]


def _classes(profile: Profile) -> list[str]:
    title = f"{'device' if profile.kernels else 'host'} time by kind"
    rows = [(row.kind, duration(row.seconds), percent(row.share)) for row in profile.classes]
    return _table([(title, "time", "share"), *rows], (NAME, 10, 8)) if rows else []


def _device(use: DeviceUse) -> str:
    total = use.busy + use.idle
    idle = percent(use.idle / total) if total else "–"
    delay = f", a kernel begins {duration(use.launch_delay)} after its launch" if use.launch_delay is not None else ""
    longest = f"the longest {duration(use.longest_gap)}"
    return f"device {use.device}: idle {idle} of the time in {count(use.gaps)} gaps, {longest}{delay}"


def _operators(profile: Profile) -> list[str]:
    """The most expensive operators: by device time, else by their own time on the host."""
    columns = [("operator", "calls", "host", "own", "device", "allocated")]
    for row in profile.ops[:ROWS]:
        device = duration(row.device) if row.device is not None else ""
        allocated = size(row.allocated) if row.allocated is not None else ""
        columns.append((row.name, count(row.calls), duration(row.host), duration(row.self_host), device, allocated))
    if len(columns) == 1:
        return []
    # What was not measured for the first operator was not measured for any.
    shown = [place for place in range(6) if columns[1][place]]
    widths = (NAME, 8, 10, 10, 10, 11)
    return _table([[row[place] for place in shown] for row in columns], [widths[place] for place in shown])


def _kernels(profile: Profile) -> list[str]:
    """The longest kernels; nothing where there is no device."""
    kernels = [(row.name, count(row.calls), duration(row.device)) for row in profile.kernels[:ROWS]]
    return _table([("kernel", "calls", "device"), *kernels], (KERNEL_NAME, 8, 10)) if kernels else []


def _table(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Lines with the name first (shortened in its middle if too long) and the other columns aligned to the right."""
    lines = []
    for name, *others in rows:
        room, shown = widths[0], printable(name)
        if len(shown) >= room:
            half = (room - 2) // 2
            shown = f"{shown[:half]}…{shown[-(room - 2 - half) :]}"
        lines.append(
            f"{shown:<{room}}" + "".join(f"{text:>{wide}}" for text, wide in zip(others, widths[1:], strict=True))
        )
    return lines
