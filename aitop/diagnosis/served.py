"""How a server's process spends its time: the phases of its engine's iterations, or of its requests. Pure.

An iteration's parts follow one another, so they add up. Requests overlap: at each moment only one part counts, the one
closest to the model, and a moment without any request is idle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from aitop.model.ledger import Unit
from aitop.model.phases import SERVED, Phase
from aitop.model.serving import IterationRecord, RequestRecord, Serving
from aitop.model.snapshot import Snapshot, ThreadPool

# Fewer than LEAST_UNITS iterations or requests say little about how time is divided; more than MOST_REQUESTS requests
# only cost CPU.
LEAST_UNITS, MOST_REQUESTS = 8, 1000

# All threads of a pool are taken if this part of them is on average. Requests wait for one if MORE times as many are
# under way: some of them are being read or answered by other threads.
TAKEN, MORE = 0.85, 1.5

Span = tuple[float, float]


class Served(msgspec.Struct, frozen=True):
    """How a server's process spends its time. `shares` (0..1) are by phase and add up to 1; `length` is the mean time
    from one unit to the next, in seconds.

    For `ambiguous` of that time, which counts as "preprocess", one request was before the model and another behind it:
    the server may have worked on either of them while the other stood in line.
    """

    unit: Unit
    length: float
    shares: Mapping[Phase, float]
    ambiguous: float = 0.0

    def of_handlers(self) -> Served:
        """The same account of a loop that calls handlers: `prepare` and `output` become pre- and postprocessing."""
        names: dict[Phase, Phase] = {"prepare": "preprocess", "output": "postprocess"}
        return replace(self, shares={names.get(phase, phase): share for phase, share in self.shares.items()})

    def split_by_stacks(self, before: float, after: float) -> Served:
        """The same account, with the ambiguous time divided as stacks show: `before` and `after` the model."""
        made, output = self.shares.get("preprocess", 0.0), self.shares.get("postprocess", 0.0)
        if not self.ambiguous or before + after <= 0.0:
            return self
        moved = max(0.0, min(self.ambiguous, (made + output) * after / (before + after) - output))
        return replace(self, shares={**self.shares, "preprocess": made - moved, "postprocess": output + moved})


def served(snapshot: Snapshot, pid: int) -> Served | None:
    """The measured account of a server's process; None for any other process, and if too little was measured."""
    serving = snapshot.serving
    if serving is None:
        return None
    if serving.pid == pid and len(serving.iterations) >= LEAST_UNITS:
        return of_iterations(serving.iterations, _at_rest(serving, serving.iterations[-1].end))
    requests = serving.requests_of(pid)
    if len(requests) < LEAST_UNITS:
        return None
    rest = _at_rest(serving, requests[-1].end)
    return of_requests(requests[-MOST_REQUESTS:], rest, serving.under_way_since(pid))


def _at_rest(serving: Serving, last: float) -> float:
    """The seconds since the work that ended at `last` in which there was nothing to do."""
    if serving.alive != 0 or serving.still is None:
        return 0.0
    if not serving.iterations and any(one.model is None and one.first_sent is not None for one in serving.requests):
        # Streams whose model runs in another thread are not known to be under way.
        return 0.0
    ends = [one.end for one in serving.requests[-1:]] + [one.end for one in serving.iterations[-1:]]
    return serving.still + max([last, *ends]) - last


def of_iterations(iterations: Sequence[IterationRecord], rest: float = 0.0) -> Served | None:
    """The account of an engine. The time in which it waits for requests counts as a part of its iterations.

    `rest` is the seconds since the last one.
    """
    total = sum(one.seconds + (one.idle or 0.0) for one in iterations) + rest
    if total <= 0.0:
        return None
    shares: dict[Phase, float] = {}
    for phase in SERVED:
        values = map(attrgetter(phase.iteration), iterations) if phase.iteration else ()
        known = [value for value in values if value is not None]
        if known:
            seconds = sum(known) + (rest if phase.iteration == "idle" else 0.0)
            shares[phase.key] = min(1.0, seconds / total)
    shares["host"] = max(0.0, 1.0 - sum(shares.values()))
    return Served("iteration", total / len(iterations), shares)


