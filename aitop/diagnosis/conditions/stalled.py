"""A server whose requests do not get on, told from one that has none: part of `hang`. Pure."""

from __future__ import annotations

from aitop.diagnosis.device import device_busy
from aitop.diagnosis.evidence import lead_ledger, lines_of, place_of, takes_request
from aitop.diagnosis.rule import Explanation
from aitop.diagnosis.what_if import fix
from aitop.model.host import ProcessSample
from aitop.model.serving import Serving
from aitop.model.snapshot import Snapshot
from aitop.model.units import duration
from aitop.model.verdict import Where

# Nothing ends for this much longer than it ever took. Short gaps are the kernel's, and a probe looks for five seconds.
OF_LONGEST, LEAST_SECONDS = 1.5, 2.0
# Where nothing was seen to end before, and where something computes, which may be a long prompt or a compilation.
UNKNOWN_SECONDS, COMPUTING_SECONDS = 3.0, 60.0
# A tree that uses less than this part of a core, and a device that is as idle, compute nothing.
COMPUTES = 0.1
SURE, LIKELY, UNSURE = 0.95, 0.8, 0.6


def stalled(snapshot: Snapshot) -> Explanation | None:
    """The verdict on a server that is stopped, or whose requests do not get on; None of one that is idle or serves."""
    if snapshot.kind == "training":
        return None
    stopped = _stopped(snapshot)
    if stopped:
        pids = " ".join(str(process.pid) for process in stopped)
        return _verdict(
            snapshot,
            subtype="stopped",
            title=f"process {pids.replace(' ', ', ')} of the server is stopped by a signal or a debugger",
            confidence=SURE,
            first=stopped[0].pid,
            remedy=f"let it go on: kill -CONT {pids}",
        )
    serving = snapshot.serving
    if serving is None or not serving.alive or serving.still is None:
        return None
    longest, computing = _longest(serving), _computes(snapshot)
    where = _standing(snapshot)
    if longest is None and not where and not _has_engine(serving):
        # Handlers may wait for somebody else, with nothing in their way.
        return None
    limit = COMPUTING_SECONDS if computing else LEAST_SECONDS if longest is not None else UNKNOWN_SECONDS
    if serving.still < max(limit, OF_LONGEST * (longest or 0.0)):
        return None
    place = f", it stands at {place_of(where[0])}" if where else ""
    return _verdict(
        snapshot,
        subtype="stalled",
        title=f"{serving.alive} requests are under way, and nothing has got on for {serving.still:.0f} s{place}",
        confidence=UNSURE if computing else LIKELY,
        first=serving.pid,
        where=where,
        remedy="see the stacks of all threads (h): a lock, queue or process that never answers",
    )


def _verdict(
    snapshot: Snapshot,
    *,
    subtype: str,
    title: str,
    confidence: float,
    first: int | None,
    where: tuple[Where, ...] = (),
    remedy: str,
) -> Explanation:
    serving = snapshot.serving
    evidence = []
    if serving is not None and serving.alive is not None:
        evidence.append(f"{serving.alive} requests are under way")
    if serving is not None and serving.still is not None:
        evidence.append(f"no request and no iteration has ended for {serving.still:.0f} s")
        longest = _longest(serving)
        if longest is not None:
            evidence.append(f"the longest so far took {duration(longest)}")
    processes = snapshot.host.processes if snapshot.host else ()
    evidence += [
        f"process {one.pid}: [{one.state}{f' {one.channel}' if one.channel else ''}]"
        for one in processes
        if one.pid == first and one.state is not None
    ]
    return Explanation(
        subtype=subtype,
        severity="critical",
        share=1.0,
        gains=False,
        confidence=confidence,
        title=title,
        where=where,
        evidence=tuple(evidence),
        fixes=(fix(remedy),),
        level=1.0,
    )


def _stopped(snapshot: Snapshot) -> list[ProcessSample]:
    """Processes of a server that somebody has stopped."""
    processes = snapshot.host.processes if snapshot.host else ()
    serves = snapshot.serving is not None
    mine = {snapshot.target.pid, *snapshot.working}
    return [one for one in processes if one.state in ("T", "t") and (serves or one.pid in mine)]


def _longest(serving: Serving) -> float | None:
    """The longest that anything took that ended; None where too little ended to know what is usual."""
    lengths = [one.seconds for one in serving.iterations] or [one.seconds for one in serving.requests]
    return max(lengths) if len(lengths) > 1 else None


def _has_engine(serving: Serving) -> bool:
    """Whether requests under way are in an engine, which always gets on with them."""
    return bool(serving.iterations) or serving.basis == "metrics"


def _computes(snapshot: Snapshot) -> bool:
    processes = snapshot.host.processes if snapshot.host else ()
    known = [one.cpu for one in processes if one.cpu is not None]
    return not known or sum(known) >= COMPUTES or (device_busy(snapshot) or 0.0) >= COMPUTES


def _standing(snapshot: Snapshot) -> tuple[Where, ...]:
    """The line on which the thread that does the work was in the newest window of stacks; empty if it rests."""
    ledger = lead_ledger(snapshot)
    newest = [
        entry
        for entry in (ledger.entries if ledger else ())
        if entry.lane == "main" and entry.by_window and entry.by_window[-1] and not takes_request(entry)
    ]
    return lines_of(newest).where[:1]
