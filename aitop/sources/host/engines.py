"""Which processes of a tree run the loop of a serving engine, and which work for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aitop.sources.host.tree import Member


class Engines(NamedTuple):
    """The processes that run an engine's loop, in the order of their pids, and all above and below them.

    Those above only hand requests in, and those below compute what an engine tells them: what they do is measured in
    the engine.
    """

    pids: tuple[int, ...] = ()
    around: frozenset[int] = frozenset()


def engines_of(members: Sequence[Member], pids: tuple[int, ...]) -> Engines:
    """The engines among these processes, of which `pids` run a loop."""
    above = {member.stat.pid: member.ppid for member in members}
    around: set[int] = set()
    for pid in pids:
        around.update(_line(above, pid))
    around.update(pid for pid in above if not set(pids).isdisjoint(_line(above, pid)))
    return Engines(pids, frozenset(around.difference(pids)))


def _line(above: dict[int, int], pid: int) -> Iterable[int]:
    """The processes above this one."""
    seen = {pid}
    while (pid := above.get(pid, 0)) in above and pid not in seen:
        seen.add(pid)
        yield pid
