"""Finds the role of each process in a tree: launcher, rank, loader worker, helper, other.

Told from command lines, fork or exec, the launcher's environment variables and, where these leave it open, from
what a process has inside (threads of autograd or a process group, an open GPU) or was seen to do (steps on its stacks).
Limits: ranks started by `torch.multiprocessing.spawn` or by fork set their number only at run time, where nobody
outside can see it, so they are numbered in the order of their start; until such a rank has a process group, a GPU or
loader workers of its own, or was seen to step, it looks like a loader worker, unless a rank beside it is already known.
Before torch named its loader processes, a user's own multiprocessing workers look like those of a DataLoader; they feed
the rank all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aitop.model.host import Role
from aitop.sources.host.command_lines import NO_NUMBERS, RankNumbers, invocation, kind_of, spawned

if TYPE_CHECKING:
    from aitop.sources.host.tree import ProcessProbe

WORKER_NAME = "pt_data_worker"


class Facts(NamedTuple):
    """The facts about one process as seen from outside. `forked`: it runs its parent's program, no exec since."""

    pid: int
    ppid: int
    start: int
    comm: str
    argv: tuple[str, ...]
    python: bool
    forked: bool
    numbers: RankNumbers = NO_NUMBERS


class Place(NamedTuple):
    """The part a process plays, and the rank it is or feeds."""

    role: Role
    numbers: RankNumbers = NO_NUMBERS


class _Node:
    """One process while the tree is being sorted. `boss` is the nearest Python or launcher above it."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.kind = kind_of(facts.argv, facts.python)
        self.worker = facts.comm.startswith(WORKER_NAME)
        self.server = False
        # Whether it is a rank only because it was seen to step: it has no number, and its siblings may be anything.
        self.steps = False
        self.parent: _Node | None = None
        self.boss: _Node | None = None
        self.children: list[_Node] = []
        self.role: Role = "other"
        self.numbers = facts.numbers

    @property
    def multiprocessing(self) -> bool:
        """Whether Python's multiprocessing started it (fork, spawn or fork server)."""
        return self.facts.forked or spawned(self.facts.argv)


def assign(processes: Sequence[Facts], probe: ProcessProbe) -> dict[int, Place]:
    """The place of every process. Processes whose parent is not among them are the tops of trees."""
    nodes = _linked(processes)
    for node in nodes:
        _first_guess(node, probe)
    for node in nodes:
        _join_siblings(node)
    # From the leaves up: what has ranks below it, and is not itself one of them, only launched them.
    for node in reversed(nodes):
        _demote_launcher(node, probe)
    _number(nodes)
    for node in nodes:
        if node.role == "loader-worker" and node.boss is not None:
            node.numbers = node.boss.numbers
    return {
        node.facts.pid: Place(node.role, node.numbers if node.role in ("rank", "loader-worker") else NO_NUMBERS)
        for node in nodes
    }


def _linked(processes: Iterable[Facts]) -> list[_Node]:
    """Nodes with parents, children and bosses set, parents before children."""
    by_pid = {facts.pid: _Node(facts) for facts in processes}
    for node in by_pid.values():
        parent = by_pid.get(node.facts.ppid)
        # A "parent" that is younger than its child is another process, which has got the parent's pid.
        if parent is not None and parent is not node and parent.facts.start <= node.facts.start:
            node.parent = parent
            parent.children.append(node)
    ordered: list[_Node] = []
    waiting = [node for node in by_pid.values() if node.parent is None]
    while waiting:
        node = waiting.pop(0)
        ordered.append(node)
        _place_below(node)
        waiting.extend(sorted(node.children, key=lambda child: (child.facts.start, child.facts.pid)))
    return ordered


def _place_below(node: _Node) -> None:
    """Set the boss, and what a forked child inherits from a helper or a fork server above it."""
    parent = node.parent
    server = node.kind == "helper" and invocation(node.facts.argv).what.startswith("from multiprocessing.forkserver")
    if parent is None:
        node.server = server
        return
    node.boss = parent if parent.kind in ("python", "launcher") else parent.boss
    if parent.server and node.facts.forked:
        node.kind = "python"
    elif parent.kind == "helper" and node.facts.forked:
        node.kind = "helper"
    node.server = server and node.kind == "helper"


