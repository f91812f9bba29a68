"""The call tree: its nodes, which rows are open, and how a row is drawn. Pure except for `Settled`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, TypeVar

import msgspec

from aitop.model.snapshot import CallNode, Snapshot, Stacks
from aitop.model.units import percent
from aitop.stacks.call_tree import MOST_DEPTH, merged
from aitop.stacks.origin import Origin, origin_of
from aitop.ui.panes.since_mark import NO_CHANGE, difference
from aitop.ui.state import EVERYBODY, PARTS, ROLE_NAMES, Part, View, Who, call_trees, matches, resting_threads
from aitop.ui.theme.palette import BRIGHT, CODE_KIND, DIM, FAINT, TEXT, Kind, process_kind
from aitop.ui.widgets.line import Line, shorten
from aitop.ui.words import one_line, place, share_text

TreePath = tuple[tuple[str, str], ...]
"""The (function, file) of each node from the top of a tree down to this one."""


class Node(msgspec.Struct, frozen=True, eq=False):
    """A function below its caller; or, without a `file`, the heading of a tree: the processes or threads that run it.

    A chain of library functions that each call only one other is one node of `frames` functions: `function`, `file` and
    `line` are those of the first, `last` is the name of the last. `share` (0..1) is of the samples of the whole tree.
    `own` says whether this or a node below is user code.
    A node of two compared runs has in `times` its milliseconds per unit before and after, and in `change` the colour
    for more, less or no difference. A heading has the `part` of its threads, the `pid` of one of them and, if it is a
    single thread, that thread's share of time with the GIL in `gil`.
    """

    path: TreePath
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
    times: tuple[float, float] | None = None
    change: Kind | None = None

    @property
    def name(self) -> str:
        """The function's name; for a chain of library functions, the first and the last name."""
        return f"{self.function} › {self.last}" if self.last and self.last != self.function else self.function


def forest(stacks: Stacks, pids: frozenset[int] | None = None, who: Who = EVERYBODY) -> list[Node]:
    """One tree per role or thread name, main threads first; `pids` and `who` narrow the selection.

    Other threads than the leading ones appear only if they are active (see `resting_threads`) or `who` selects them.
    """
    gil = {(thread.pid, thread.thread): thread.gil for thread in stacks.threads}
    resting = resting_threads(stacks) if who == EVERYBODY else frozenset()
    groups: dict[tuple[int, str], list[tuple[int, CallNode, float | None]]] = {}
    for part, tree in call_trees(stacks, pids):
        thread = tree.pid, tree.thread
        rests = part == "other" and thread in resting
        if tree.tree is None or rests or not who.wants(*thread, part):
            continue
        if who.pid is not None:
            heading = f"{tree.pid} {tree.thread}"
        elif part == "other" and tree.thread != "MainThread":
            heading = tree.thread
        else:
            heading = ROLE_NAMES.get(tree.role, tree.role)
        groups.setdefault((PARTS.index(part), heading), []).append((tree.pid, tree.tree, gil.get(thread)))
    return [_headed(PARTS[order], heading, groups[order, heading]) for order, heading in sorted(groups)]


def way_to(nodes: Sequence[Node], path: TreePath) -> list[Node]:
    """The nodes from the root to `path`, as far as they exist."""
    below = next((node for node in nodes if node.path == path[: len(node.path)]), None)
    return [] if below is None else [below, *way_to(below.children, path)]


def _headed(part: Part, heading: str, runners: list[tuple[int, CallNode, float | None]]) -> Node:
    """The node of a heading, with the merged call trees of its threads (`runners`: pid, tree, GIL share) below it."""
    trees = [tree for _, tree, _ in runners]
    samples = sum(tree.samples for tree in trees)
    roots = [root for tree in trees for root in ((tree,) if tree.file else tree.children)]
    path: TreePath = ((heading, ""),)
    children = tuple(_node(root, path, max(1, samples)) for root in merged(roots))
    name = heading if len(runners) == 1 else f"{heading} ×{len(runners)}"
    pid, _, gil = runners[0]
    return Node(
        path, name, "", 0, samples, 1.0, "user", any(child.own for child in children), children, part=part,
        gil=gil if len(runners) == 1 else None, pid=pid,
    )  # fmt: skip


def _node(first: CallNode, above: TreePath, total: int) -> Node:
    """The node for `first` with all below it; a chain of library frames becomes one node."""
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


Item = TypeVar("Item")
OVERTAKES = 1.25
MOST_LISTS = 2000


