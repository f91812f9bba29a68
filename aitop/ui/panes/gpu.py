"""The GPU pane: a block per device if there is room, else a line per device; a sentence if there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

import msgspec

from aitop.model.gpu import GpuDevice, GpuSample, MigDevice
from aitop.model.snapshot import Series, Snapshot
from aitop.model.units import NOT_SUPPORTED, NOT_YET, plural, rate, size
from aitop.ui.panes.since_mark import POINT, WIDTH, change, recent
from aitop.ui.state import View
from aitop.ui.theme.palette import BRIGHT, DEVICE_CHART, DIM, FAINT, LOSS, TEXT
from aitop.ui.widgets.bars import bar, gauge
from aitop.ui.widgets.line import Line, shorten
from aitop.ui.widgets.pane import WHOLE_JOB, Drawing
from aitop.ui.widgets.plot import ChartPane, Curve, Field, Values, area
from aitop.ui.words import one_line, share_text, state_line, tight_percent

BLOCK_ROWS = 4
SCALE = 13
LEAST_CHART = 5
ROOM_FOR_SM = 8
BAR_AT = 9
AMOUNTS = 21
LEAST_BAR, LEAST_REASON = 6, 20
BUSY_AND_SM = Line("█", DEVICE_CHART).add(" busy  ", FAINT).add("─", TEXT).add(" sm", FAINT)
LOST = "lost: the driver no longer answers"
FigureOf = Callable[[GpuDevice], "float | None"]


class GpuPane(ChartPane):
    """The devices of the machine, those of the target marked; on a narrowed screen only those that it uses."""

    def draw(self, view: View, width: int, height: int) -> Drawing:
        snapshot = view.snapshot
        devices, whose = devices_for(snapshot.gpu, view.pids()) if snapshot and snapshot.gpu else ((), None)
        if snapshot is None or not devices:
            return Drawing([_why_none(view, width)], "GPU", scope=whose)
        count, stale = len(devices), view.stale("gpu")
        if not self.framed:
            listed = line_each(view, devices, width - 6, height)
            return Drawing([Line(" gpu ", DIM).join(line) for line in listed], stale=stale)
        names = list(dict.fromkeys(one_line(device.name or "unnamed") for device in devices))
        if count == 1 or height >= count * BLOCK_ROWS:
            field = self.field(snapshot, [f"gpu{device.index}.busy" for device in devices], width, SCALE)
            blocks = [_block(view, field, device, width, height // count, alone=count == 1) for device in devices]
            lines = [line for block in blocks for line in block]
        elif height >= 2 * count:
            lines = []
            for device, line in zip(devices, device_lines(view, devices, width), strict=True):
                past = () if device.lost else _history(view, device)
                lines += [line, Line().to(BAR_AT).join(area(past, max(4, width - BAR_AT), 1, 1.0, DEVICE_CHART)[0])]
        else:
            lines = device_lines(view, devices, width)
        lost = sum(device.lost for device in devices)
        times = "" if len(names) > 1 else f"{count} × "
        title = f"GPU {devices[0].index} · {names[0]}" if count == 1 else f"GPU · {times}{', '.join(names)}"
        return Drawing(lines, title, Line(f"{lost} lost", LOSS) if lost else None, stale, scope=whose)


def devices_for(sample: GpuSample, pids: frozenset[int] | None) -> tuple[tuple[GpuDevice, ...], str | None]:
    """The devices that list one of the processes, and None; if none does, all devices and WHOLE_JOB."""
    if pids is None:
        return sample.devices, None
    used = tuple(device for device in sample.devices if any(process.pid in pids for process in device.processes or ()))
    return (used, None) if used else (sample.devices, WHOLE_JOB)


def line_each(view: View, devices: tuple[GpuDevice, ...], width: int, height: int) -> list[Line]:
    """One line per device, the target's first if not all fit; the last line then counts the others."""
    if len(devices) <= height:
        return device_lines(view, devices, width)
    ordered = sorted(devices, key=lambda device: (not device.mine, device.index))
    if height == 1:
        others = Line(f"  +{len(ordered) - 1} more", DIM)
        return [device_lines(view, ordered[:1], width - others.width)[0].join(others)]
    shown, hidden = ordered[: height - 1], ordered[height - 1 :]
    busy = [device.busy for device in hidden if device.busy is not None]
    line = Line(f"    {len(hidden)} more", DIM)
    if busy:
        line.add(f" · busy {min(busy) * 100:.0f} to {max(busy) * 100:.0f} %", DIM)
    return [*device_lines(view, shown, width), line]


