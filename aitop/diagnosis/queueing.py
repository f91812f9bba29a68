"""Predicts what more replicas or larger batches would give a server, by a simulation with its own requests. Pure.

The simulated server has one queue and a number of slots, each of which takes up to `batch` waiting requests at once.
Nothing is predicted unless the simulation of the server as it is now gives the latency that was measured.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

import msgspec

from aitop.diagnosis.what_if import LEFT, Length, TurnCost, estimated
from aitop.model.serving import RequestRecord

# Fewer than LEAST_REQUESTS do not tell how arrivals and service vary; more than MOST_REQUESTS only cost CPU.
LEAST_REQUESTS, MOST_REQUESTS = 30, 600
# The simulated latency may differ from the measured one by this part; the range of the gain gets wider by as much.
MOST_OFF = 0.25
# Clients that send one request after the other keep the number of requests under way nearly constant: its variance is
# at most this part of its mean. With independent arrivals the variance is the mean or more.
STEADY = 0.25


class Load(msgspec.Struct, frozen=True):
    """The requests of a server in a time, the oldest first: `arrivals` (monotonic), and `services`, the seconds of work
    on each. Work on the first began at `begun`: until then the server had other work. `latency` is the mean from
    arrival to answer, `back` the mean from the end of the work to the answer, both in seconds. `rate` is answers per
    second.

    `clients` is the number of clients that send a request as soon as they have an answer; None where requests come
    independently of answers. Of a server that takes several requests at once, `slots` is the most that it worked on at
    a time, or `batch` the most in one batch.
    """

    arrivals: tuple[float, ...]
    services: tuple[float, ...]
    begun: float
    latency: float
    back: float
    rate: float
    clients: int | None
    slots: int
    batch: int = 1
    cost: TurnCost | None = None


class Simulated(NamedTuple):
    """What a simulated server does: requests per second, and their mean latency in seconds."""

    rate: float
    latency: float


class Change(msgspec.Struct, frozen=True):
    """The effect of a change: `length` is the time per request relative to now. `latency` and `before` are the mean
    latencies in seconds with the change and now, None where they are not known.
    """

    length: Length
    latency: float | None = None
    before: float | None = None


def load_of(
    requests: Sequence[RequestRecord], *, batch: int = 1, engines: int = 1, cost: TurnCost | None = None
) -> Load | None:
    """The load of a server from its newest requests; None where their waits were not measured. Each of its `engines`
    takes up to `batch` requests at once.
    """
    known = list(islice((one for one in reversed(requests) if one.queue is not None), MOST_REQUESTS))
    if len(known) < LEAST_REQUESTS:
        return None
    known.sort(key=lambda one: one.end - one.seconds)
    arrivals = tuple(one.end - one.seconds for one in known)
    begun = [one.end - one.seconds + (one.queue or 0.0) for one in known]
    ends = [one.end for one in known]
    services = [_worked(one) for one in known]
    done = [begin + service for begin, service in zip(begun, services, strict=True)]
    seconds = max(ends) - min(ends)
    if seconds <= 0.0:
        return None
    return Load(
        arrivals=arrivals,
        services=tuple(services),
        begun=begun[0],
        latency=sum(one.seconds for one in known) / len(known),
        back=sum(end - after for end, after in zip(ends, done, strict=True)) / len(known),
        rate=(len(known) - 1) / seconds,
        clients=_clients(arrivals, ends),
        slots=engines if batch > 1 else _most_at_once(begun, done),
        batch=batch,
        cost=cost,
    )


def _worked(request: RequestRecord) -> float:
    """The seconds of work on a request: from the end of its wait to its answer.

    The way back through other processes is left out where it can be: the next request is worked on meanwhile.
    """
    parts = [part for part in (request.preprocess, request.model, request.postprocess) if part is not None]
    return max(1e-6, sum(parts) if len(parts) == 3 else request.seconds - (request.queue or 0.0))


def _levels(begins: Sequence[float], ends: Sequence[float]) -> list[tuple[float, int]]:
    """For each stretch between two changes: its seconds, and how many intervals are open in it."""
    changes = sorted([*((time, 1) for time in begins), *((time, -1) for time in ends)])
    counts = accumulate(change for _, change in changes)
    return [(until - time, count) for ((time, _), (until, _)), count in zip(pairwise(changes), counts, strict=False)]


def _clients(arrivals: Sequence[float], ends: Sequence[float]) -> int | None:
    """The number of clients, if each waits for its answer before it sends the next request; None if they do not."""
    longest = max(end - begin for begin, end in zip(arrivals, ends, strict=True))
    first, last = min(arrivals) + longest, max(ends) - longest
    # Cut off both ends, where requests are missing: those answered before, and those not answered yet.
    begins = [min(max(time, first), last) for time in arrivals]
    untils = [min(max(time, first), last) for time in ends]
    levels = [(seconds, count) for seconds, count in _levels(begins, untils) if seconds > 0]
    whole = sum(seconds for seconds, _ in levels)
    if whole <= 0.0 or last <= first:
        return None
    mean = sum(seconds * count for seconds, count in levels) / whole
    variance = sum(seconds * (count - mean) ** 2 for seconds, count in levels) / whole
    return round(mean) if mean >= 1.0 and variance <= STEADY * mean else None


def _most_at_once(begins: Sequence[float], ends: Sequence[float]) -> int:
    """The most requests in work at once, without peaks that take less than 5 % of the time together."""
    levels = sorted(_levels(begins, ends), key=lambda level: -level[1])
    whole, seen = sum(seconds for seconds, _ in levels), 0.0
    for seconds, count in levels:
        seen += seconds
        if seen >= 0.05 * whole:
            return max(1, count)
    return 1


def simulate(load: Load, *, slots: int, batch: int, behind: bool = False) -> Simulated:
    """Send the requests of a load through a server with `slots` slots, each of which takes up to `batch` at once.

    `behind`: the server begins with the work for which the first request really had to wait.
    """
    count, clients, cost, services, back = len(load.arrivals), load.clients, load.cost, load.services, load.back
    first = load.begun if behind and not clients else load.arrivals[0]
    free = [first] * slots
    # If clients send the next request after each answer, the arrivals follow from the answers.
    pending = [load.arrivals[0]] * min(clients, count) if clients else list(load.arrivals)
    heapq.heapify(pending)
    sent, answered = len(pending), 0
    latencies = 0.0
    last = first
    while pending:
        start = max(free[0], pending[0])
        taken = [heapq.heappop(pending)]
        while pending and len(taken) < batch and pending[0] <= start:
            taken.append(heapq.heappop(pending))
        end = start + (services[answered % count] if cost is None else cost.seconds(len(taken)))
        heapq.heapreplace(free, end)
        answer = end + back
        for arrival in taken:
            latencies += answer - arrival
            if clients and sent < count:
                heapq.heappush(pending, answer)
                sent += 1
        answered += len(taken)
        last = max(last, answer)
    seconds = last - first
    return Simulated(answered / seconds if seconds > 0 else 0.0, latencies / answered)


def change(load: Load, *, replicas: float = 1.0, batch: int | None = None) -> Change | None:
    """Predict the effect of `replicas` times as many replicas, or of larger batches.

    None if the simulation does not fit the measured latency, or if the cost of a batch is needed and not known.
    """
    if batch is not None and load.cost is None:
        return None
    now = simulate(load, slots=load.slots, batch=load.batch, behind=True)
    off = abs(now.latency - load.latency) / load.latency
    if off > MOST_OFF:
        return None
    then = simulate(load, slots=round(load.slots * replicas), batch=batch or load.batch)
    # If all requests that arrive are answered already, no more can be answered, only sooner.
    share = max(0.0, 1.0 - now.rate / then.rate)
    length = estimated(share, share * (1.0 - off - LEFT), share + (off + LEFT) * (1.0 - share))
    return Change(length, then.latency * load.latency / now.latency, load.latency)
