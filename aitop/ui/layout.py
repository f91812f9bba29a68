"""Where every pane goes at a size. Pure: a terminal size and a few facts in, boxes out."""

from __future__ import annotations

from typing import NamedTuple

TWO_COLUMNS = 100
THREE_COLUMNS = 160
TINY_ROWS = 10
TALL_ROWS = 27
ROOM_FOR_PROCESSES = 26
MANY = 1000
UNTIMED = 7
# Beyond so many rows the ranks leave the code some lines.
LEAST_RANKS, MOST_RANKS, LEAST_CODE, ENOUGH_CODE = 4, 12, 3, 8


class Box(NamedTuple):
    """A pane's place in cells. `framed` panes draw a border around themselves."""

    x: int
    y: int
    width: int
    height: int
    framed: bool = True


Plan = dict[str, Box]
"""Pane name to place; a pane that is missing is not shown."""


def plan(
    width: int,
    height: int,
    *,
    gpus: int = 0,
    ranks: int = 0,
    processes: int = MANY,
    timed: bool = True,
    banner: bool = False,
    zoom: str | None = None,
) -> Plan:
    """The layout for a terminal of this size.

    `gpus` is the number of devices (0: one line says why there is none), `ranks` that of the job's ranks here,
    `processes` that of its processes. `timed` is False where steps will have no times, so that less is to be drawn.
    `banner` reserves a line below the header. `zoom` names a pane that gets everything between header and footer.
    """
    if height < TINY_ROWS or width < 40:
        return _tiny(width, height, zoom)
    boxes = {"header": Box(0, 0, width, 1, False), "footer": Box(0, height - 1, width, 1, False)}
    top = 1
    if banner:
        boxes["banner"] = Box(0, 1, width, 1, False)
        top = 2
    rows = height - 1 - top
    if zoom is not None:
        boxes[zoom] = Box(0, top, width, rows)
    elif width < TWO_COLUMNS or rows < TALL_ROWS - 2:
        boxes |= _one_column(width, top, rows, gpus)
    elif width < THREE_COLUMNS:
        boxes |= _two_columns(width, top, rows, gpus, timed)
    else:
        boxes |= _three_columns(width, top, rows, gpus, processes)
    return _with_ranks(boxes, ranks) if ranks > 1 and zoom is None else boxes


def _with_ranks(boxes: Plan, ranks: int) -> Plan:
    """The ranks above the code, in rows that it had; where those do not do for both, in its place."""
    code = boxes.get("code")
    if code is None or code.height < LEAST_RANKS:
        return boxes
    wanted = min(ranks + 3, max(MOST_RANKS, code.height - ENOUGH_CODE))
    if code.height - wanted >= LEAST_CODE:
        below = code._replace(y=code.y + wanted, height=code.height - wanted)
        return boxes | {"ranks": code._replace(height=wanted), "code": below}
    without = {name: box for name, box in boxes.items() if name != "code"}
    return without | {"ranks": code}


def _tiny(width: int, height: int, zoom: str | None) -> Plan:
    """A few lines: the verdict in words, whatever else there is to say in them."""
    if height >= 4:
        return {
            zoom or "verdict": Box(0, 0, width, height - 1, False),
            "footer": Box(0, height - 1, width, 1, False),
        }
    return {zoom or "verdict": Box(0, 0, width, height, False)}


def _one_column(width: int, top: int, rows: int, gpus: int) -> Plan:
    """Verdict, step, a line for each GPU, code; what does not fit goes from the bottom, the code first."""
    verdict = 6 if rows >= 16 else 4
    gpu = min(max(1, gpus), max(1, (rows - 12) // 4))
    step = 6 if rows >= 18 else 4
    boxes: Plan = {"verdict": Box(0, top, width, verdict)}
    y, left = top + verdict, rows - verdict
    if width >= 120 and left >= 6:
        half = width // 2
        boxes["step"] = Box(0, y, half, left - gpu)
        boxes["code"] = Box(half, y, width - half, left - gpu)
        boxes["gpu"] = Box(0, y + left - gpu, width, gpu, False)
        return boxes
    if left >= step:
        boxes["step"] = Box(0, y, width, step)
        y, left = y + step, left - step
    if left >= gpu:
        boxes["gpu"] = Box(0, y, width, gpu, False)
        y, left = y + gpu, left - gpu
    if left >= 3:
        boxes["code"] = Box(0, y, width, left)
    return boxes


def _two_columns(width: int, top: int, rows: int, gpus: int, timed: bool) -> Plan:
    """Verdict across; step beside GPU; data beside memory; code across. Without a GPU its line goes under the code."""
    half = width // 2
    verdict = 6
    rest = rows - verdict
    step = max(8, round(rest * 0.4)) if timed or gpus else UNTIMED
    data = max(6, round(rest * 0.28))
    y = top + verdict
    boxes: Plan = {"verdict": Box(0, top, width, verdict)}
    if gpus:
        boxes["step"] = Box(0, y, half, step)
        boxes["gpu"] = Box(half, y, width - half, step)
        boxes["data"] = Box(0, y + step, half, data)
        boxes["memory"] = Box(half, y + step, width - half, data)
        boxes["code"] = Box(0, y + step + data, width, rest - step - data)
        return boxes
    boxes["step"] = Box(0, y, width, step)
    boxes["data"] = Box(0, y + step, half, data)
    boxes["memory"] = Box(half, y + step, width - half, data)
    boxes["code"] = Box(0, y + step + data, width, rest - step - data - 1)
    boxes["gpu"] = Box(0, top + rows - 1, width, 1, False)
    return boxes


def _three_columns(width: int, top: int, rows: int, gpus: int, processes: int) -> Plan:
    """Verdict across; step above data, GPU above memory, and the code above the processes in a column of its own.

    Without a GPU its line goes to the bottom, and the step has the width of two columns.
    """
    verdict = 6
    y, rest = top + verdict, rows - verdict
    first = second = max(52, min(90, width * 28 // 100))
    third = width - first - second
    upper = max(8, round(rest * 0.6))
    lower = rest - upper - (0 if gpus else 1)
    boxes: Plan = {
        "verdict": Box(0, top, width, verdict),
        "data": Box(0, y + upper, first, lower),
        "memory": Box(first, y + upper, second, lower),
        "code": Box(first + second, y, third, rest),
    }
    if gpus:
        boxes["step"] = Box(0, y, first, upper)
        boxes["gpu"] = Box(first, y, second, upper)
    else:
        boxes["step"] = Box(0, y, first + second, upper)
        boxes["gpu"] = Box(0, y + rest - 1, first + second, 1, False)
    if rest >= ROOM_FOR_PROCESSES:
        # In steps, so that a process more or less moves nothing.
        code = max(round(rest * 0.6), rest - 4 * -(-(processes + 3) // 4))
        boxes["code"] = Box(first + second, y, third, code)
        boxes["processes"] = Box(first + second, y + code, third, rest - code)
    return boxes
