"""How shares of code differ from those at the mark. Pure: a view in, pieces of lines out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from aitop.model.snapshot import Snapshot
from aitop.ui.call_tree import Node, Path, forest
from aitop.ui.changes import share_change
from aitop.ui.hot_lines import HotKey, HotRow, hot_rows
from aitop.ui.line import Line
from aitop.ui.view import View
from aitop.ui.who import Who


def line_change(view: View, row: HotRow, pids: frozenset[int] | None, who: Who) -> Line:
    """The change of a hot line's share since the mark; empty without a mark."""
    if view.mark is None:
        return Line()
    then = _lines_at(view.mark, pids, who)
    return share_change(view, row.share, None if then is None else then.get(row.key, 0.0))


def node_change(view: View, node: Node) -> Line:
    """The change of the share of a node of the call tree since the mark; empty without a mark."""
    if view.mark is None:
        return Line()
    then = _nodes_at(view.mark, view.pids(), view.who)
    return share_change(view, node.share, None if then is None else then.get(node.path, 0.0))


@lru_cache(maxsize=4)
def _lines_at(mark: Snapshot, pids: frozenset[int] | None, who: Who) -> Mapping[HotKey, float] | None:
    """Shares at the mark by line; what was not seen then had none. None where no stacks were known."""
    if mark.stacks is None or not mark.stacks.samples:
        return None
    return {row.key: row.share for row in hot_rows(mark.stacks, pids, who)}


@lru_cache(maxsize=2)
def _nodes_at(mark: Snapshot, pids: frozenset[int] | None, who: Who) -> Mapping[Path, float] | None:
    if mark.stacks is None or not mark.stacks.samples:
        return None
    found: dict[Path, float] = {}

    def note(nodes: Iterable[Node]) -> None:
        for node in nodes:
            found[node.path] = node.share
            note(node.children)

    note(forest(mark.stacks, pids, who))
    return found