def device_lines(view: View, devices: Sequence[GpuDevice], width: int) -> list[Line]:
    """Each device in one line, in the same columns: busy, memory, temperature, power, clock.

    If they do not all fit, the last columns are left out. The line ends with the reasons that hold the clocks back.
    """
    reasons = [held_back(device) for device in devices]
    reserved = min(LEAST_REASON, max(map(len, reasons), default=0))
    more = WIDTH if view.mark is not None else 0
    room = width - 3 - 5 - more - LEAST_BAR - (reserved + 2 if reserved else 0)
    parts = []
    for part in LINE_PARTS:
        cells = part[1] + more + 2
        if cells > room:
            break
        room -= cells
        parts.append(part)
    lines = []
    for device, reason in zip(devices, reasons, strict=True):
        line = Line(f"{_name(device):<3}", BRIGHT)
        lines.append(line)
        if device.lost:
            line.add(LOST, LOSS)
            continue
        line.join(_share(view, device, _busy)).add(" ").join(bar(device.busy, LEAST_BAR + min(24, room), DEVICE_CHART))
        for text_of, cells, figure_of, unit in parts:
            line.add("  ").add(text_of(device).rjust(cells), TEXT).join(_change(view, device, figure_of, unit=unit))
        if reason:
            line.add("  ").add(shorten(reason, width - line.width), LOSS)
    return lines


def held_back(device: GpuDevice) -> str:
    """Why the clocks of a device are throttled, in words; empty if they are not."""
    return ", ".join(one_line(reason).replace("_", " ") for reason in device.throttle or ())


def _name(device: GpuDevice, word: str = "") -> str:
    return f"{'▸' if device.mine else ' '}{word}{device.index}"


def _block(view: View, field: Field, device: GpuDevice, width: int, height: int, *, alone: bool) -> list[Line]:
    """A device in at least four rows. Its first row names it unless it is the only one (`alone`)."""
    name = Line("busy", DIM) if alone else Line(_name(device, "gpu "), BRIGHT)
    if device.lost:
        return [name.to(8).add(LOST, LOSS)]
    below = [_memory_row(view, device, width), _power_row(view, device, width), _link_row(view, device, width)]
    if height > BLOCK_ROWS:
        below.append(_clock_row(view, device, width))
        if device.nvlinks_active:
            below.append(_traffic("nvlink", device).add(f"  {device.nvlinks_active} links", DIM))
        for each in device.mig_devices:
            part = Line(f"mig {each.index:<4}", DIM).add(_memory(each).rjust(13), TEXT)
            below.append(part.add(f"  {one_line(each.name or '')}", DIM))
        others = [process for process in device.processes or () if not process.mine]
        if others:
            who = plural(len(others), "other process", "other processes")
            who += f" {shorten(one_line(others[0].name or ''), 24)}" if len(others) == 1 else ""
            known = [process.memory for process in others if process.memory is not None]
            memory = size(sum(known) if known else None)
            below.append(Line("shared  ", DIM).add(f"{who} {memory}"))
    rows = 1 + max(0, min(30, height - 1 - len(below)))
    return [*_busy_rows(view, field, device, width, rows, name), *below]


