"""Servers made by hand: requests that come at random, and hold-ups at times that a test chooses."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from snapshot_builder import RANK, host, process, snapshot

from aitop.model.host import HostSample
from aitop.model.serving import IterationRecord, Pause, RequestRecord, Serving

START = 970.0
UNTIL = 1000.0


@dataclass
class Server:
    """Answers in the order of arrival. `stops` are (begin, seconds) in which it does nothing."""

    service: float = 0.02
    stops: list[tuple[float, float]] = field(default_factory=list)
    slots: int = 1
    seed: int = 7

    def answer(self, arrivals, **fields):
        """A record for each arrival; the model takes all of the service."""
        chance = random.Random(self.seed)
        free = [START] * self.slots
        made = []
        for arrival in arrivals:
            place = free.index(min(free))
            begin = self._go_on(max(arrival, free[place]))
            took = self.service * chance.uniform(0.8, 1.2)
            end = begin + took
            for stop, seconds in self.stops:
                if begin < stop < end:
                    end += seconds
            free[place] = end
            made.append(RequestRecord(end=end, seconds=end - arrival, queue=begin - arrival, model=took, **fields))
        return sorted(made, key=lambda one: one.end)

    def _go_on(self, time):
        return max([time, *(stop + seconds for stop, seconds in self.stops if stop <= time < stop + seconds)])


def at_random(rate, until=UNTIL, seed=3):
    """Independent arrivals, `rate` a second."""
    chance, time, times = random.Random(seed), START, []
    while (time := time + chance.expovariate(rate)) < until - 0.5:
        times.append(time)
    return times


def closed(clients, service, until=UNTIL, slots=1, seed=5):
    """Records of clients that send again as soon as they have their answer."""
    chance = random.Random(seed)
    free, pending, made = [START] * slots, [START + 0.001 * number for number in range(clients)], []
    while pending:
        arrival = min(pending)
        pending.remove(arrival)
        place = free.index(min(free))
        begin = max(arrival, free[place])
        end = free[place] = begin + service * chance.uniform(0.8, 1.2)
        if end < until:
            pending.append(end)
            made.append(RequestRecord(end=end, seconds=end - arrival, queue=begin - arrival, model=end - begin))
    return sorted(made, key=lambda one: one.end)


def pauses(stops, kind="collect"):
    return tuple(Pause(end=begin + seconds, seconds=seconds, kind=kind) for begin, seconds in stops)


def turns(count=400, *, fixed=0.01, each=0.0005, prompt=0.00005, seed=2, noise=0.03, waiting=0, **fields):
    """Iterations of an engine whose length is `fixed`, and more for each token decoded and of a prompt."""
    chance, end, made = random.Random(seed), START, []
    for _ in range(count):
        decoded = chance.randint(2, 24)
        prefilled = chance.choice([0, 0, 0, 64, 256])
        seconds = (fixed + each * decoded + prompt * prefilled) * chance.gauss(1.0, noise)
        end += seconds
        made.append(
            IterationRecord(
                end=end, seconds=seconds, idle=0.0, kind="mixed" if prefilled else "decode", requests=decoded,
                decode_tokens=decoded, prefill_tokens=prefilled, running=decoded, waiting=waiting, **fields,
            )
        )  # fmt: skip
    return made


def serving(requests=(), iterations=(), **fields):
    fields.setdefault("basis", "hook")
    fields.setdefault("pid", RANK)
    return Serving(requests=tuple(requests), iterations=tuple(iterations), **fields)


def server(requests=(), iterations=(), *, held=(), lines=(), series=None, window=30.0, seen=None, **fields):
    """A Snapshot of a server. `held` are pauses, `seen` are more fields of the Snapshot."""
    made = serving(requests, iterations, pauses=tuple(held), **fields)
    return snapshot(
        lines=lines, kind="inference", serving=made, series=series or {}, **{"window": window, **(seen or {})}
    )


def tree(**states):
    """A host on which the server's process is in this state and uses this much of a core."""
    return HostSample(time=1000.0, processes=(process(**states),), machine=host().machine, usable_cores=2.0)
