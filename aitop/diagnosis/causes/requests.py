"""Waiting for requests: a run that only infers and stands where others hand it something is at leisure, not held up."""

from __future__ import annotations

from aitop.diagnosis.evidence import HANDED_WAITS, NO_LINES, Lines, main_lines
from aitop.model.ledger import Entry
from aitop.model.snapshot import Snapshot


def takes_request(entry: Entry) -> bool:
    """Whether an entry of inference outside of every phase waits for the next request, or rests.

    Who asks a service through a client library waits for data; who waits on a bare socket is given requests.
    """
    if entry.phase != "host" or entry.work == "log":
        return False
    waits = entry.activity in HANDED_WAITS or entry.activity == "sleep"
    return waits or (entry.activity == "wait-network" and entry.work is None)


def leisure(snapshot: Snapshot) -> Lines:
    """Where a run that only infers waits for requests, or rests; nothing in training."""
    return main_lines(snapshot, takes_request) if snapshot.kind == "inference" else NO_LINES
