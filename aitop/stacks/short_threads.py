"""Threads that live for one request, counted as one thread: a server that starts one for each works in all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from aitop.model.stacks import StackWindow
from aitop.stacks.reading import Seen

SHORT_THREADS = "threads that end soon"
# A thread is short-lived if it was seen in at most MOST_WINDOWS, in less than MOST_SHARE of their samples.
MOST_WINDOWS, MOST_SHARE = 2, 0.5
# Fewer such threads may come from a program that starts or ends.
FEWEST = 5


class ThreadKey(NamedTuple):
    """A thread of the windows; all threads of a process with one name are one. `main` for its main thread."""

    pid: int
    thread: str
    main: bool


Digest = dict[ThreadKey, dict[Seen, int]]


def short_threads(windows: Sequence[StackWindow], digests: Sequence[Digest]) -> dict[ThreadKey, ThreadKey]:
    """The short-lived threads of each process, with the one that they are taken as; empty where they are few."""
    met: Counter[ThreadKey] = Counter()
    samples: Counter[ThreadKey] = Counter()
    asked: Counter[ThreadKey] = Counter()
    for window, digest in zip(windows, digests, strict=True):
        for key, stacks in digest.items():
            if not key.main:
                met[key] += 1
                samples[key] += sum(stacks.values())
                asked[key] += round(window.seconds * window.rate)
    short = [key for key in met if met[key] <= MOST_WINDOWS and samples[key] < MOST_SHARE * asked[key]]
    many = Counter(key.pid for key in short)
    return {key: ThreadKey(key.pid, SHORT_THREADS, False) for key in short if many[key.pid] >= FEWEST}


def relabelled(window: StackWindow, taken_as: Mapping[ThreadKey, ThreadKey]) -> StackWindow:
    """The window with the threads in `taken_as` renamed in its states and its holds of the interpreter's lock."""
    if not taken_as:
        return window

    def name(pid: int, thread: str, main: bool) -> str:
        key = ThreadKey(pid, thread, main)
        return taken_as.get(key, key).thread

    states = tuple(replace(state, thread=name(state.pid, state.thread, state.main)) for state in window.states)
    gil = window.gil and tuple(replace(hold, thread=name(hold.pid, hold.thread, hold.main)) for hold in window.gil)
    return replace(window, states=states, gil=gil)


def as_one(digest: Digest, taken_as: Mapping[ThreadKey, ThreadKey]) -> Digest:
    """The samples of a window by thread, those of the threads in `taken_as` joined."""
    if not taken_as:
        return digest
    joined: Digest = {}
    for key, stacks in digest.items():
        thread = joined.setdefault(taken_as.get(key, key), {})
        for seen, count in stacks.items():
            thread[seen] = thread.get(seen, 0) + count
    return joined
