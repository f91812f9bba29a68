"""Call trees of several processes merged by role, and flattened into rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aitop.model.host import Role
from aitop.model.snapshot import CallNode, Stacks

LEAST_SHARE = 0.01
MOST_DEPTH = 40
_ORDER: dict[Role, int] = {"rank": 0, "loader-worker": 1}


@dataclass(frozen=True)
class TreeRow:
    """One row: a heading for a role, a frame, or a run of `skipped` library frames with nothing to decide in them."""

    depth: int = 0
    share: float | None = None
    function: str = ""
    file: str = ""
    line: int = 0
    user: bool = False
    skipped: int = 0
    heading: str = ""
    samples: int = 0


def forest(stacks: Stacks, pids: frozenset[int] | None = None) -> list[TreeRow]:
    """The trees of all roles, ranks first; `pids` narrows them to those processes."""
    by_role: dict[Role, list[CallNode]] = {}
    for process in stacks.processes:
        if process.tree is not None and (pids is None or process.pid in pids):
            by_role.setdefault(process.role, []).append(process.tree)
    rows: list[TreeRow] = []
    for role in sorted(by_role, key=lambda role: _ORDER.get(role, 2)):
        trees = by_role[role]
        total = sum(tree.samples for tree in trees)
        heading = role if len(trees) == 1 else f"{role} ×{len(trees)}"
        rows.append(TreeRow(heading=heading, samples=total))
        for root in merged(_roots(trees)):
            _flatten(root, max(1, total), 0, rows)
    return rows


def _roots(trees: Iterable[CallNode]) -> Iterable[CallNode]:
    """The outermost frames: a node without a file stands only for several of them."""
    for tree in trees:
        yield from (tree,) if tree.file else tree.children


def merged(nodes: Iterable[CallNode]) -> list[CallNode]:
    """Nodes of the same function put together, children too, heaviest first; the line is the heaviest one's."""
    groups: dict[tuple[str, str], list[CallNode]] = {}
    for node in nodes:
        groups.setdefault((node.function, node.file), []).append(node)
    return sorted((_one(group) for group in groups.values()), key=lambda node: -node.samples)


def _one(group: list[CallNode]) -> CallNode:
    if len(group) == 1:
        return group[0]
    first = max(group, key=lambda node: node.samples)
    children = merged(child for node in group for child in node.children)
    samples = sum(node.samples for node in group)
    return CallNode(
        function=first.function,
        file=first.file,
        line=first.line,
        samples=samples,
        user=first.user,
        children=tuple(children),
    )


def _flatten(node: CallNode, total: int, depth: int, rows: list[TreeRow]) -> None:
    """Append the node and what is below it; straight runs of library frames become one row."""
    share = node.samples / total
    if share < LEAST_SHARE or depth > MOST_DEPTH:
        return
    passed: list[CallNode] = []
    while not node.user and len(node.children) == 1 and node.children[0].samples == node.samples:
        passed.append(node)
        node = node.children[0]
    if len(passed) == 1:
        rows.append(_row(passed[0], depth, share))
    elif passed:
        rows.append(TreeRow(depth=depth, share=share, skipped=len(passed)))
    depth += bool(passed)
    rows.append(_row(node, depth, share))
    for child in node.children:
        _flatten(child, total, depth + 1, rows)


def _row(node: CallNode, depth: int, share: float) -> TreeRow:
    return TreeRow(depth, share, node.function, node.file, node.line, node.user, samples=node.samples)