class Settled:
    """Keeps lists in a stable order: an item overtakes another only when it is OVERTAKES times as heavy."""

    def __init__(self) -> None:
        self._before: dict[Hashable, dict[Hashable, int]] = {}

    def order(
        self, name: Hashable, items: Sequence[Item], key: Callable[[Item], Hashable], weight: Callable[[Item], float]
    ) -> list[Item]:
        """The items of the list `name`, the heaviest first, except that small differences do not reorder them."""
        before = self._before.get(name, {})
        ordered = sorted((item for item in items if key(item) in before), key=lambda item: before[key(item)])
        for index in range(1, len(ordered)):
            place = index
            while place > 0 and weight(ordered[place]) > OVERTAKES * weight(ordered[place - 1]):
                ordered[place - 1], ordered[place] = ordered[place], ordered[place - 1]
                place -= 1
        for item in sorted((item for item in items if key(item) not in before), key=weight, reverse=True):
            place = next((at for at, other in enumerate(ordered) if weight(other) < weight(item)), len(ordered))
            ordered.insert(place, item)
        if len(self._before) > MOST_LISTS:
            self._before.clear()
        self._before[name] = {key(item): place for place, item in enumerate(ordered)}
        return ordered


LEAST_SHARE = 0.01
State = Literal["open", "closed", "leaf"]


class TreeRow(msgspec.Struct, frozen=True, eq=False):
    """A visible node of the tree, its depth, and whether its children are shown."""

    node: Node
    depth: int
    state: State


def tree_rows(
    nodes: Sequence[Node], folds: Mapping[TreePath, bool], settled: Settled, wanted: str = ""
) -> list[TreeRow]:
    """The visible rows. `folds` has the nodes that the user opened (True) or closed (False).

    By default, headings and nodes with user code in or below them are open, and other library code is closed. A filter
    `wanted` keeps only the nodes that match and their ancestors, all open. Nodes below LEAST_SHARE are left out.
    """
    rows: list[TreeRow] = []

    def add(node: Node, depth: int) -> None:
        if node.share < LEAST_SHARE or (wanted and not holds(node, wanted)):
            return
        below = [child for child in node.children if child.share >= LEAST_SHARE]
        state: State = "leaf"
        if below:
            state = "open" if wanted or folds.get(node.path, not node.file or node.own) else "closed"
        rows.append(TreeRow(node, depth, state))
        if state == "open":
            for child in settled.order(node.path, below, lambda child: child.path, lambda child: child.samples):
                add(child, depth + 1)

    for node in nodes:
        add(node, 0)
    return rows


def holds(node: Node, wanted: str) -> bool:
    """Whether the node or one of its descendants matches the filter."""
    return matches(wanted, node.name, node.file) or any(holds(child, wanted) for child in node.children)


def node_change(view: View, node: Node) -> Line:
    """The change of a node's share since the mark; empty without a mark."""
    if view.mark is None:
        return Line()
    then = _nodes_at(view.mark, view.pids(), view.who)
    return difference(node.share, None if then is None else then.get(node.path, 0.0), points=True)


@lru_cache(maxsize=2)
def _nodes_at(mark: Snapshot, pids: frozenset[int] | None, who: Who) -> Mapping[TreePath, float] | None:
    if mark.stacks is None or not mark.stacks.samples:
        return None
    shares: dict[TreePath, float] = {}
    waiting = forest(mark.stacks, pids, who)
    while waiting:
        node = waiting.pop()
        shares[node.path] = node.share
        waiting += node.children
    return shares


_PARTS = {"main": process_kind("rank"), "worker": process_kind("loader-worker"), "other": process_kind("other")}


def kind_of(node: Node) -> Kind:
    """The colour of a node: by its change between two runs, by what runs it (headings), or by whose code it is."""
    if node.change is not None:
        return node.change
    return _PARTS[node.part] if node.part is not None else CODE_KIND[node.origin]


_STATES = {"open": "▾ ", "closed": "▸ ", "leaf": "  "}


def tree_line(row: TreeRow, width: int, by: Line = NO_CHANGE) -> Line:
    """A row as a line: share, function and place, indented by depth; or the heading of a tree."""
    node = row.node
    kind = kind_of(node)
    if not node.file:
        line = Line(_STATES[row.state], FAINT).add("■ ", kind.ink).add(one_line(node.name), BRIGHT)
        line.add(f"  {node.samples} samples", DIM)
        return line if node.gil is None else line.add(f"  GIL {percent(node.gil)}", DIM)
    # Limit the indent to a third of the pane, so that a deep tree stays within it.
    indent = min(2 * row.depth, max(2, width // 3))
    line = Line(share_text(node.share), TEXT if node.own else DIM).join(by).add(" ").to(5 + by.width + indent)
    line.add(_STATES[row.state], FAINT).add("▌", kind.ink)
    at = place(node)
    room = width - line.width - len(at) - 2
    name = shorten(one_line(node.name), max(6, room))
    inks = (BRIGHT, TEXT) if node.origin == "user" else (DIM, FAINT)
    return line.add(name, inks[0]).add(f"  {at}", inks[1])
