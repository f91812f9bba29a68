"""Which Python processes of the target's tree to sample in the next window."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aitop.sources import procfs
from aitop.sources.host.tree import Member, ProcessProbe, ProcessTree, Stepping, places_of
from aitop.sources.source import SourceError

Working = Callable[[], Sequence[int]]
MANY = 4
FEW = 2
BUSY = 0.1


class Chooser:
    """Picks a few processes of the target's trees for each window, so that the cost of a window is bounded.

    `tops` are the pids at the top of the trees. `working` returns the pids that do the work, the one shown first in
    front; `stepping` returns those that make steps.
    """

    def __init__(self, tops: Sequence[int], working: Working = tuple, stepping: Stepping = tuple) -> None:
        self._tops = tuple(tops)
        self._tree = ProcessTree((pid, None) for pid in tops)
        self._working = working
        self._probe = ProcessProbe(stepping=stepping)
        self._turn = 0
        self._used: dict[tuple[int, int], tuple[float, float]] = {}
        self._cores: dict[int, float] = {}

    def next(self, few: bool) -> list[int]:
        """Pids for the next window: up to FEW or MANY processes that do the work, and as many others.

        The first one that does the work is always picked, the others take turns. Until it is known who does the work,
        the ranks stand for it. Raises SourceError if the target is gone or nothing in its tree is Python.
        """
        roles = self._by_role()
        usual = roles.get("rank") or roles.get("other") or roles.get("launcher") or roles.get("helper") or []
        everyone = {pid for pids in roles.values() for pid in pids}
        first = [pid for pid in self._working() if pid in everyone] or usual
        # A process that waits now may work later, and its stacks show what the others wait for.
        feeding = [pid for role in ("rank", "loader-worker", "other") for pid in roles.get(role, [])]
        # A server that hands its requests to others may have much to do with each of them itself.
        feeding += [pid for pid in roles.get("launcher", []) if self._cores.get(pid, 0.0) > BUSY]
        feeding = [pid for pid in feeding if pid not in first]
        self._turn += 1
        most = FEW if few else MANY
        return first[:1] + _some(first[1:], most - 1, self._turn) + _some(feeding, most, self._turn)

    def everyone(self) -> list[int]:
        """All Python processes, those that train first, then their loader workers. Raises as `next` does."""
        roles = self._by_role()
        return [pid for role in ("rank", "loader-worker", "launcher", "helper", "other") for pid in roles.get(role, [])]

    def _by_role(self) -> dict[str, list[int]]:
        members = [member for member in self._tree.update() if not member.stat.ended]
        if not members:
            top = self._tops[0]
            if procfs.gone(top) or procfs.stat(top) is not None:
                raise SourceError("absent", f"process {top} has ended")
            raise SourceError("failed", f"/proc/{top} cannot be read just now", transient=True)
        self._measure(members)
        python = {member.stat.pid for member in members if member.python}
        if not python:
            raise SourceError("absent", f"process {self._tops[0]} is no Python process and has none below it")
        roles: dict[str, list[int]] = {}
        for pid, place in places_of(members, self._probe).items():
            if pid in python:
                roles.setdefault(place.role, []).append(pid)
        return roles

    def _measure(self, members: Sequence[Member]) -> None:
        """Measure how many cores each process has used since the last call."""
        now, before = time.monotonic(), self._used
        self._used = {
            member.key: (now, (member.stat.user + member.stat.system) / procfs.TICKS_PER_SECOND) for member in members
        }
        self._cores = {
            key[0]: (used - before[key][1]) / (now - before[key][0])
            for key, (_, used) in self._used.items()
            if key in before and now > before[key][0]
        }


def _some(pids: Sequence[int], most: int, turn: int) -> list[int]:
    """At most `most` of the pids, different ones at every turn."""
    if len(pids) <= most:
        return list(pids)
    start = turn * most % len(pids)
    return [pids[(start + offset) % len(pids)] for offset in range(most)]
