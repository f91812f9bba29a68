"""The past of a server, made by hand: what its hooks and its own metrics said, and the figures made of it."""

import msgspec
from snapshot_builder import host, process

from aitop.engine.history import History
from aitop.engine.snapshot.serving import serving
from aitop.model.serving import Histogram, IterationRecord, RequestRecord, ServerSample
from aitop.model.snapshot import Target
from aitop.model.source import SourceStatus
from aitop.model.steps import HookSample

API, ENGINE, WORKERS = 10, 11, (20, 21)
NOW = 100.0


def request(end, seconds=0.2, **parts):
    return RequestRecord(end=end, seconds=seconds, **parts)


def turn(end, seconds=0.01, **parts):
    return IterationRecord(end=end, seconds=seconds, **parts)


def hook(pid, time=NOW, **served):
    return HookSample(time=time, pid=pid, **served)


def tree(*parts, engine="vllm 0.32.0"):
    """The server's processes, each a pid and its part in the server."""
    sample = host()
    processes = tuple(process(pid, "other", part=part) for pid, part in parts)
    return msgspec.structs.replace(sample, time=NOW, processes=processes, engine=engine)


def served_past(*events):
    """A past with these events, in which the hook is in."""
    made = History(Target(pid=API, command="serve"))
    made.add(SourceStatus(time=0.0, source="hook", state="ok"))
    for event in events:
        made.add(event)
    return made


def figures(*events, now=NOW, kind="inference"):
    """The figures of a server with this past."""
    return serving(served_past(*events), now, kind)


def without_pids(records):
    return tuple(msgspec.structs.replace(record, pid=None) for record in records)


def spread(number, seconds=20.0, **parts):
    """`number` requests that ended evenly over the last seconds."""
    return tuple(request(NOW - seconds + (index + 1) * seconds / number, **parts) for index in range(number))


def latencies(total, *counts, bounds=(0.3, 0.5, 0.8, 1.0)):
    """A histogram of requests: the sum of their seconds, and how many took up to each bound."""
    return Histogram(bounds=bounds, counts=counts, sum=total, count=counts[-1])


def look(time, requests, tokens=None, *, running=0.0, waiting=0.0, pid=API, **histograms):
    """What the server's own metrics say at a moment: requests and tokens since its start, and how many are there."""
    counters = {"requests": requests} | ({} if tokens is None else {"tokens": tokens})
    return ServerSample(
        time=time,
        pid=pid,
        counters=counters,
        gauges={"running": running, "waiting": waiting, "kv_used": 0.5},
        histograms=histograms,
    )
