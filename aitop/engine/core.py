"""Events in, Snapshots out: the part that live and replayed runs share."""

from __future__ import annotations

from itertools import islice

import msgspec

from aitop.diagnosis.judge import Judge
from aitop.diagnosis.ledger import ledgers
from aitop.engine.history import LONG_WINDOW_SECONDS, History
from aitop.engine.snapshot.aggregate import aggregate, lead_pid
from aitop.engine.snapshot.serving import front_processes
from aitop.engine.snapshot.standstill import wants_look
from aitop.model.event import Event
from aitop.model.snapshot import Snapshot, Target, Tick

# Enough of the newest requests to tell which processes they reach first.
SOME_REQUESTS = 100


class Engine:
    """Turns events, given in order, into diagnosed Snapshots, one per Tick. `history` is what came before."""

    def __init__(self, target: Target, history: History | None = None) -> None:
        self._history = history or History(target)
        self._judge = Judge()

    def handle(self, event: Event, *, judged: bool = True) -> Snapshot | None:
        """Take one event. Returns a Snapshot for a Tick, unless `judged` is False, and None for all other events."""
        self._history.add(event)
        if isinstance(event, Tick):
            _keep_past(self._history, event.time)
        if not isinstance(event, Tick) or not judged:
            return None
        snapshot = aggregate(self._history, event)
        snapshot = msgspec.structs.replace(snapshot, ledgers=ledgers(snapshot))
        return msgspec.structs.replace(snapshot, diagnosis=self._judge.judge(snapshot))

    def wants_look(self, now: float) -> bool:
        """Whether nothing in the job has moved for so long that all stacks ought to be looked at."""
        return wants_look(self._history, now)


def _keep_past(history: History, now: float) -> None:
    """Close the seconds that are over, and choose the processes that the past is about.

    These are, in this order: the lead process if it trains; the processes that take a server's requests; the lead
    process with steps of another kind; a server that counts requests in its `/metrics`. A choice stays for as long as
    its processes make units, since what different processes did cannot be compared. Only training, and requests that
    the hook measures, replace another choice earlier.
    """
    past = history.past
    past.close(now)
    stays = bool(past.pids) and now - past.newest < LONG_WINDOW_SECONDS
    lead = lead_pid(history, now)
    steps = history.hooks[lead].steps if lead is not None else None
    trains = steps is not None and bool(steps) and steps[-1].kind == "train"
    if lead is not None and steps and trains and not (stays and past.trains):
        past.begin((lead,), "step", trains=True, now=now)
    elif stays and past.trains:
        return
    elif served := {
        pid: list(islice(reversed(hook.served.requests), SOME_REQUESTS))
        for pid, hook in history.hooks.items()
        if hook.served.requests
    }:
        pids = front_processes(history, served)
        if pids and (past.unit != "request" or past.metrics or not stays):
            past.begin(pids, "request", now=now)
        elif set(pids) & set(past.pids):
            past.pids = pids
    elif lead is not None and steps and not stays:
        past.begin((lead,), "step", now=now)
    elif history.servers and not stays:
        past.begin((min(history.servers),), "request", metrics=True, now=now)
