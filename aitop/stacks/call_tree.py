"""Makes one call tree of stacks, bounded in depth and width. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from aitop.model.snapshot import CallNode
from aitop.model.stacks import Frame

MOST_DEPTH = 60
MOST_CHILDREN = 12
LEAST_SHARE = 0.005


@dataclass(slots=True)
class _Node:
    """A function below its caller, with the samples of each of its lines."""

    frame: Frame
    samples: int = 0
    lines: Counter[int] = field(default_factory=Counter)
    children: dict[tuple[str, str], _Node] = field(default_factory=dict)


def call_tree(stacks: Iterable[tuple[Sequence[Frame], int]]) -> CallNode | None:
    """The tree of stacks with their counts, each with the outermost frame first; None without a frame.

    A node is a function in a file, whatever its line; `line` is its most sampled one. Stacks with different
    outermost functions get one node above them, without a file.
    """
    root = _Node(Frame("all", "", 0))
    for frames, count in stacks:
        node = root
        node.samples += count
        for frame in frames[:MOST_DEPTH]:
            place = frame.function, frame.file
            child = node.children.get(place)
            if child is None:
                child = node.children[place] = _Node(frame)
            child.samples += count
            child.lines[frame.line] += count
            node = child
    if not root.children:
        return None
    top = next(iter(root.children.values())) if len(root.children) == 1 else root
    return _frozen(top, max(1.0, LEAST_SHARE * root.samples))


def _frozen(node: _Node, least: float) -> CallNode:
    heaviest = sorted(node.children.values(), key=lambda child: (-child.samples, child.frame.function))
    return CallNode(
        function=node.frame.function,
        file=node.frame.file,
        line=node.lines.most_common(1)[0][0] if node.lines else 0,
        samples=node.samples,
        user=node.frame.user,
        children=tuple(_frozen(child, least) for child in heaviest[:MOST_CHILDREN] if child.samples >= least),
    )


def merged(nodes: Iterable[CallNode]) -> list[CallNode]:
    """Merge nodes of the same function, and their children; heaviest first. The line is that of the heaviest."""
    groups: dict[tuple[str, str], list[CallNode]] = {}
    for node in nodes:
        groups.setdefault((node.function, node.file), []).append(node)
    return sorted((_one(group) for group in groups.values()), key=lambda node: -node.samples)


def _one(group: list[CallNode]) -> CallNode:
    if len(group) == 1:
        return group[0]
    children = tuple(merged(child for node in group for child in node.children))
    heaviest = max(group, key=lambda node: node.samples)
    return msgspec.structs.replace(heaviest, samples=sum(node.samples for node in group), children=children)
