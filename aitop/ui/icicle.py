"""A flame view, growing downwards: which cells each function has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aitop.ui.call_tree import Node, Path


@dataclass(frozen=True, eq=False)
class Cell:
    """A node's place: `width` cells from column `x` of the row of its depth. `share` is of the row's whole width."""

    node: Node
    x: int
    width: int
    share: float


Rows = list[list[Cell]]


def icicle(nodes: Sequence[Node], width: int) -> Rows:
    """Rows from the top down; each node stands under its parent, widths go by samples.

    Siblings are in the order of their names, so that they stay where they are when the numbers change. What would be
    narrower than half a cell is left out.
    """
    total = sum(node.samples for node in nodes)
    rows: Rows = []
    if total > 0 and width > 0:
        _place(nodes, 0, total, _Scale(total, width), rows)
    return rows


def in_order(nodes: Sequence[Node]) -> list[Node]:
    """Siblings as they stand side by side. Those at the top are in their own order."""
    return sorted(nodes, key=lambda node: (node.function, node.file)) if nodes and nodes[0].file else list(nodes)


def zoomed(nodes: Sequence[Node], path: Path) -> tuple[list[Node], list[Node]]:
    """The way down to `path` (or as far as it is there), and the nodes that fill the width: the last one alone."""
    way: list[Node] = []
    level: Sequence[Node] = nodes
    while True:
        below = next((node for node in level if node.path == path[: len(node.path)]), None)
        if below is None:
            return way, [way[-1]] if way else list(nodes)
        way.append(below)
        level = below.children


def at(rows: Rows, x: int, row: int) -> Cell | None:
    """The cell under a place."""
    if not 0 <= row < len(rows):
        return None
    return next((cell for cell in rows[row] if cell.x <= x < cell.x + cell.width), None)


def neighbour(rows: Rows, path: Path, across: int, down: int) -> Path | None:
    """Where an arrow leads from the cell at `path`: to its parent, its widest child, or the next cell of its row."""
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
    below = [one for one in rows[wanted] if cell.x <= one.x < cell.x + cell.width]
    return max(below, key=lambda one: one.node.samples).node.path if below else path


def row_of(rows: Rows, path: Path) -> int:
    """The row in which the cell of `path` is, -1 where it has none."""
    return _index(rows, path)[0]


def _index(rows: Rows, path: Path) -> tuple[int, int]:
    for number, row in enumerate(rows):
        for index, cell in enumerate(row):
            if cell.node.path == path:
                return number, index
    return -1, -1


@dataclass(frozen=True)
class _Scale:
    """So many samples on so many columns."""

    samples: int
    columns: int

    def column(self, samples: int) -> int:
        """The column that so many samples reach to, to the nearest one."""
        return (2 * samples * self.columns + self.samples) // (2 * self.samples)


def _place(nodes: Sequence[Node], start: int, end: int, scale: _Scale, rows: Rows, depth: int = 0) -> None:  # noqa: PLR0917
    """Cells between two counts of samples. Both ends of each are rounded from the left edge: no two cells meet."""
    for node in in_order(nodes):
        beyond = min(end, start + node.samples)
        x = scale.column(start)
        width = scale.column(beyond) - x
        if width > 0:
            while len(rows) <= depth:
                rows.append([])
            rows[depth].append(Cell(node, x, width, node.samples / scale.samples))
            _place(node.children, start, beyond, scale, rows, depth + 1)
        start = beyond
