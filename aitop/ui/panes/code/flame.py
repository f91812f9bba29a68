"""The flame view, with callers above callees: the cells of each function, and how they are drawn. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.cells import cell_len
from rich.style import Style

from aitop.model.units import duration, percent
from aitop.ui.panes.code.call_tree import Node, TreePath, kind_of, way_to
from aitop.ui.panes.code.hot_lines import filled_below
from aitop.ui.panes.since_mark import NO_CHANGE
from aitop.ui.state import View, matches
from aitop.ui.theme.palette import BRIGHT, CODE_KINDS, DIM, FAINT, SELECTED, TEXT, Kind, dimmed, on, role
from aitop.ui.widgets.line import Line, cut, rule, shorten
from aitop.ui.words import one_line, place, tight_percent


class Cell(msgspec.Struct, frozen=True, eq=False):
    """A node's place in the row of its depth: `width` cells from column `x`. `share` (0..1) is of all samples drawn."""

    node: Node
    x: int
    width: int
    share: float


Rows = list[list[Cell]]


def icicle(nodes: Sequence[Node], width: int) -> Rows:
    """The rows of cells from the top down: each node stands below its parent, as wide as its share of the samples.

    Siblings are in the order of their names, so that they stay in place when the numbers change. A node that rounds to
    a width of zero cells is left out, with all below it.
    """
    total = sum(node.samples for node in nodes)
    rows: Rows = []

    def lay_out(nodes: Sequence[Node], start: int, end: int, depth: int) -> None:
        """Place `nodes` between two counts of samples. Rounding both ends from the left edge avoids overlaps."""
        for node in in_order(nodes):
            beyond = min(end, start + node.samples)
            x, right = ((2 * samples * width + total) // (2 * total) for samples in (start, beyond))
            if right > x:
                rows.extend([] for _ in range(depth + 1 - len(rows)))
                rows[depth].append(Cell(node, x, right - x, node.samples / total))
                lay_out(node.children, start, beyond, depth + 1)
            start = beyond

    if total > 0 and width > 0:
        lay_out(nodes, 0, total, 0)
    return rows


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Siblings from left to right: sorted by name; headings, at the top, in the order given."""
    return sorted(nodes, key=lambda node: (node.function, node.file)) if nodes and nodes[0].file else list(nodes)


def zoomed(nodes: Sequence[Node], path: TreePath) -> tuple[list[Node], list[Node]]:
    """The nodes from the root to `path`, as far as they exist, and the nodes to draw across the full width.

    The latter are the last node on that path, or all roots if the path is empty.
    """
    way = way_to(nodes, path)
    return way, way[-1:] or list(nodes)


def at(rows: Rows, x: int, row: int) -> Cell | None:
    """The cell at column `x` of a row, None if there is none."""
    if not 0 <= row < len(rows):
        return None
    return next((cell for cell in rows[row] if cell.x <= x < cell.x + cell.width), None)


def neighbour(rows: Rows, path: TreePath, across: int, down: int) -> TreePath | None:
    """The path that an arrow key leads to from `path`: its parent, its widest child, or the next cell in its row."""
    row, index = _index(rows, path)
    if row < 0:
        return rows[0][0].node.path if rows else None
    if across:
        beside = rows[row][max(0, min(len(rows[row]) - 1, index + across))]
        return beside.node.path
    cell, wanted = rows[row][index], row + down
    if not 0 <= wanted < len(rows):
        return path
    if down < 0:
        above = at(rows, cell.x, wanted)
        return above.node.path if above else path
    below = [row for row in rows[wanted] if cell.x <= row.x < cell.x + cell.width]
    return max(below, key=lambda row: row.node.samples).node.path if below else path


def row_of(rows: Rows, path: TreePath) -> int:
    """The row of the cell of `path`, -1 if it has no cell."""
    return _index(rows, path)[0]


def _index(rows: Rows, path: TreePath) -> tuple[int, int]:
    for number, row in enumerate(rows):
        for index, cell in enumerate(row):
            if cell.node.path == path:
                return number, index
    return -1, -1


LEAST_NAME = 3
# Separates two cells of the same hue.
_EDGE = "▕"
# Text is hard to read on a brighter shade of a hue, so the selected and the pointed-at cell are dark instead.
_CHOSEN = on(BRIGHT, SELECTED) + Style(underline=True)
_POINTED = on(BRIGHT, SELECTED)


def flame_lines(
    rows: Rows, selected: TreePath | None, pointed: TreePath | None, *, letters: bool, wanted: str
) -> list[Line]:
    """One line per row. `letters` replace hues in themes without colours; what does not match `wanted` is faded."""
    lines = []
    for row in rows:
        line = Line()
        for cell in row:
            node = cell.node
            style = kind_of(node).fill
            if wanted and not matches(wanted, node.name, node.file):
                style = dimmed(style)
            if node.path == selected:
                style = _CHOSEN
            elif node.path == pointed:
                style = _POINTED
            line.to(cell.x)
            line.add(_label(cell, letters), style).to(cell.x + cell.width - 1, " ", style)
            if line.width < cell.x + cell.width:
                line.add(_EDGE, style + Style(color=role("ground")))
        lines.append(line)
    return lines


def node_line(node: Node, width: int, by: Line = NO_CHANGE) -> Line:
    """A node in full, which its cell has no room for: name, place, share, samples, whose code it is.

    For a node of two compared runs: its times before and after instead of share and samples.
    """
    kind = kind_of(node)
    if node.times is not None:
        before, after = (duration(each / 1e3) if each else "0" for each in node.times)
        right = Line(f"{before} → {after}", BRIGHT).add(" · ■ ", kind.ink).add(kind.name, DIM)
        name = f"{one_line(node.name)}  {node.file and place(node)}"
        return Line(shorten(name, max(8, width - right.width - 2)), BRIGHT).add("  ").join(right).fit(width)
    right = Line(percent(node.share), BRIGHT).join(by).add(f" · {node.samples} samples · ", DIM)
    right.add("■ ", kind.ink).add(kind.name if node.file else "who runs it", DIM)
    at = f"  {place(node)}" if node.file else ""
    inner = f" · {node.frames} frames" if node.frames > 1 else ""
    room = max(8, width - right.width - len(at) - len(inner) - 2)
    line = Line(shorten(one_line(node.name), room), BRIGHT).add(at, TEXT).add(inner, FAINT).add("  ")
    return line.join(right).fit(width)


def legend(kinds: Sequence[Kind] = CODE_KINDS) -> Line:
    """A legend of the colours; by default, whose code it is."""
    line = Line()
    for number, kind in enumerate(kinds):
        line.add("  " if number else "").add("■ ", kind.ink).add(kind.name, DIM)
    return line


def _label(cell: Cell, letters: bool) -> str:
    """The text in a cell: as much of the name as fits and the share, or the difference in time of two runs."""
    room, node = cell.width - 1, cell.node
    if room < LEAST_NAME:
        return (kind_of(node).letter if letters else "")[: max(0, room)]
    mark = f"{kind_of(node).letter}:" if letters else " " if room > LEAST_NAME + 3 else ""
    share = tight_percent(cell.share)
    if node.times is not None:
        before, after = node.times
        share = f"{'−' if after < before else '+'}{duration(abs(after - before) / 1e3)}"
    last = one_line(node.function).rsplit(".", 1)[-1]
    for name in (one_line(node.name), one_line(node.function), last):
        for text in (f"{mark}{name} {share}", f"{mark}{name}"):
            if cell_len(text) <= room:
                return text
    return cut(shorten(mark + last, room), room)


def flame_below(nodes: Sequence[Node], view: View, width: int, room: int) -> list[Line]:
    """The flame in `room` rows below another list, under a rule with the key that gives it the whole pane."""
    drawn = (
        flame_lines(icicle(nodes, width), None, None, letters=view.appearance.mono, wanted=view.filter) if room else []
    )
    return filled_below(rule("flame", width, "f"), drawn, room)
