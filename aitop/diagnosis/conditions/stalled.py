"""Tells stopped processes, and servers whose requests make no progress, from idle ones: a part of `hang`. Pure."""

from __future__ import annotations

from aitop.diagnosis.device import device_busy
from aitop.diagnosis.evidence import main_lines, main_stacks, place_of, takes_request
from aitop.diagnosis.rule import Explanation
from aitop.diagnosis.what_if import fix
from aitop.model.host import ProcessSample
from aitop.model.ledger import HANDED_WAITS, Activity, Entry
from aitop.model.serving import Serving
from aitop.model.snapshot import ProcessStacks, Snapshot
from aitop.model.units import duration, plural
from aitop.model.verdict import Where

# A server is stalled if nothing ends for OF_LONGEST times as long as anything took before, and for LEAST_SECONDS at
# least: shorter gaps come from the kernel. Not much longer, since a liveness probe watches for only five seconds.
OF_LONGEST, LEAST_SECONDS = 1.5, 2.0
# The least seconds if nothing ended before; and if something computes, which may be a long prompt or a compilation.
UNKNOWN_SECONDS, COMPUTING_SECONDS = 3.0, 60.0
# Processes that together use less than this part of a core compute nothing; nor does a device that is busy for less.
COMPUTES = 0.1
# A thread stands on a line if at least this part of a window's samples is there: a stack may be read while it changes.
ALL = 0.95
# Waits that do not end by themselves; sleeps and waits for the network may.
STANDS: frozenset[Activity] = HANDED_WAITS | {"wait-gil", "wait-disk"}
SURE, LIKELY, UNSURE = 0.95, 0.8, 0.6


def stalled(snapshot: Snapshot) -> Explanation | None:
    """The verdict on a stopped process, or a server whose requests make no progress; None where work goes on."""
    stopped = _stopped(snapshot)
    if stopped:
        pids = " ".join(str(process.pid) for process in stopped)
        whose = " of the server" if snapshot.serving is not None else ""
        return _verdict(
            snapshot,
            subtype="stopped",
            title=f"process {pids.replace(' ', ', ')}{whose} is stopped by a signal or a debugger",
            confidence=SURE,
            pid=stopped[0].pid,
            processes=tuple(process.pid for process in stopped),
            remedy=f"let it go on: kill -CONT {pids}",
        )
    if snapshot.kind == "training":
        return None
    serving = snapshot.serving
    if serving is None or not serving.alive or serving.still is None:
        return _in_handler(snapshot)
    longest, computing = _longest(serving), _computes(snapshot)
    main = main_stacks(snapshot)
    where = _standing(snapshot) if main is None or serving.still_pid in (None, main.pid) else ()
    if longest is None and not where and not _has_engine(serving):
        # The handlers may wait for a service elsewhere: nothing here holds them up.
        return None
    limit = COMPUTING_SECONDS if computing else LEAST_SECONDS if longest is not None else UNKNOWN_SECONDS
    if serving.still < max(limit, OF_LONGEST * (longest or 0.0)):
        return None
    place = f", it stands at {place_of(where[0])}" if where else ""
    return _verdict(
        snapshot,
        subtype="stalled",
        title=f"no progress for {serving.still:.0f} s with {plural(serving.alive, 'request')} under way{place}",
        confidence=UNSURE if computing else LIKELY,
        pid=serving.pid if serving.still_pid is None else serving.still_pid,
        where=where,
        remedy="see the stacks of all threads (h): a lock, queue or process that never answers",
    )