def all_taken(serving: Serving, pool: ThreadPool | None) -> bool:
    """Whether requests wait for a thread: more are under way than there are threads with one each, and all are taken.

    Where a thread is started for each connection, there are as many of them as requests.
    """
    if pool is None or serving.concurrency is None or pool.asking + pool.standing <= pool.working:
        return False
    taken = pool.working + pool.asking + pool.standing
    return taken >= TAKEN * pool.there and serving.concurrency > MORE * pool.there


def idle_share(serving: Serving) -> float | None:
    """The part (0..1) of the time in which a server has nothing to do; None where that was not measured.

    If several processes take requests, it is that of the busiest: all of them are hardly ever idle at the same time.
    """
    if serving.iterations:
        idle = [one.idle for one in serving.iterations if one.idle is not None]
        resting = sum(idle) + _at_rest(serving, serving.iterations[-1].end)
        total = sum(map(attrgetter("seconds"), serving.iterations)) + resting
        return min(1.0, resting / total) if idle and total > 0.0 else None
    requests = serving.requests_of(serving.pid)
    if not requests:
        return None
    # From the newest to the oldest: if a request ended before all later ones came, nothing was under way in between.
    rest = _at_rest(serving, requests[-1].end)
    first = min(requests[-1].end, serving.under_way_since(serving.pid))
    resting = rest
    for one in reversed(requests):
        end = one.end
        if end < first:
            rest += first - end
        begin = end - one.seconds
        # This runs once for each of thousands of requests, and a call of `min` takes as long as the rest.
        if begin < first:  # noqa: PLR1730
            first = begin
    total = requests[-1].end - first + resting
    return rest / total if total > 0.0 else None


def of_requests(requests: Sequence[RequestRecord], rest: float = 0.0, under_way: float = math.inf) -> Served | None:
    """The account of a process that answers requests, from the first arrival to `rest` seconds after the last.

    From `under_way` on there have been further requests, of which nothing is known until they end. None where these
    take more of the time than those that have ended, as one long request beside probes of the server's health.
    """
    begin, until = min(one.end - one.seconds for one in requests), max(one.end for one in requests)
    total = until - begin + rest
    if total <= 0.0:
        return None
    spans = [parts_of(one) for one in requests]
    ended = merged((one.end - one.seconds, one.end) for one in requests)
    alive = merged([*ended, (max(begin, under_way), until)]) if under_way < until else ended
    if length(alive) > 2.0 * length(ended):
        return None
    own = {key: [each[key] for each in spans if key in each] for key in ("forward", "preprocess", "postprocess")}
    models = merged(own["forward"])
    ahead = merged([*models, *own["preprocess"]])
    covered = merged([*ahead, *own["postprocess"]])
    parts: dict[Phase, float] = {
        "forward": length(models),
        "preprocess": length(ahead) - length(models),
        "postprocess": length(covered) - length(ahead),
    }
    shares: dict[Phase, float] = {"idle": max(0.0, 1.0 - length(alive) / total)}
    shares |= {key: seconds / total for key, seconds in parts.items() if own[key]}
    shares["host"] = max(0.0, 1.0 - sum(shares.values()))
    output = length(merged([*models, *own["postprocess"]])) - length(models)
    ambiguous = max(0.0, output - parts["postprocess"]) / total
    return Served("request", total / len(requests), shares, ambiguous)


def parts_of(request: RequestRecord) -> dict[str, Span]:
    """When each measured part of a request began and ended, by phase, its wait as "queue"."""
    parts: dict[str, Span] = {}
    time = request.end - request.seconds
    for key, seconds in (
        ("queue", request.queue),
        ("preprocess", request.preprocess),
        ("forward", request.model),
        ("postprocess", request.postprocess),
    ):
        if seconds is not None:
            parts[key] = (time, time + seconds)
            time += seconds
    return parts


def merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that overlap or touch made one."""
    together: list[Span] = []
    for begin, until in sorted(spans):
        if together and begin <= together[-1][1]:
            together[-1] = (together[-1][0], max(together[-1][1], until))
        else:
            together.append((begin, until))
    return together


def length(spans: Iterable[Span]) -> float:
    """The seconds that these spans, which do not overlap, take together."""
    return sum(until - begin for begin, until in spans)