def _busy_rows(  # noqa: PLR0917
    view: View, field: Field, device: GpuDevice, width: int, rows: int, name: Line
) -> list[Line]:
    """How busy a device is, with its history, and the shares from its performance counters."""
    busy, sm = (f"gpu{device.index}.{of}" for of in ("busy", "sm"))
    line = name.to(8).join(_share(view, device, _busy, "busy")).add(" ")
    counters = []
    for word, share_of in COUNTERS if device.gpm is not None else OLDER_COUNTERS:
        counter = Line(f"{word} ", DIM).add(share_text(share_of(device)).strip().rjust(3), TEXT)
        counters.append(counter.join(_change(view, device, share_of, word)))
    beside = Line().join_fitting(counters, width - line.width - (LEAST_BAR + 2 if rows == 1 else 0))
    if rows == 1:
        chart = area(_history(view, device), max(4, width - line.width - 2 - beside.width), 1, 1.0, DEVICE_CHART)
        return [line.join(chart[0]).add("  ").join(beside)]
    line.join(beside)
    if rows < LEAST_CHART:
        chart = area(_history(view, device), max(4, width - SCALE), rows - 1, 1.0, DEVICE_CHART)
        return [line, *(Line().to(SCALE).join(row) for row in chart)]
    layers = [Curve(field.values(busy), DEVICE_CHART, filled=True)]
    layers += [Curve(field.values(sm), TEXT)] if rows >= ROOM_FOR_SM else []

    def reading(axis: Line) -> Line:
        axis.add("busy ", DIM).add(share_text(field.at_cursor(busy)), TEXT)
        return axis.add("  sm ", DIM).add(share_text(field.at_cursor(sm)), TEXT)

    chart = field.chart(layers, rows - 2, 1.0, tight_percent)
    return [line, *chart, field.axis(reading, BUSY_AND_SM if len(layers) > 1 else None)]


def _history(view: View, device: GpuDevice) -> Values:
    known = view.snapshot.series if view.snapshot else {}
    return known.get(f"gpu{device.index}.busy", Series()).values


def _change(
    view: View,
    device: GpuDevice,
    figure_of: FigureOf,
    series: str = "",
    *,
    points: bool = True,
    unit: float = POINT,
) -> Line:
    """The change of a figure of this device since the mark; with `points`, of a share in percentage points.

    `series` names the series of the figure, such as "busy": then means of the last seconds are compared, not single
    values.
    """

    def value_of(snapshot: Snapshot) -> float | None:
        devices = snapshot.gpu.devices if snapshot.gpu else ()
        now = next((figure_of(same) for same in devices if same.index == device.index), None)
        # The mark of an earlier session has the series, but no devices.
        whole = device.power_limit if series == "power" else 1.0
        mean = recent(snapshot, f"gpu{device.index}.{series}") if series and whole else None
        return now if mean is None or not whole else mean / whole

    return change(view, value_of, points=points, unit=unit)


def _share(view: View, device: GpuDevice, share_of: FigureOf, series: str = "") -> Line:
    return Line(share_text(share_of(device)), BRIGHT).join(_change(view, device, share_of, series))


def _memory_row(view: View, device: GpuDevice, width: int) -> Line:
    head = Line("memory  ", DIM).join(_share(view, device, _memory_share)).add(" ")
    return gauge(head, _memory_share(device), Line(_memory(device).rjust(AMOUNTS)), width, DEVICE_CHART)


def _power_row(view: View, device: GpuDevice, width: int) -> Line:
    head = Line("power   ", DIM).join(_share(view, device, _power_share, "power")).add(" ")
    amounts = Line(f"{_watts(device)}  {_degrees(device)}".rjust(AMOUNTS))
    hotter = _change(view, device, _temperature, unit=1.0)
    amounts.join_fitting([hotter], width - head.width - LEAST_BAR)
    return gauge(head, _power_share(device), amounts, width, DEVICE_CHART)


def _link_row(view: View, device: GpuDevice, width: int) -> Line:
    line = _traffic("pcie", device, view)
    if device.pcie_generation is None or device.pcie_width is None:
        return line
    full = (device.pcie_generation_max or 0, device.pcie_width_max or 0)
    degraded = device.pcie_width < full[1] or device.pcie_generation < full[0]
    link = Line(f"  gen{device.pcie_generation} ×{device.pcie_width}", TEXT if degraded else DIM)
    if degraded:
        return line.join(link).add(f" of gen{full[0]} ×{full[1]}", DIM)
    return line.join_fitting([link], width)


def _traffic(name: str, device: GpuDevice, view: View | None = None) -> Line:
    """Bytes per second in and out over the links `name`; with a `view`, also their changes since the mark."""
    line = Line(name.ljust(8), DIM)
    for word, field in (("in ", f"{name}_received"), ("  out ", f"{name}_sent")):
        line.add(word, DIM).add(rate(getattr(device, field)).rjust(8), TEXT)
        line.join(_change(view, device, attrgetter(field), points=False) if view is not None else Line())
    return line


