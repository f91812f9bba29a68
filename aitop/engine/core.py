"""Events in, Snapshots out: the part that live and replayed runs share."""

from __future__ import annotations

import msgspec

from aitop.diagnosis.judge import Judge
from aitop.diagnosis.ledger import ledgers
from aitop.engine.history import History
from aitop.engine.snapshot.aggregate import aggregate
from aitop.engine.snapshot.past import keep_past
from aitop.engine.snapshot.standstill import wants_look
from aitop.model.event import Event
from aitop.model.snapshot import Snapshot, Target, Tick


class Engine:
    """Feed it every event in order; each Tick gives one Snapshot, diagnosed. `history` is what came before."""

    def __init__(self, target: Target, history: History | None = None) -> None:
        self._history = history or History(target)
        self._judge = Judge()

    def handle(self, event: Event, *, judged: bool = True) -> Snapshot | None:
        """Take one event; a Snapshot comes back for a Tick that is to be judged, None for everything else."""
        self._history.add(event)
        if isinstance(event, Tick):
            keep_past(self._history, event.time)
        if not isinstance(event, Tick) or not judged:
            return None
        snapshot = aggregate(self._history, event)
        snapshot = msgspec.structs.replace(snapshot, ledgers=ledgers(snapshot))
        return msgspec.structs.replace(snapshot, diagnosis=self._judge.judge(snapshot))

    def wants_look(self, now: float) -> bool:
        """Whether nothing in the job has moved for so long that all stacks ought to be looked at."""
        return wants_look(self._history, now)
