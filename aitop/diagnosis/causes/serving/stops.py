"""latency-tail where single requests are not known: what stops all requests of a server at once. Pure.

Requests that come at random meet a pause of the whole process with a probability that is the pause's share of the time.
So what stops the process for 1 % of the time is in the slowest 1 % of the requests, however long these usually take.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import msgspec

from aitop.diagnosis.causes import recompile
from aitop.diagnosis.evidence import MAIN, Lines, lead_ledger, lines_of
from aitop.diagnosis.series import values_since
from aitop.model.ledger import Entry, Ledger
from aitop.model.snapshot import Snapshot

# Fewer samples than these may have met one long pause by chance.
LEAST_SAMPLES = 5
# What takes this share of the time is felt by the slowest percent of the requests.
FELT = 0.01
# Waits for the lock come with a pause that takes at least this part of their time.
MOST_WAITS = 0.5


class Stop(msgspec.Struct, frozen=True):
    """What stops every thread of the process for a `share` (0..1) of the time, on which lines.

    `waits` are the waits that come with it.
    """

    kind: Literal["collector", "compile", "quota"]
    share: float
    basis: str
    lines: tuple[Entry, ...] = ()
    waits: tuple[Entry, ...] = ()


def longest_stop(snapshot: Snapshot) -> Stop | None:
    """What stops the server for the largest share of the time; None where nothing was seen to stop it."""
    ledger = lead_ledger(snapshot)
    if snapshot.kind != "inference" or ledger is None:
        return None
    stops = [_collector(snapshot, ledger), _compiler(snapshot, ledger), _quota(snapshot)]
    return max((stop for stop in stops if stop is not None), key=lambda stop: stop.share, default=None)


def _collector(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """Collections that a line asks for, in any thread: the collector holds the interpreter's lock meanwhile."""
    share, lines, basis = _sampled(snapshot, ledger, lambda entry: entry.activity == "collect")
    waits = [entry for entry in ledger.entries if entry.activity == "wait-gil"]
    come_with_it = share >= MOST_WAITS * sum(entry.share for entry in waits if entry.lane == "main")
    return Stop("collector", share, basis, lines.lines, tuple(waits) if come_with_it else ()) if lines.lines else None


def _compiler(snapshot: Snapshot, ledger: Ledger) -> Stop | None:
    """Compiling that goes on beside requests. What is compiled before the first one holds up none."""
    share, lines, basis = _sampled(snapshot, ledger, lambda entry: entry.activity == "compile")
    return Stop("compile", share, basis, lines.lines) if recompile.takes_turns(snapshot, lines, least=FELT) else None


def _sampled(snapshot: Snapshot, ledger: Ledger, wanted: Callable[[Entry], bool]) -> tuple[float, Lines, str]:
    """The share of the time in which some thread does what is `wanted`, its lines, and on how much that stands.

    Threads of a pool have one entry together, so that its share is of their time: the looks at the main thread count.
    """
    lines = lines_of(entry for entry in ledger.entries if entry.pid == ledger.pid and wanted(entry))
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