def _in_handler(snapshot: Snapshot) -> Explanation | None:
    """The verdict on a thread that stands on one line of a handler, which was called for a request under way.

    Sleeps and waits for the network do not count: they end by themselves, or depend on somebody else.
    """
    process = main_stacks(snapshot)
    if process is None or snapshot.stacks is None or _computes(snapshot):
        return None
    windows = len(process.by_window)
    for entry in main_lines(snapshot, lambda entry: entry.handler is not None and entry.activity in STANDS).entries:
        stood = 0
        while stood < windows and _fills(entry, process, -1 - stood):
            stood += 1
        seconds = snapshot.stacks.seconds * stood / windows if windows else 0.0
        # `by_window` counts all samples of the line, those of its other activities too: the line must only wait.
        waits = entry.samples >= ALL * sum(entry.by_window[windows - stood :])
        if seconds >= LEAST_SECONDS and waits and entry.where is not None:
            return _verdict(
                snapshot,
                subtype="stalled",
                title=f"a request does not get on: {place_of(entry.where)} has waited for {seconds:.0f} s",
                confidence=LIKELY,
                pid=entry.pid,
                where=(entry.where,),
                remedy="see the stacks of all threads (h): who holds what it waits for?",
            )
    return None


def _fills(entry: Entry, process: ProcessStacks, window: int) -> bool:
    """Whether the thread stood on the entry's line in (nearly) all samples of that window of stacks."""
    samples = process.by_window[window]
    return samples > 0 and len(entry.by_window) >= -window and entry.by_window[window] >= ALL * samples


def _verdict(
    snapshot: Snapshot,
    *,
    subtype: str,
    title: str,
    confidence: float,
    pid: int | None,
    processes: tuple[int, ...] = (),
    where: tuple[Where, ...] = (),
    remedy: str,
) -> Explanation:
    """The verdict on work that stands still in the process `pid`, as far as that is known."""
    serving = snapshot.serving
    evidence = []
    if serving is not None and serving.alive is not None:
        evidence.append(f"{plural(serving.alive, 'request')} under way")
    if serving is not None and serving.still is not None:
        evidence.append(f"the last progress was {serving.still:.0f} s ago")
        longest = _longest(serving)
        if longest is not None:
            evidence.append(f"the longest so far took {duration(longest)}")
    evidence += [
        f"process {pid}: [{process.state}{f' {process.channel}' if process.channel else ''}]"
        for process in snapshot.processes
        if process.pid == pid and process.state is not None
    ]
    return Explanation(
        subtype=subtype,
        severity="critical",
        share=1.0,
        gains=False,
        confidence=confidence,
        title=title,
        where=where,
        # All samples of a stopped process show where it stands, not where its time goes: no other rule may claim them.
        claims=main_lines(
            snapshot, lambda entry: any(entry.at == place.at for place in where) or entry.pid in processes
        ).entries,
        evidence=tuple(evidence),
        fixes=(fix(remedy),),
        level=1.0,
        processes=processes or ((pid,) if pid is not None else ()),
    )


def _stopped(snapshot: Snapshot) -> list[ProcessSample]:
    """Processes that are stopped: any of a server, otherwise only the target and the working ones."""
    stopped = [process for process in snapshot.processes if process.state in ("T", "t")]
    mine = {snapshot.target.pid, *snapshot.working}
    return stopped if snapshot.serving is not None else [process for process in stopped if process.pid in mine]


def _longest(serving: Serving) -> float | None:
    """The longest seconds of an iteration or request that ended; None if too few ended to know what is usual."""
    lengths = [record.seconds for record in serving.iterations or serving.requests]
    if serving.longest is not None:
        return max(serving.longest, *lengths, 0.0)
    return max(lengths) if len(lengths) > 1 else None


def _has_engine(serving: Serving) -> bool:
    """Whether requests under way are in an engine, which makes progress with them as long as nothing is wrong."""
    return bool(serving.iterations) or serving.still_pid is not None or serving.basis == "metrics"


def _computes(snapshot: Snapshot) -> bool:
    known = [process.cpu for process in snapshot.processes if process.cpu is not None]
    return not known or sum(known) >= COMPUTES or (device_busy(snapshot) or 0.0) >= COMPUTES


def _standing(snapshot: Snapshot) -> tuple[Where, ...]:
    """The line on which the thread that does the work was in the newest window of stacks; empty if it rests."""
    newest = main_lines(
        snapshot, lambda entry: bool(entry.by_window) and entry.by_window[-1] > 0 and not takes_request(entry)
    )
    return newest.where[:1]