def _first_guess(node: _Node, probe: ProcessProbe) -> None:
    boss = node.boss
    if node.kind == "helper":
        node.role = "helper"
    elif node.kind in ("launcher", "foreign"):
        node.role = "launcher" if boss is None and _has_python_below(node) else "other"
    elif node.worker:
        node.role = "loader-worker"
    elif node.parent is None and node.facts.forked:
        node.role = "other"  # its parent died and can no longer tell
    elif boss is None or boss.kind == "launcher":
        node.role = "rank"
    elif boss.role == "loader-worker":
        node.role = "other"
    else:
        node.role = _below_python(node, boss, probe)


def _below_python(node: _Node, boss: _Node, probe: ProcessProbe) -> Role:
    """The role of a Python whose boss is a Python that may train itself."""
    if node.facts.numbers.rank is not None and node.facts.numbers != boss.facts.numbers:
        return "rank"
    if not node.multiprocessing:
        launched = probe.has_framework(node.facts.pid) and not probe.has_framework(boss.facts.pid)
        node.steps = not launched and probe.steps(node.facts.pid)
        return "rank" if launched or node.steps else "other"
    if any(child.worker for child in _started_by(node)) or probe.trains(node.facts.pid):
        return "rank"
    if probe.steps(node.facts.pid):
        node.steps = True
        return "rank"
    named_siblings = any(child.worker for child in _started_by(boss))
    return "other" if named_siblings else "loader-worker"


def _started_by(boss: _Node) -> list[_Node]:
    """Children of a process, and of its fork server."""
    return [child for node in boss.children for child in (node, *(node.children if node.server else ()))]


def _join_siblings(node: _Node) -> None:
    """Where one multiprocessing child of a parent trains, the others started the same way do too."""
    group = [child for child in _started_by(node) if child.multiprocessing and child.kind == "python"]
    if any(child.role == "rank" and not child.steps for child in group):
        for child in group:
            if child.role in ("loader-worker", "other") and not child.worker:
                child.role = "rank"


def _demote_launcher(node: _Node, probe: ProcessProbe) -> None:
    if node.role not in ("rank", "other") or node.kind == "helper":
        return
    below = [child for child in _descendants(node) if child.role == "rank"]
    if not below or (node.role == "rank" and probe.steps(node.facts.pid)):
        return
    if node.role == "other":
        node.role = "launcher"
        return
    numbers = {child.facts.numbers.local_rank for child in below}
    # A trainer that starts its own peers (they are 1, 2, …) is number 0 itself.
    peers = None not in numbers and 0 not in numbers and not any(child.multiprocessing for child in below)
    if peers and probe.has_framework(node.facts.pid):
        node.numbers = RankNumbers(0, 0, below[0].facts.numbers.world_size)
        return
    node.role = "launcher"


def _number(nodes: Sequence[_Node]) -> None:
    """Number the ranks, in the order of their start, where none of them has a number of its own."""
    ranks = [node for node in nodes if node.role == "rank" and not node.steps]
    nameless = [node for node in ranks if node.numbers.rank is None or _inherited(node)]
    if len(ranks) != len(nameless) or not ranks:
        return
    # A spawned rank that is watched alone may be any rank of its job.
    if len(ranks) == 1 and ranks[0].parent is None and spawned(ranks[0].facts.argv):
        return
    for number, node in enumerate(sorted(ranks, key=lambda node: (node.facts.start, node.facts.pid))):
        node.numbers = RankNumbers(number, number, None)


def _inherited(node: _Node) -> bool:
    """Whether a rank's numbers are only its launching parent's, and so cannot be its own."""
    boss = node.boss
    return boss is not None and boss.kind == "python" and node.multiprocessing and boss.numbers == node.numbers


def _has_python_below(node: _Node) -> bool:
    return any(child.kind == "python" for child in _descendants(node))


def _descendants(node: _Node) -> Iterable[_Node]:
    waiting = list(node.children)
    while waiting:
        child = waiting.pop()
        yield child
        waiting.extend(child.children)


def ranks_of(places: Mapping[int, Place]) -> tuple[int, ...]:
    """The pids of the ranks, in the order of their numbers."""
    numbers = {pid: place.numbers.rank for pid, place in places.items() if place.role == "rank"}
    return tuple(sorted(numbers, key=lambda pid: (numbers[pid] is None, numbers[pid] or 0, pid)))
