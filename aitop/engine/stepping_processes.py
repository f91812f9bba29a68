"""Which processes were seen to make steps: what tells sources whom to sample first and where the hook belongs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from aitop.stacks.work import Level


class SteppingProcesses:
    """Remembers who stepped, for as long as it lives: a trainer that evaluates or saves for a minute stays one.

    Where some update a model, whoever only runs one does not count: it feeds them. Any thread may ask.
    """

    def __init__(self) -> None:
        self._levels: dict[int, Level] = {}
        self._pids: frozenset[int] = frozenset()
        self._working: tuple[int, ...] = ()
        self._known = threading.Event()

    def update(self, levels: Mapping[int, Level], working: Sequence[int], alive: Collection[int]) -> None:
        """Take what was seen now: who steps, and who does the work, the first to show in front."""
        known = {pid: level for pid, level in self._levels.items() if pid in alive}
        for pid, level in levels.items():
            known[pid] = max(level, known.get(pid, 0))
        self._levels = known
        most = max(known.values(), default=0)
        self._pids = frozenset(pid for pid, level in known.items() if level == most and level)
        self._working = tuple(working)
        if self._pids:
            self._known.set()

    def pids(self) -> frozenset[int]:
        """The living processes that step."""
        return self._pids

    def working(self) -> tuple[int, ...]:
        """The processes that do the work by the last Snapshot, the first to show in front."""
        return self._working

    def wait_until_known(self, seconds: float) -> None:
        """Wait until any of them was seen to step."""
        self._known.wait(seconds)
