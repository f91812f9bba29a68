"""Call trees of processes and threads put together by who runs them, with runs of library frames as one node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aitop.model.host import Role
from aitop.model.snapshot import CallNode, Stacks
from aitop.stacks.origin import Origin, origin_of
from aitop.ui.who import EVERYBODY, Part, Who, part_of

MOST_DEPTH = 60
WORKS = 0.1

Step = tuple[str, str]
Path = tuple[Step, ...]
"""Where a node is in its tree: function and file of each node from the top to it."""


@dataclass(frozen=True, eq=False)
class Node:
    """A function below its caller, or (without a `file`) those who run what is below it.

    A straight run of library functions is one node: `function`, `file` and `line` are of its first, `last` is the name
    of its last one. `share` is of the samples of those who run it. `own` says that user code is in it or below.
    Those who run it have the `part` they play, the `pid` of one of them and, if it is one thread, its share of the GIL.
    """

    path: Path
    function: str
    file: str
    line: int
    samples: int
    share: float
    origin: Origin
    own: bool
    children: tuple[Node, ...] = ()
    frames: int = 1
    last: str = ""
    part: Part | None = None
    gil: float | None = None
    pid: int = 0

    @property
    def name(self) -> str:
        """What to call it: one function, or the first and the last one of a run."""
        return f"{self.function} › {self.last}" if self.last and self.last != self.function else self.function


@dataclass(frozen=True)
class _Tree:
    part: Part
    pid: int
    thread: str
    role: Role
    tree: CallNode
    gil: float | None


def forest(stacks: Stacks, pids: frozenset[int] | None = None, who: Who = EVERYBODY) -> list[Node]:
    """A node for each kind of who runs code, the main threads first; `pids` and `who` narrow it.

    Threads beside those that step show only where they work or where they are asked for.
    """
    shares = {(one.pid, one.thread): one for one in stacks.threads}
    found: dict[tuple[int, str], list[_Tree]] = {}
    for one in _trees(stacks):
        share = shares.get((one.pid, one.thread))
        if (pids is not None and one.pid not in pids) or not who.wants(one.pid, one.thread, one.part):
            continue
        idle = share is not None and (share.active or 0.0) < WORKS
        if who == EVERYBODY and one.part == "other" and idle:
            continue
        found.setdefault(_group(one, who), []).append(one)
    return [_headed(heading, trees) for (_, heading), trees in sorted(found.items(), key=lambda item: item[0])]


def merged(nodes: Iterable[CallNode]) -> list[CallNode]:
    """Nodes of the same function put together, children too, heaviest first; the line is the heaviest one's."""
    groups: dict[Step, list[CallNode]] = {}
    for node in nodes:
        groups.setdefault((node.function, node.file), []).append(node)
    return sorted((_one(group) for group in groups.values()), key=lambda node: -node.samples)


def find(nodes: Sequence[Node], path: Path) -> Node | None:
    """The node at `path`; where that is gone, the one furthest down the way to it."""
    found: Node | None = None
    while True:
        below = next((node for node in nodes if node.path == path[: len(node.path)]), None)
        if below is None:
            return found
        found, nodes = below, below.children


def _trees(stacks: Stacks) -> Iterable[_Tree]:
    gil = {(one.pid, one.thread): one.gil for one in stacks.threads}
    for process in stacks.processes:
        if process.tree is not None:
            key = process.pid, process.thread
            yield _Tree(part_of(process.role, True), *key, process.role, process.tree, gil.get(key))
    for tree in stacks.trees:
        key = tree.pid, tree.thread
        yield _Tree(part_of(tree.role, False), *key, tree.role, tree.tree, gil.get(key))


def _group(one: _Tree, who: Who) -> tuple[int, str]:
    """The order and the heading of whatever the tree is shown under."""
    order = ("main", "worker", "other").index(one.part)
    if who.pid is not None:
        return order, f"{one.pid} {one.thread}"
    if one.part == "other":
        return order, one.thread if one.thread != "MainThread" else one.role
    return order, one.role


def _headed(heading: str, trees: list[_Tree]) -> Node:
    samples = sum(one.tree.samples for one in trees)
    name = heading if len(trees) == 1 else f"{heading} ×{len(trees)}"
    path: Path = ((heading, ""),)
    children = [_node(root, path, max(1, samples)) for root in merged(_roots(one.tree for one in trees))]
    gil = trees[0].gil if len(trees) == 1 else None
    own = any(child.own for child in children)
    return Node(
        path, name, "", 0, samples, 1.0, "user", own, tuple(children), part=trees[0].part, gil=gil,
        pid=trees[0].pid,
    )  # fmt: skip


def _roots(trees: Iterable[CallNode]) -> Iterable[CallNode]:
    """The outermost frames: a node without a file stands only for several of them."""
    for tree in trees:
        yield from (tree,) if tree.file else tree.children


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


def _node(first: CallNode, above: Path, total: int) -> Node:
    """The node and all below it. What it has in samples beyond the next one of a run, the run has spent itself."""
    last, frames, origin = first, 1, origin_of(first.file, first.user)
    while not last.user and len(last.children) == 1 and not last.children[0].user and frames < MOST_DEPTH:
        last, frames = last.children[0], frames + 1
    path = (*above, (first.function, first.file))
    deep = len(path) > MOST_DEPTH
    children = () if deep else tuple(_node(child, path, total) for child in last.children)
    return Node(
        path, first.function, first.file, first.line, first.samples, first.samples / total, origin,
        first.user or any(child.own for child in children), children, frames, last.function if frames > 1 else "",
    )  # fmt: skip
