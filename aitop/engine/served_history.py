"""What the hook of one process has reported of requests and engine iterations in the last minutes. Bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aitop.engine.snapshot.steps import quantile
from aitop.model.serving import IterationRecord, Pause, RequestRecord
from aitop.model.steps import HookSample

# Half a minute of an engine that makes 200 iterations a second.
KEEP_REQUESTS = KEEP_ITERATIONS = 6144
KEEP_PAUSES = 1024
CHART_SECONDS = 300


class ServedSecond(NamedTuple):
    """What ended in the second that begins at `second` (monotonic), for charts. None is not measured.

    `p50` and `p99` (seconds) are of the `requests` that ended, `queue` is how many seconds they waited, all together.
    `waiting` is the mean number that waited by the engine's iterations.
    """

    second: int
    requests: int = 0
    p50: float | None = None
    p99: float | None = None
    queue: float | None = None
    waiting: float | None = None


@dataclass
class ServedHistory:
    """Requests, iterations and pauses of one process, oldest first. `since`: when they began to be watched.

    `alive` is None where requests are not watched.
    """

    requests: deque[RequestRecord] = field(default_factory=lambda: deque(maxlen=KEEP_REQUESTS))
    iterations: deque[IterationRecord] = field(default_factory=lambda: deque(maxlen=KEEP_ITERATIONS))
    pauses: deque[Pause] = field(default_factory=lambda: deque(maxlen=KEEP_PAUSES))
    alive: int | None = None
    since: float | None = None
    # For charts: the seconds that are over, and what ended in those that are not.
    done: deque[ServedSecond] = field(default_factory=lambda: deque(maxlen=CHART_SECONDS))
    current: tuple[RequestRecord, ...] = ()
    turns: tuple[IterationRecord, ...] = ()

    @property
    def watches_requests(self) -> bool:
        """Whether requests are watched in it, and not only an engine's iterations."""
        return self.alive is not None or bool(self.requests)

    def add(self, sample: HookSample) -> None:
        """Take what came out of the process's ring."""
        self.alive = sample.alive
        records: list[RequestRecord | IterationRecord] = [*sample.requests, *sample.iterations]
        if self.since is None and (records or sample.alive is not None):
            self.since = min([sample.time, *(record.end - record.seconds for record in records)])
        self.requests.extend(sample.requests)
        self.iterations.extend(sample.iterations)
        self.pauses.extend(sample.pauses)
        self._sum_up(sample)

    def _sum_up(self, sample: HookSample) -> None:
        """Close the seconds that have been over for a second: what ended in them has come."""
        requests, turns = (*self.current, *sample.requests), (*self.turns, *sample.iterations)
        first_open = int(sample.time) - 1
        for second in sorted({int(one.end) for one in (*requests, *turns) if one.end < first_open}):
            answered = [record for record in requests if int(record.end) == second]
            self.done.append(_second(second, answered, [turn for turn in turns if int(turn.end) == second]))
        self.current = tuple(record for record in requests if record.end >= first_open)
        self.turns = tuple(turn for turn in turns if turn.end >= first_open)


def _second(second: int, requests: Sequence[RequestRecord], turns: Sequence[IterationRecord]) -> ServedSecond:
    ordered = sorted(record.seconds for record in requests)
    queued = [record.queue for record in requests if record.queue is not None]
    waiting = [record.waiting for record in turns if record.waiting is not None]
    return ServedSecond(
        second,
        requests=len(ordered),
        p50=quantile(ordered, 0.5) if ordered else None,
        p99=quantile(ordered, 0.99) if ordered else None,
        queue=sum(queued) if queued else None,
        waiting=sum(waiting) / len(waiting) if waiting else None,
    )