def _clock_row(view: View, device: GpuDevice, width: int) -> Line:
    clock = NOT_SUPPORTED if device.sm_clock is None else f"{device.sm_clock}"
    line = Line("clock   ", DIM).add(clock.rjust(4), TEXT)
    line.join(_change(view, device, attrgetter("sm_clock"), points=False))
    if device.sm_clock_max:
        line.add(f" of {device.sm_clock_max} MHz", DIM)
    held = held_back(device)
    if held:
        line.add("  held back: ", DIM).add(held, LOSS)
    elif device.throttle is not None:
        line.add("  not held back", DIM)
    if device.memory_clock is not None:
        line.join_fitting([Line("  memory ", DIM).add(f"{device.memory_clock} MHz", TEXT)], width)
    if device.fan is not None:
        line.join_fitting([Line("  fan ", DIM).add(share_text(device.fan).strip())], width)
    return line


def _why_none(view: View, width: int) -> Line:
    status = view.source("gpu")
    if status is None:
        return Line(f" gpu {NOT_YET}", DIM)
    if status.state == "ok":
        return Line(" gpu: the driver reports no device", DIM)
    reason, remedy = ((text or "").partition(" (")[0] or None for text in (status.reason, status.remedy))
    wordings = ((status.reason, status.remedy), (reason, status.remedy), (reason, remedy), (reason, None))
    ways = [msgspec.structs.replace(status, reason=why, remedy=what) for why, what in wordings]
    lines = [Line(" ").join(state_line("gpu", status)) for status in ways]
    return next((line for line in lines if line.width <= width), lines[-1]).fit(width)


def _memory(device: GpuDevice | MigDevice) -> str:
    if device.memory_total is None:
        return NOT_SUPPORTED
    used = NOT_SUPPORTED if device.memory_used is None else f"{device.memory_used / 2**30:.1f}"
    return f"{used} / {device.memory_total / 2**30:.0f} GB"


def _watts(device: GpuDevice) -> str:
    if device.power is None:
        return NOT_SUPPORTED
    limit = "" if device.power_limit is None else f"/{device.power_limit:.0f}"
    return f"{device.power:.0f}{limit} W"


def _degrees(device: GpuDevice) -> str:
    return NOT_SUPPORTED if device.temperature is None else f"{device.temperature:.0f} °C"


def _clock(device: GpuDevice) -> str:
    return NOT_SUPPORTED if device.sm_clock is None else f"{device.sm_clock} MHz"


def _fraction(part: str, whole: str) -> FigureOf:
    def share_of(device: GpuDevice) -> float | None:
        used, total = getattr(device, part), getattr(device, whole)
        return None if used is None or not total else float(used / total)

    return share_of


_memory_share, _power_share = _fraction("memory_used", "memory_total"), _fraction("power", "power_limit")


COUNTERS: tuple[tuple[str, FigureOf], ...] = (
    ("sm", lambda device: device.gpm.sm_active if device.gpm else None),
    ("tensor", lambda device: device.gpm.tensor_active if device.gpm else None),
    ("dram", lambda device: device.gpm.dram_active if device.gpm else None),
    ("occupancy", lambda device: device.gpm.sm_occupancy if device.gpm else None),
)
OLDER_COUNTERS: tuple[tuple[str, FigureOf], ...] = (("memory busy", lambda device: device.memory_busy),)


_busy: FigureOf = attrgetter("busy")
_temperature: FigureOf = attrgetter("temperature")


LINE_PARTS: tuple[tuple[Callable[[GpuDevice], str], int, FigureOf, float], ...] = (
    (_memory, 13, _memory_share, POINT),
    (_degrees, 5, _temperature, 1.0),
    (_watts, 9, _power_share, POINT),
    (_clock, 8, _fraction("sm_clock", "sm_clock_max"), POINT),
)
"""The columns of a device's line after its bar, the most important first: the text, its cells, and the value whose
change since the mark is shown, in multiples of the last number."""
