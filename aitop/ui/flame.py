"""How a flame view is written in cells. Pure."""

from __future__ import annotations

from rich.cells import cell_len
from rich.style import Style

from aitop.model.units import percent
from aitop.ui.call_tree import Node, Path
from aitop.ui.icicle import Cell, Rows
from aitop.ui.line import Line, cut, shorten
from aitop.ui.matching import matches
from aitop.ui.palette import (
    BRIGHT,
    CODE_KINDS,
    DIM,
    FAINT,
    OTHER_PROCESS,
    RANK,
    SELECTED,
    TEXT,
    WORKER,
    Kind,
    dimmed,
    on,
    role,
)
from aitop.ui.words import base_name, one_line

LEAST_NAME = 3
NO_CHANGE = Line()
_PARTS = {"main": RANK, "worker": WORKER, "other": OTHER_PROCESS}
_KINDS = {kind.key: kind for kind in CODE_KINDS}
# What parts two cells of one hue.
_EDGE = "▕"
# No hue reads well on what is lifted from a hue: the cell that is meant is the dark one.
_CHOSEN = on(BRIGHT, SELECTED) + Style(underline=True)
_POINTED = on(BRIGHT, SELECTED)


def kind_of(node: Node) -> Kind:
    """How a node is coloured: by whose code it is, or by what runs it."""
    return _PARTS[node.part] if node.part is not None else _KINDS[node.origin]


def flame_lines(
    rows: Rows, selected: Path | None, pointed: Path | None, *, letters: bool, wanted: str, each: int = 1
) -> list[Line]:
    """`each` lines a row. `letters` stand for hues where there are none; what `wanted` does not match is drawn back."""
    return [_row(row, selected, pointed, letters, wanted, named=not number) for row in rows for number in range(each)]


def node_line(node: Node, width: int, by: Line = NO_CHANGE) -> Line:
    """All that a cell has no room for: name, place, share, samples, whose code it is."""
    kind = kind_of(node)
    right = Line(percent(node.share), BRIGHT).join(by).add(f" · {node.samples} samples · ", DIM)
    right.add("■ ", kind.ink).add(kind.name if node.file else "who runs it", DIM)
    if not node.file:
        return (
            Line(shorten(one_line(node.name), max(8, width - right.width - 2)), BRIGHT).add("  ").join(right).fit(width)
        )
    place = f"{base_name(node.file)}:{node.line}"
    inner = f" · {node.frames} frames" if node.frames > 1 else ""
    room = max(8, width - right.width - len(place) - len(inner) - 4)
    line = Line(shorten(one_line(node.name), room), BRIGHT).add(f"  {place}", TEXT).add(inner, FAINT).add("  ")
    return line.join(right).fit(width)


def legend() -> Line:
    """Which hue is whose code."""
    line = Line()
    for number, kind in enumerate(CODE_KINDS):
        line.add("  " if number else "").add("■ ", kind.ink).add(kind.name, DIM)
    return line


def _row(
    cells: list[Cell], selected: Path | None, pointed: Path | None, letters: bool, wanted: str, *, named: bool
) -> Line:
    line = Line()
    for cell in cells:
        node = cell.node
        style = kind_of(node).fill
        if wanted and not matches(wanted, node.name, node.file):
            style = dimmed(style)
        if node.path == selected:
            style = _CHOSEN
        elif node.path == pointed:
            style = _POINTED
        line.to(cell.x)
        text = _label(cell, letters) if named else ""
        line.add(text, style).to(cell.x + cell.width - 1, " ", style)
        if line.width < cell.x + cell.width:
            line.add(_EDGE, style + Style(color=role("ground")))
    return line


def _label(cell: Cell, letters: bool) -> str:
    """The name with its share, as much of it as goes into the cell; the last part of a name says most."""
    room = cell.width - 1
    node = cell.node
    if room < LEAST_NAME:
        return (kind_of(node).letter if letters else "")[: max(0, room)]
    mark = f"{kind_of(node).letter}:" if letters else " " if room > LEAST_NAME + 3 else ""
    share = f" {cell.share * 100:.0f}%"
    for name in (one_line(node.name), one_line(node.function), one_line(node.function).rsplit(".", 1)[-1]):
        for text in (f"{mark}{name}{share}", f"{mark}{name}"):
            if cell_len(text) <= room:
                return text
    return cut(shorten(f"{mark}{one_line(node.function).rsplit('.', 1)[-1]}", room), room)
