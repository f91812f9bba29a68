"""Call trees of the threads beside the one that steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from aitop.engine.call_tree import call_tree
from aitop.engine.stack_digest import Seen, ThreadKey
from aitop.engine.thread_shares import WAITING
from aitop.model.host import Role
from aitop.model.snapshot import ThreadTree

MOST_TREES = 48


def thread_trees(threads: Mapping[ThreadKey, Mapping[Seen, int]], roles: Mapping[int, Role]) -> tuple[ThreadTree, ...]:
    """The trees of these threads, those that do most besides waiting first, and MOST_TREES at most."""
    busiest = sorted(threads.items(), key=lambda thread: (-_working(thread[1]), thread[0].pid, thread[0].thread))
    found = []
    for key, stacks in busiest[:MOST_TREES]:
        tree = call_tree((seen.frames, count) for seen, count in stacks.items())
        if tree is not None:
            samples = sum(stacks.values())
            role = roles.get(key.pid, "other")
            found.append(ThreadTree(pid=key.pid, role=role, thread=key.thread, samples=samples, tree=tree))
    return tuple(found)


def _working(stacks: Mapping[Seen, int]) -> int:
    return sum(count for seen, count in stacks.items() if seen.activity not in WAITING)
