"""CPU time per Snapshot of the two causes that look at single requests of a server, and of the whole Snapshot.

An engine of this process gets the hook's records of a server with 160 requests a second for longer than the window:
4,800 requests. The server answers half as many as it could, with and without pauses of the collector; or one after the
other to clients that wait; or many at a time in iterations, to clients that wait. The time comes with the records, so
that a minute of samples passes in seconds; each tick has new requests. Times are CPU times of the thread.

    python tests/bench/serving_judge_cost.py
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from results import Figure, options, publish

from aitop.diagnosis.causes.serving import queue, tail
from aitop.engine.core import Engine
from aitop.model.serving import IterationRecord, Pause, RequestRecord
from aitop.model.snapshot import Target, Tick
from aitop.model.steps import HookSample

PID, BEGIN, RATE = 4242, 1000.0, 160.0
# A Snapshot is made once a second, beside a server that has the cores.
BAR_MS, SNAPSHOT_BAR_MS = 5.0, 60.0
T = TypeVar("T")
Second = tuple[list[RequestRecord], list[IterationRecord], list[Pause]]


def one_by_one(pauses: bool) -> Iterator[Second]:
    """Requests at random to a server that is half busy; with pauses it stops for 0.1 s every five seconds."""
    chance, arrival, free, second = random.Random(1), BEGIN, BEGIN, 0
    while True:
        made: list[RequestRecord] = []
        held = [Pause(end=BEGIN + second + 0.1, seconds=0.1, kind="collect")] if pauses and second % 5 == 4 else []
        if held:
            free = max(free, held[0].end)
        while free < BEGIN + second + 1:
            arrival += chance.expovariate(RATE)
            begin = max(arrival, free)
            took = 0.5 / RATE * chance.uniform(0.8, 1.2)
            free = begin + took
            made.append(RequestRecord(end=free, seconds=free - arrival, queue=begin - arrival, model=took))
        yield made, [], held
        second += 1


def clients(count: int = 24) -> Iterator[Second]:
    """Clients that wait for each answer, and get one after the other."""
    chance, free, sent, second = random.Random(2), BEGIN, [BEGIN] * count, 0
    while True:
        made: list[RequestRecord] = []
        while free < BEGIN + second + 1:
            arrival, begin = sent.pop(0), free
            took = chance.uniform(0.8, 1.2) / RATE
            free = begin + took
            sent.append(free)
            made.append(RequestRecord(end=free, seconds=free - arrival, queue=begin - arrival, model=took))
        yield made, [], []
        second += 1


def iterations(most: int = 16, count: int = 64) -> Iterator[Second]:
    """An engine with 160 iterations a second, each with a token for each of the requests in its batch."""
    chance, end, second = random.Random(3), BEGIN, 0
    waiting, running = [BEGIN] * count, dict[int, tuple[float, float, int]]()
    number = 0
    while True:
        requests: list[RequestRecord] = []
        turns: list[IterationRecord] = []
        pauses: list[Pause] = []
        while end < BEGIN + second + 1:
            began, waited, prefilled = end, len(waiting), 0
            while waiting and len(running) < most:
                number += 1
                running[number] = waiting.pop(0), began, chance.randint(4, 28)
                prefilled += chance.choice((16, 16, 64, 512))
            took = (0.004 + 0.0001 * len(running) + 0.00001 * prefilled) * chance.gauss(1.0, 0.03)
            end = began + took
            if chance.random() < 0.1:
                pauses.append(Pause(end=end, seconds=0.001, kind="collect"))
            turns.append(
                IterationRecord(
                    end=end, seconds=took, idle=0.0, kind="mixed" if prefilled else "decode", schedule=took / 20,
                    model=took / 2, output=took / 20, requests=len(running), prefill_tokens=prefilled,
                    decode_tokens=len(running), running=len(running), waiting=waited,
                )
            )  # fmt: skip
            for name, (arrival, start, left) in list(running.items()):
                if left > 1:
                    running[name] = arrival, start, left - 1
                    continue
                del running[name]
                waiting.append(end)
                requests.append(
                    RequestRecord(
                        end=end, seconds=end - arrival, queue=start - arrival, model=end - start, tokens=16,
                        prompt_tokens=32,
                    )
                )  # fmt: skip
        yield requests, turns, pauses
        second += 1


def costs(server: Iterator[Second], ticks: int) -> dict[str, tuple[list[float], int]]:
    """CPU times in milliseconds of each rule and of the whole Snapshot, with the most requests that one of them had."""
    # The window is full after half a minute.
    full = 35
    engine = Engine(Target(pid=PID, command="python serve.py"))
    times: dict[str, list[float]] = {"latency-tail": [], "queue-bound": [], "the whole Snapshot": []}
    most = 0
    for number, (requests, turns, pauses) in zip(range(full + ticks), server, strict=False):
        now = BEGIN + number + 1
        sample = HookSample(
            time=now, pid=PID, requests=tuple(requests), iterations=tuple(turns), pauses=tuple(pauses), alive=4
        )
        added, _ = timed(partial(engine.handle, sample))
        spent, snapshot = timed(partial(engine.handle, Tick(time=now, wall=now)))
        if number < full:
            continue
        times["the whole Snapshot"].append(added + spent)
        assert snapshot is not None and snapshot.serving is not None
        most = max(most, len(snapshot.serving.requests))
        for name, rule in (("latency-tail", tail.judge), ("queue-bound", queue.judge)):
            times[name].append(timed(partial(rule, snapshot))[0])
    return {name: (values, most) for name, values in times.items()}


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """CPU time in milliseconds, and what the call returns."""
    begin = time.thread_time()
    result = call()
    return (time.thread_time() - begin) * 1e3, result


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--ticks", type=int, default=20, help="Snapshots that are measured of each server")
    args = parser.parse_args()
    figures = []
    for what, server in (
        ("half busy", one_by_one(pauses=False)),
        ("half busy with pauses", one_by_one(pauses=True)),
        ("clients that wait", clients()),
        ("an engine's clients", iterations()),
    ):
        for name, (times, most) in costs(server, args.ticks).items():
            spread = f"the slowest {max(times):.1f}; {most} requests"
            bar = SNAPSHOT_BAR_MS if name == "the whole Snapshot" else BAR_MS
            figures.append(Figure(f"{what}: {name}", statistics.median(times), "ms", most=bar, spread=spread))
    return publish(args, figures)


if __name__ == "__main__":
    sys.exit(main())
