"""The rows of a call tree that are open now. Pure but for the order that it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aitop.ui.call_tree import Node, Path
from aitop.ui.matching import matches
from aitop.ui.settled import Settled

LEAST_SHARE = 0.01

State = Literal["open", "closed", "leaf"]


@dataclass(frozen=True, eq=False)
class TreeRow:
    """A node so deep in the tree, and whether what is below it shows."""

    node: Node
    depth: int
    state: State


def tree_rows(nodes: Sequence[Node], folds: Mapping[Path, bool], settled: Settled, wanted: str = "") -> list[TreeRow]:
    """Rows from the top. `folds` has what was opened (True) or closed; else libraries' insides are closed.

    `wanted` keeps only what it matches with what leads there, all of it open.
    """
    rows: list[TreeRow] = []
    for node in nodes:
        _add(node, 0, folds, settled, wanted, rows)
    return rows


def holds(node: Node, wanted: str) -> bool:
    """Whether the node, or one below it, matches."""
    return matches(wanted, node.name, node.file) or any(holds(child, wanted) for child in node.children)


def _add(  # noqa: PLR0917 - one walk's state
    node: Node, depth: int, folds: Mapping[Path, bool], settled: Settled, wanted: str, rows: list[TreeRow]
) -> None:
    if node.share < LEAST_SHARE or (wanted and not holds(node, wanted)):
        return
    below = [child for child in node.children if child.share >= LEAST_SHARE]
    state: State = "leaf"
    if below:
        state = "open" if wanted or folds.get(node.path, not node.file or node.own) else "closed"
    rows.append(TreeRow(node, depth, state))
    if state == "open":
        children = settled.order(node.path, below, lambda child: child.path, lambda child: child.samples)
        for child in children:
            _add(child, depth + 1, folds, settled, wanted, rows)
