"""Events in, Snapshots out: the part that live and replayed runs share."""

from __future__ import annotations

import msgspec

from aitop.diagnosis.judge import Judge, Memory
from aitop.diagnosis.ledger import ledgers
from aitop.engine.aggregate import aggregate
from aitop.engine.history import History
from aitop.engine.standstill import wants_look
from aitop.model.event import Event
from aitop.model.snapshot import Snapshot, Target, Tick


class Engine:
    """Feed it every event in order; each Tick gives one Snapshot, diagnosed. `history` is what came before."""

    def __init__(self, target: Target, history: History | None = None) -> None:
        self._history = history or History(target)
        self._judge = Judge()

    def handle(self, event: Event) -> Snapshot | None:
        """Take one event; a Snapshot comes back for a Tick, None for everything else."""
        self._history.add(event)
        if not isinstance(event, Tick):
            return None
        snapshot = aggregate(self._history, event)
        snapshot = msgspec.structs.replace(snapshot, ledgers=ledgers(snapshot))
        return msgspec.structs.replace(snapshot, diagnosis=self._judge.judge(snapshot))

    def wants_look(self, now: float) -> bool:
        """Whether nothing in the job has moved for so long that all stacks ought to be looked at."""
        return wants_look(self._history, now)

    def note(self, event: Event) -> None:
        """Take one event without making a Snapshot, even of a Tick; what the judge would remember is lost by it."""
        self._history.add(event)

    def memory(self) -> Memory:
        """What the judge remembers after the last Tick: see `recall`."""
        return self._judge.memory()

    def recall(self, memory: Memory) -> None:
        """Go on as if every Tick until now had been handled, and the judge had remembered this of them."""
        self._judge.recall(memory)
