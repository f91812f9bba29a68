"""Counts threads that take turns at the same work as one worker. Pure.

A server may run its model in any thread of a pool, or start a thread for each connection. Each of them is idle most of
the time even if the server never is, so only together do they show where its time goes. One thing counts at each
moment: what a working thread does; if none works, what the request waits for that is under way; if there is none, where
requests stand in line; else that all threads are idle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from aitop.model.ledger import RESTS, Activity, Handler
from aitop.model.snapshot import ThreadPool
from aitop.model.stacks import StackWindow
from aitop.stacks.libraries import Phase
from aitop.stacks.reading import Seen

RUNS: tuple[Activity, ...] = ("python", "native", "compile", "collect", "spawn")
OWN_WAITS: tuple[Activity, ...] = ("wait-disk", "wait-device")
# A wait of unknown kind: the thread may just wait for a core.
_UNKNOWN: Activity = "wait"
# Waits for something that another thread does, or for the next piece of work.
_HANDED = RESTS - {"sleep", _UNKNOWN}
# The file in which each thread of Python begins.
_STARTS = "/threading.py"
# A thread name stands for several threads if a look shows at least this many on average.
SEVERAL = 1.5
# A thread is short-lived if it was seen in at most _SHORT_WINDOWS windows, in less than _SHORT_SHARE of their samples.
# Fewer than _FEWEST_SHORT such threads do not count: they may come from a program that starts or ends.
_SHORT_WINDOWS, _SHORT_SHARE, _FEWEST_SHORT = 2, 0.5, 5
SHORT_THREADS = "threads that end soon"
Key = TypeVar("Key")


class ThreadKey(NamedTuple):
    """Identifies a thread in all windows. Threads of one process with the same name share a key."""

    pid: int
    thread: str
    main: bool


# Samples by thread and distinct stack.
Digest = dict[ThreadKey, Counter[Seen]]
TakenAs = Mapping[ThreadKey, ThreadKey]


def short_threads(windows: Sequence[StackWindow], digests: Sequence[Digest]) -> TakenAs:
    """Map the short-lived threads of each process to one key that stands for all of them; empty where they are few."""
    met: Counter[ThreadKey] = Counter()
    samples: Counter[ThreadKey] = Counter()
    asked: Counter[ThreadKey] = Counter()
    for window, digest in zip(windows, digests, strict=True):
        for key, stacks in digest.items():
            if not key.main:
                met[key] += 1
                samples[key] += stacks.total()
                asked[key] += round(window.seconds * window.rate)
    short = [key for key in met if met[key] <= _SHORT_WINDOWS and samples[key] < _SHORT_SHARE * asked[key]]
    many = Counter(key.pid for key in short)
    return {key: ThreadKey(key.pid, SHORT_THREADS, False) for key in short if many[key.pid] >= _FEWEST_SHORT}


def summed(digests: Iterable[Digest], taken_as: TakenAs = MappingProxyType({})) -> Digest:
    """Add up the samples by thread; those of a thread in `taken_as` count for the key that it is mapped to."""
    whole: Digest = defaultdict(Counter)
    for digest in digests:
        for key, stacks in digest.items():
            whole[taken_as.get(key, key)].update(stacks)
    return whole


class Place(NamedTuple):
    """A place where threads were seen: its phase, their main activity, and what called it for a request.

    Only the main activity counts: a line on which threads mostly wait also runs a little, which is the cost of waiting.
    """

    phase: Phase
    activity: Activity
    work: str | None
    handler: Handler | None
    samples: float

    @property
    def rank(self) -> int:
        """0: a thread works. 1: its request waits for something outside the process. 2: its request waits for another
        thread. 3: it has no request.
        """
        begun = self.handler is not None or self.phase != "outside"
        if self.activity in (*RUNS, *OWN_WAITS) or (self.activity == _UNKNOWN and begun):
            return 0
        if self.activity in RESTS and not begun:
            return 3
        return 2 if self.in_line else 1

    @property
    def asks(self) -> bool:
        """Whether a thread that handles a single request waits there for a service."""
        own = self.handler not in (None, "event-loop")
        return own and self.activity == "wait-network" and not self.in_line

    @property
    def in_line(self) -> bool:
        """Whether a thread that handles a single request waits there for another thread."""
        for_another = self.activity in _HANDED and self.work in (None, "hand-over")
        return for_another and self.handler not in (None, "event-loop")


def alike(threads: Digest, lead: ThreadKey | None) -> tuple[ThreadKey, ...]:
    """Return `lead` and all threads that were started with the same function.

    Only `lead` if it is the main thread, or if its stacks do not show how it was started.
    """
    if lead is None:
        return ()
    start = None if lead.main else _started_with(threads[lead])
    if start is None:
        return (lead,)
    peers = [key for key, stacks in threads.items() if not key.main and key != lead and _started_with(stacks) == start]
    return (lead, *peers)


def _started_with(stacks: Counter[Seen]) -> tuple[str, str] | None:
    """The file and name of the function that a thread was started with, as most of its stacks say."""
    starts: Counter[tuple[str, str]] = Counter()
    for seen, count in stacks.items():
        first = next((frame for frame in seen.frames if not frame.file.endswith(_STARTS)), None)
        if first is not None:
            starts[first.file, first.function] += count
    return max(starts, key=lambda start: starts[start], default=None)


def threads_at_once(keys: Sequence[ThreadKey], threads: Digest) -> float | None:
    """How many of these threads are alive at a time, on average; None for a single one, or if that is not known.

    A key may stand for several: threads of one name, and those that end soon. The main thread is in every look at the
    process, so its samples are the number of looks.
    """
    looks = sum(stacks.total() for key, stacks in threads.items() if key.main)
    if not looks or not keys or keys[0].main:
        return None
    there = sum(threads[key].total() for key in keys) / looks
    return there if len(keys) > 1 or keys[0].thread == SHORT_THREADS or there >= SEVERAL else None


def pooled(
    threads: Iterable[ThreadKey], places: Mapping[Key, Place], moments: float
) -> tuple[ThreadPool, dict[Key, float]]:
    """Return the pool of these threads, and how many samples of each place count for it as one worker.

    `moments` is how often the process was sampled. Places of rank 0 fill these first, then those of rank 1, 2 and 3.
    """
    counts: dict[Key, float] = {}
    room = moments
    for rank in range(4):
        chosen = {key: place.samples for key, place in places.items() if place.rank == rank}
        mass = sum(chosen.values())
        factor = min(1.0, room / mass) if mass > 0.0 else 0.0
        counts |= {key: factor * samples for key, samples in chosen.items()}
        room = max(0.0, room - mass)
    there = sum(place.samples for place in places.values())
    working = sum(place.samples for place in places.values() if place.rank == 0)
    asking = sum(place.samples for place in places.values() if place.asks)
    standing = sum(place.samples for place in places.values() if place.in_line)
    own = ThreadPool(
        threads=tuple(key.thread for key in threads),
        there=there / moments,
        working=working / moments,
        asking=asking / moments,
        standing=standing / moments,
    )
    return own, counts
