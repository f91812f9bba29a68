"""latency-tail where single requests are not known: what holds up all requests of a server at once. Pure.

Requests that come at random meet a pause of the whole process with a probability that is the pause's share of the time.
So what stops the process for 1 % of the time is in the slowest 1 % of the requests, however long these usually take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from aitop.diagnosis.causes import recompile
from aitop.diagnosis.causes.serving.hold_ups import handler_entries
from aitop.diagnosis.evidence import MAIN, RUNNING, Lines, lead_ledger, lines_of
from aitop.diagnosis.series import values_since
from aitop.model.ledger import Activity, Entry, Ledger
from aitop.model.snapshot import Snapshot

# Fewer samples than these may have met one long pause by chance.
LEAST_SAMPLES = 5
# What takes this share of the time is felt by the slowest percent of the requests.
FELT = 0.01
# A line that comes in bursts is seen in fewer windows of stacks than as many samples in even time would be: in less
# than this part of them, and in so few that by chance it happens once in a thousand times.
BURSTY, BY_CHANCE = 0.7, 0.001
# In fewer windows one long request looks like a burst.
LEAST_WINDOWS = 5
# Waits for the lock come with a pause that takes at least this part of their time.
MOST_WAITS = 0.5


# A thread that has work to do and may lack the lock for it.
AT_WORK = RUNNING | {"wait-gil"}


class Stop(msgspec.Struct, frozen=True):
    """What holds up every thread of the process for a `share` (0..1) of the time, on which lines.

    `waits` are the waits that come with it.
    """

    kind: Literal["collector", "compile", "quota", "handler"]
    share: float
    basis: str
    lines: tuple[Entry, ...] = ()
    waits: tuple[Entry, ...] = ()


def longest_stop(snapshot: Snapshot) -> Stop | None:
    """What stops the server for the largest share of the time; None where nothing was seen to stop it."""
    ledger = lead_ledger(snapshot)
    if snapshot.kind != "inference" or ledger is None:
        return None
    stops = [_collector(snapshot, ledger), _compiler(snapshot, ledger), _quota(snapshot), _handler(snapshot, ledger)]
    return max((stop for stop in stops if stop is not None), key=lambda stop: stop.share, default=None)


def _collector(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """Collections that a line asks for, in any thread: the collector holds the interpreter's lock meanwhile."""
    share, lines, basis = _sampled(snapshot, ledger, "collect")
    waits = [entry for entry in ledger.entries if entry.activity == "wait-gil"]
    come_with_it = share >= MOST_WAITS * sum(entry.share for entry in waits if entry.lane == "main")
    return Stop("collector", share, basis, lines.lines, tuple(waits) if come_with_it else ()) if lines.lines else None


def _compiler(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """Compiling that goes on beside requests. What is compiled before the first one holds up none."""
    share, lines, basis = _sampled(snapshot, ledger, "compile")
    return Stop("compile", share, basis, lines.lines) if recompile.takes_turns(snapshot, lines, least=FELT) else None


def _handler(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """The line of a handler that runs for long in few requests, in a thread: others wait for the lock meanwhile."""
    called = [entry for entry in handler_entries(snapshot) if entry.handler != "event-loop" and entry.does in AT_WORK]
    places = {entry.at: [each for each in called if each.where == entry.where] for entry in called}
    found = []
    for entries in places.values():
        windows = {entry.thread: entry.by_window for entry in entries}
        if bursty([sum(counts) for counts in zip(*windows.values(), strict=True)]):
            found += entries
    share, lines, basis = _share(snapshot, ledger, found)
    return Stop("handler", share, basis, lines.lines) if lines.lines else None


def _sampled(snapshot: Snapshot, ledger: Ledger, activity: Activity) -> tuple[float, Lines, str]:
    entries = [entry for entry in ledger.entries if entry.pid == ledger.pid and entry.activity == activity]
    return _share(snapshot, ledger, entries)


def _share(snapshot: Snapshot, ledger: Ledger, entries: Iterable[Entry]) -> tuple[float, Lines, str]:
    """The share of the time in which some thread is at one of these entries, their lines, and on how much that stands.

    Threads of a pool have one entry together, so that its share is of their time: the looks at the main thread count.
    """
    lines = lines_of(entries)
    samples = sum(entry.samples for entry in lines.lines)
    threads = snapshot.stacks.threads if snapshot.stacks is not None else ()
    looks = next((each.samples for each in threads if (each.pid, each.thread) == (ledger.pid, MAIN)), 0)
    if samples < LEAST_SAMPLES or not looks:
        return 0.0, Lines(0.0, ()), ""
    return min(1.0, samples / looks), lines, f"{samples:.0f} of {looks} looks at the process"


def _quota(snapshot: Snapshot) -> Stop | None:
    """Waits of the main thread for a core while the control group has used up its quota."""
    throttled = dict(values_since(snapshot, "throttled", snapshot.window))
    delays = values_since(snapshot, "run_delay", snapshot.window)
    lost = sum(min(1.0, part) * (now - before) for (before, _), (now, part) in pairwise(delays) if throttled.get(now))
    times = sum(1 for part in throttled.values() if part)
    basis = f"the control group was stopped in {times} of {len(throttled)} seconds"
    return Stop("quota", lost / snapshot.window, basis) if lost > 0.0 else None


def bursty(by_window: Sequence[int]) -> bool:
    """Whether a line was sampled in clearly fewer windows of stacks than it would be if its time were spread evenly.

    Spread evenly, a window has none of the samples with the probability of a Poisson distribution.
    """
    windows, samples = len(by_window), sum(by_window)
    if not samples or windows < LEAST_WINDOWS:
        return False
    none = math.exp(-samples / windows)
    seen = sum(map(bool, by_window))
    so_few = sum(math.comb(windows, k) * (1.0 - none) ** k * none ** (windows - k) for k in range(seen + 1))
    return seen <= BURSTY * windows * (1.0 - none) and so_few <= BY_CHANCE
