"""Events in, Snapshots out: the part that live and replayed runs share."""

from __future__ import annotations

from itertools import islice

import msgspec

from aitop.diagnosis.judge import Judge
from aitop.diagnosis.ledger import ledgers
from aitop.engine.history import LONG_WINDOW_SECONDS, History
from aitop.engine.past import PastOf
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

    def wants_look(self, now: float, looked: float) -> bool:
        """Whether nothing has moved for so long that all stacks ought to be looked at, after the look at `looked`."""
        return wants_look(self._history, now, looked)


def _keep_past(history: History, now: float) -> None:
    """Close the seconds that are over, and choose what the past is of.

    A choice stays through any pause, since what different processes did cannot be compared. Another one replaces it
    that tells more of the job, or that makes units LONG_WINDOW_SECONDS after its last one.
    """
    past = history.past
    past.close(now)
    of, newest = _past_of(history, now)
    if of[1:] == past.of[1:] and set(of.pids) & set(past.of.pids):
        past.of = of
    elif of.pids and (not past.of.pids or of.order > past.of.order or newest - past.newest >= LONG_WINDOW_SECONDS):
        past.begin(of, now)


def _past_of(history: History, now: float) -> tuple[PastOf, float]:
    """What a past that begins now would be of, and when such units were made last.

    These are, in this order: the lead process if it trains; the processes that take a server's requests; the lead
    process with steps of another kind; a server that counts requests in its `/metrics`.
    """
    lead, of_steps = lead_pid(history, now), None
    if lead is not None and (steps := list(islice(reversed(history.hooks[lead].steps), 2))):
        # Ranks end a step one after the other: one step after a pause does not tell that the others make none.
        of_steps = PastOf((lead,), trains=steps[0].kind == "train"), steps[-1].end
        if of_steps[0].trains:
            return of_steps
    if served := {
        pid: list(islice(reversed(hook.served.requests), SOME_REQUESTS))
        for pid, hook in history.hooks.items()
        if hook.served.requests
    }:
        newest = max(requests[0].end for requests in served.values())
        return PastOf(front_processes(history, served), "request"), newest
    if of_steps is None and history.servers:
        pid = min(history.servers)
        return PastOf((pid,), "request", metrics=True), history.servers[pid][-1].time
    return of_steps or (PastOf(), now)
