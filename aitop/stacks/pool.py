"""Threads that take the same work in turns, counted as the one worker that they are together. Pure.

A server may run its model in any thread of a pool, or start a thread for each connection. Each of them rests most of
the time, while the server never does: only together do they say where its time goes. Of each moment one thing counts:
what a thread does, else what the request of one waits for, else that all rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from aitop.model.ledger import Activity, Handler
from aitop.model.snapshot import ThreadPool
from aitop.stacks.libraries import Phase
from aitop.stacks.reading import Seen
from aitop.stacks.short_threads import SHORT_THREADS, ThreadKey

RUNS: frozenset[Activity] = frozenset({"python", "native", "compile", "collect", "spawn", "wait-disk", "wait-device"})
# Waits for something that another thread does, or for the next piece of work; and those of which that is not known:
# the thread may only wait for a core.
_HANDED: frozenset[Activity] = frozenset({"wait-queue", "wait-lock", "wait-child", "wait-network"})
_UNKNOWN: Activity = "wait"
# Where Python starts a thread.
_STARTS = "/threading.py"
# From so many samples in a look on, threads of one name are more than one.
SEVERAL = 1.5
Key = TypeVar("Key")


class Place(NamedTuple):
    """Where threads are seen: the phase, what they do there for most of the time, and what called it for a request.

    A line on which threads mostly wait runs a little as well: that is what waiting costs, and no work.
    """

    phase: Phase
    activity: Activity
    work: str | None
    handler: Handler | None
    samples: float


def alike(threads: Mapping[ThreadKey, Mapping[Seen, int]], lead: ThreadKey | None) -> tuple[ThreadKey, ...]:
    """The threads that were started with the same function as `lead`, itself in front; only `lead` where that is the
    main thread or stands for no other one.
    """
    if lead is None:
        return ()
    start = None if lead.main else _started_with(threads[lead])
    if start is None:
        return (lead,)
    peers = [key for key, stacks in threads.items() if not key.main and key != lead and _started_with(stacks) == start]
    return (lead, *peers)


def _started_with(stacks: Mapping[Seen, int]) -> tuple[str, str] | None:
    """The file and name of the function that a thread was started with, as most of its stacks say."""
    starts: Counter[tuple[str, str]] = Counter()
    for seen, count in stacks.items():
        first = next((frame for frame in seen.frames if not frame.file.endswith(_STARTS)), None)
        if first is not None:
            starts[first.file, first.function] += count
    return max(starts, key=lambda start: starts[start], default=None)


def together(places: Mapping[Key, Place], moments: float) -> dict[Key, float]:
    """How many samples of each place count, so that all are of one worker in so many `moments`."""
    counts: dict[Key, float] = {}
    room = moments
    for rank in range(3):
        chosen = {key: place.samples for key, place in places.items() if _rank(place) == rank}
        mass = sum(chosen.values())
        factor = min(1.0, room / mass) if mass > 0.0 else 0.0
        counts |= {key: factor * samples for key, samples in chosen.items()}
        room = max(0.0, room - mass)
    return counts


def pool(threads: Iterable[ThreadKey], places: Iterable[Place], moments: float) -> ThreadPool:
    """The pool of these threads, which were seen at these places in so many moments."""
    there = working = standing = 0.0
    for place in places:
        there += place.samples
        working += place.samples if _rank(place) == 0 else 0.0
        standing += place.samples if stands_in_line(place) else 0.0
    names = tuple(key.thread for key in threads)
    return ThreadPool(threads=names, there=there / moments, working=working / moments, standing=standing / moments)


def threads_at_once(keys: Sequence[ThreadKey], threads: Mapping[ThreadKey, Mapping[Seen, int]]) -> float | None:
    """How many of these threads are there in a look at the process; None where it is one, or where nothing tells.

    Threads of one name have one key together, and so have those that end soon. The main thread is in every look.
    """
    looks = sum(sum(stacks.values()) for key, stacks in threads.items() if key.main)
    if not looks or not keys or keys[0].main:
        return None
    there = sum(sum(threads[key].values()) for key in keys) / looks
    return there if len(keys) > 1 or keys[0].thread == SHORT_THREADS or there >= SEVERAL else None


def _rank(place: Place) -> int:
    """0 where a thread works, 1 where something that it has begun waits, 2 where it rests."""
    begun = place.handler is not None or place.phase != "outside"
    if place.activity in RUNS or (place.activity == _UNKNOWN and begun):
        return 0
    rests = place.activity in _HANDED or place.activity in ("sleep", _UNKNOWN)
    return 2 if rests and not begun else 1


def stands_in_line(place: Place) -> bool:
    """Whether a thread that has a request to itself waits there for what another thread does."""
    return place.activity in _HANDED and place.handler not in (None, "event-loop") and place.work is None
