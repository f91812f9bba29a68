"""The layout: the place of every pane for a terminal size, and the room that folded panes give to others. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

TWO_COLUMNS = 100
THREE_COLUMNS = 160
TINY_ROWS = 10
TALL_ROWS = 27
ROOM_FOR_PROCESSES = 26
ROOM_FOR_REPLAY_BAR = 12
MANY = 1000
UNTIMED_STEP_ROWS = 7
LEAST_RANKS, MOST_RANKS, LEAST_CODE, ENOUGH_CODE = 4, 12, 3, 8
"""Heights in rows, with the frame. The ranks may take MOST_RANKS rows, and more only if the code keeps ENOUGH_CODE;
neither pane gets less than its LEAST_.
"""
LEDGER_ROWS, CODE_BELOW_LEDGER = 8, 12
LEDGER_WIDTH, CODE_BESIDE_LEDGER = 54, 46
FIXED_HEIGHT_PANES = frozenset({"verdict"})
"""Panes that have no use for more rows: they keep their height when others are folded."""


class Box(NamedTuple):
    """A pane's place in cells, from the top left corner of the screen. `framed` panes draw their own border."""

    x: int
    y: int
    width: int
    height: int
    framed: bool = True


Plan = dict[str, Box]
"""The place of each pane by name; a pane that is missing is not shown."""


def plan(
    width: int,
    height: int,
    *,
    gpus: int = 0,
    ranks: int = 0,
    processes: int = MANY,
    ledger: bool = False,
    timed: bool = True,
    serving: bool = False,
    banner: bool = False,
    replay: bool = False,
    zoom: str | None = None,
) -> Plan:
    """The layout for a terminal of `width` x `height` cells.

    `gpus` is the number of devices (0: one line says why there is none), `ranks` the number of the job's ranks on this
    machine, `processes` the number of its processes. `ledger` says that there is a ledger to show. `timed` is False if
    steps have no times: the step pane then needs fewer rows. `serving` puts the serving pane in the place of the step
    pane (with more rows, except in three columns) and the ledger in the place of the data pane. `banner` reserves a
    line below the header, `replay` one above the footer. `zoom` names a pane that gets all rows between header and
    footer.
    """
    bottom, bars = height - 1, {"footer": Box(0, height - 1, width, 1, False)}
    if replay and height >= ROOM_FOR_REPLAY_BAR:
        bottom -= 1
        bars["replay"] = Box(0, bottom, width, 1, False)
    if height < TINY_ROWS or width < 40:
        return _tiny(width, bottom + 1, zoom) | (bars if "replay" in bars else {})
    boxes = bars | {"header": Box(0, 0, width, 1, False)}
    top = 1
    if banner:
        boxes["banner"] = Box(0, 1, width, 1, False)
        top = 2
    rows = bottom - top
    if zoom is not None:
        return boxes | {zoom: Box(0, top, width, rows)}
    if width < TWO_COLUMNS or rows < TALL_ROWS - 2:
        boxes |= _one_column(width, top, rows, gpus, serving)
    elif width < THREE_COLUMNS:
        boxes |= _two_columns(width, top, rows, gpus, ranks, timed, serving)
    else:
        boxes |= _three_columns(width, top, rows, gpus, processes)
    if serving and "step" in boxes:
        boxes["serving"] = boxes.pop("step")
    if serving and ledger and "data" in boxes:
        # A server gets its data with the requests and has no loader, so the ledger says more than the data pane.
        boxes["ledger"] = boxes.pop("data")
        ledger = False
    if ranks > 1 and "ranks" not in boxes:
        boxes |= _ranks_above_code(boxes, ranks)
    return boxes | _ledger_with_code(boxes) if ledger else boxes


def _ranks_above_code(boxes: Plan, ranks: int) -> Plan:
    """Place the ranks in the upper rows of the code pane; empty if its rows are too few for both."""
    code = boxes.get("code")
    if code is None or code.height < LEAST_RANKS + LEAST_CODE:
        return {}
    wanted = min(ranks + 3, max(MOST_RANKS, code.height - ENOUGH_CODE), code.height - LEAST_CODE)
    return {"ranks": code._replace(height=wanted), "code": _below(code, wanted)}


def _ledger_with_code(boxes: Plan) -> Plan:
    """Place the ledger above the code if that has rows to spare, else beside it; empty if there is no room."""
    code = boxes.get("code")
    if code is None:
        return {}
    if code.height >= LEDGER_ROWS + CODE_BELOW_LEDGER:
        return {"ledger": code._replace(height=LEDGER_ROWS), "code": _below(code, LEDGER_ROWS)}
    if code.width >= LEDGER_WIDTH + CODE_BESIDE_LEDGER:
        left = code.width - LEDGER_WIDTH
        return {"code": code._replace(width=left), "ledger": code._replace(x=code.x + left, width=LEDGER_WIDTH)}
    return {}


def _below(box: Box, rows: int) -> Box:
    return box._replace(y=box.y + rows, height=box.height - rows)


def _tiny(width: int, height: int, zoom: str | None) -> Plan:
    """The layout for a tiny terminal: one frameless pane, the verdict unless another is zoomed, and the footer if it
    fits.
    """
    if height >= 4:
        return {zoom or "verdict": Box(0, 0, width, height - 1, False), "footer": Box(0, height - 1, width, 1, False)}
    return {zoom or "verdict": Box(0, 0, width, height, False)}


def _stack(x: int, y: int, width: int, *panes: tuple[str, int]) -> Plan:
    """Place panes one below the other, each with its height in rows; those without rows are left out."""
    boxes: Plan = {}
    for name, height in panes:
        if height > 0:
            boxes[name] = Box(x, y, width, height)
        y += height
    return boxes


