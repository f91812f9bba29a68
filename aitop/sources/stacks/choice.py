"""Which Python processes of the target's tree to sample in the next window."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aitop.sources import procfs
from aitop.sources.host.tree import Member, ProcessProbe, ProcessTree, Stepping, places_of
from aitop.sources.source import SourceError

Working = Callable[[], Sequence[int]]
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
        self._others, self._busy, self._resting = _Turns(), _Turns(), _Turns()
        self._used: dict[tuple[int, int], tuple[float, float]] = {}
        self._cores: dict[int, float] = {}

    def next(self, most: int) -> list[int]:
        """At most so many pids for the next window: half of them do the work, half feed those.

        The first one that does the work is always picked, the others take turns. Those that feed it take turns, too,
        but those that use cores come before those that hardly do: as long as these want all places, one of the others
        is picked in every third window only. Until it is known who does the work, the ranks stand for it. Raises
        SourceError if the target is gone or nothing in its tree is Python.
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
        # An odd place goes to either in turn, and one that has too few leaves its places to the other.
        places = most - 1
        of_others = max((places + self._turn % 2) // 2, places - len(feeding))
        others = self._others.take(first[1:], of_others)
        places -= len(others)
        busy = [pid for pid in feeding if self._cores.get(pid, 0.0) > BUSY]
        resting = [pid for pid in feeding if pid not in busy]
        of_busy = self._busy.take(busy, places - (bool(resting) and self._turn % 3 == 0))
        return [*first[:1], *others, *of_busy, *self._resting.take(resting, places - len(of_busy))]

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


class _Turns:
    """Takes some of a list at a time, so that all have their turn."""

    def __init__(self) -> None:
        self._at = 0

    def take(self, pids: Sequence[int], most: int) -> list[int]:
        """At most `most` of the pids, those after the ones taken last."""
        taken = [pids[(self._at + offset) % len(pids)] for offset in range(min(most, len(pids)))]
        self._at += len(taken)
        return taken