def _gpu_lines(x: int, y: int, width: int, rows: int) -> Plan:
    return {"gpu": Box(x, y, width, rows, False)}


def _one_column(width: int, top: int, rows: int, gpus: int, serving: bool) -> Plan:
    """Verdict, step, GPU lines and code from the top down; from 120 cells on, step and code stand side by side.

    GPUs get a line each, but at most a quarter of the rows beyond 12. What does not fit is left out, the code first.
    """
    verdict = 6 if rows >= 16 else 4
    gpu = min(max(1, gpus), max(1, (rows - 12) // 4))
    step = (8 if serving else 6) if rows >= 18 else 4
    y, left = top + verdict, rows - verdict
    boxes = _stack(0, top, width, ("verdict", verdict))
    if width >= 120 and left >= 6:
        half, y = width // 2, y + left - gpu
        boxes |= _stack(0, top + verdict, half, ("step", left - gpu))
        boxes |= _stack(half, top + verdict, width - half, ("code", left - gpu))
        return boxes | _gpu_lines(0, y, width, gpu)
    if left >= step:
        boxes |= _stack(0, y, width, ("step", step))
        y, left = y + step, left - step
    if left >= gpu:
        boxes |= _gpu_lines(0, y, width, gpu)
        y, left = y + gpu, left - gpu
    return boxes | _stack(0, y, width, ("code", left if left >= 3 else 0))


def _two_columns(  # noqa: PLR0917
    width: int, top: int, rows: int, gpus: int, ranks: int, timed: bool, serving: bool
) -> Plan:
    """Rows of panes: verdict; step beside GPU; data beside memory; code.

    Without a GPU its one line goes below the code, and the ranks, if there are several, stand beside the step.
    """
    half, verdict = width // 2, 6
    y, rest = top + verdict, rows - verdict
    step = max(8, round(rest * (0.46 if serving else 0.4))) if timed or gpus or serving else UNTIMED_STEP_ROWS
    data = max(6, round(rest * (0.22 if serving else 0.28)))
    below = rest - step - data
    beside = "gpu" if gpus else "ranks" if ranks > 1 else None
    boxes = _stack(0, top, width, ("verdict", verdict))
    boxes |= _stack(0, y, half if beside else width, ("step", step))
    boxes |= _stack(half, y, width - half, (beside, step)) if beside else {}
    boxes |= _stack(0, y + step, half, ("data", data)) | _stack(half, y + step, width - half, ("memory", data))
    boxes |= _stack(0, y + step + data, width, ("code", below if gpus else below - 1))
    return boxes if gpus else boxes | _gpu_lines(0, top + rows - 1, width, 1)


def _three_columns(width: int, top: int, rows: int, gpus: int, processes: int) -> Plan:
    """Verdict across the top; below it three columns: step above data, GPU above memory, code above processes.

    Without a GPU its one line goes to the bottom, and the step is two columns wide. The processes are shown only where
    there are ROOM_FOR_PROCESSES rows below the verdict.
    """
    verdict, column = 6, max(52, min(90, width * 28 // 100))
    y, rest = top + verdict, rows - verdict
    upper = max(8, round(rest * 0.6))
    lower = rest - upper - (0 if gpus else 1)
    # In steps of four rows, so that one process more or less does not move the border.
    code = max(round(rest * 0.6), rest - 4 * -(-(processes + 3) // 4)) if rest >= ROOM_FOR_PROCESSES else rest
    boxes = _stack(0, top, width, ("verdict", verdict))
    boxes |= _stack(0, y, column if gpus else 2 * column, ("step", upper))
    boxes |= _stack(0, y + upper, column, ("data", lower))
    boxes |= _stack(column, y, column, ("gpu", upper)) if gpus else _gpu_lines(0, y + rest - 1, 2 * column, 1)
    boxes |= _stack(column, y + upper, column, ("memory", lower))
    return boxes | _stack(2 * column, y, width - 2 * column, ("code", code), ("processes", rest - code))


def refit(boxes: Plan, folded: Collection[str]) -> Plan:
    """The same layout with the folded panes one row high and their rows given to other panes in the same columns.

    First, from the top down, every pane moves up as far as it can. Then, from the bottom up, panes that can grow take
    the free rows below them, and panes that cannot (folded ones and those without a frame) move down to the next pane.
    FIXED_HEIGHT_PANES panes stay where they are. Panes without a frame are not folded.
    """
    closed = {name for name in folded if name in boxes and boxes[name].framed}
    if not closed:
        return boxes
    downwards = sorted(boxes, key=lambda name: boxes[name].y)
    top, bottom = min(box.y for box in boxes.values()), max(box.y + box.height for box in boxes.values())
    placed: Plan = {}
    for name in downwards:
        above = [other.y + other.height for other in placed.values() if _beside(other, boxes[name])]
        height = 1 if name in closed else boxes[name].height
        placed[name] = boxes[name]._replace(y=max(above, default=top), height=height)
    settled: Plan = {}
    for name in reversed(downwards):
        box = placed[name]
        floor = min((other.y for other in settled.values() if _beside(other, box)), default=bottom)
        if name in FIXED_HEIGHT_PANES:
            settled[name] = box
        elif box.framed and name not in closed:
            settled[name] = box._replace(height=floor - box.y)
        else:
            settled[name] = box._replace(y=floor - box.height)
    return settled


def _beside(one: Box, other: Box) -> bool:
    """Whether two boxes have columns in common, so that one must be above the other."""
    return one.x < other.x + other.width and other.x < one.x + one.width
