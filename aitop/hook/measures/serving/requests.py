"""The requests under way in this process, and the events of those that were answered. All times in nanoseconds.

Where a request passes several layers that are measured (a web server, and an engine that it calls), the outermost makes
the record, and the inner one adds what it knows.
"""

from __future__ import annotations

import _thread
import os
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ....protocol.events import (
    ITERATION,
    ITERATION_PARTS,
    ITERATION_STATE,
    ITERATION_TOKENS,
    NOT_MEASURED,
    REQUEST,
    REQUEST_MORE,
    REQUEST_PARTS,
)
from ...compiler import keep_from_compiling
from ...journal import GONE, MOST_WORDS, Journal

if TYPE_CHECKING:
    from ...session import Session

TICK_EVERY_NS = 50_000_000
MOST_THREADS = 1024

now_ns = time.monotonic_ns
_thread_id = _thread.get_native_id
_pid = os.getpid


class Request:
    """A request under way. Moments are of CLOCK_MONOTONIC, 0 where they have not come or are not known.

    arrived         when it arrived
    began           when this process began to work on it; what passed before is queue
    worker, ran     the kernel's id of the thread that works on it, 0 where none is known, and the CPU time that it had
                    used before, -1 where not known
    submitted       when it was handed to an engine; from then until `model_began` it is in the queue again
    model_began, model_ended    from the model's first call to the end of its last one
    between         how long it was not called in between: code that answers token by token works there
    first           when its first token was there
    chunks          parts of the answer that went out, `first_chunk` when the first did
    connection      the number of its socket's descriptor where an event loop has taken it up, else -1
    socket          that of its connection while a thread works for it, else None
    tokens, prompt_tokens, preempted    counts, -1 where not known
    """

    __slots__ = (
        "arrived",
        "began",
        "between",
        "chunks",
        "connection",
        "ended",
        "first",
        "first_chunk",
        "model_began",
        "model_ended",
        "preempted",
        "prompt_tokens",
        "ran",
        "socket",
        "submitted",
        "tokens",
        "worker",
    )

    def __init__(self, arrived: int) -> None:
        self.arrived = arrived
        self.began = self.submitted = self.model_began = self.model_ended = self.ended = 0
        self.first = self.first_chunk = self.chunks = self.between = 0
        self.connection = -1
        self.worker, self.ran = 0, NOT_MEASURED
        self.socket: Any = None
        self.tokens = self.prompt_tokens = self.preempted = NOT_MEASURED

    def begin(self) -> None:
        """Note that the calling thread begins to work on it."""
        self.began, self.worker, self.ran = now_ns(), _thread_id(), time.thread_time_ns()

    def parts(self, end: int) -> tuple[int, int, int, int]:
        """Return the nanoseconds of queue, preprocess, model and postprocess, one after the other; -1: not known.

        What is done between two calls of the model is counted as done after them.
        """
        began, submitted, model, after = self.began, self.submitted, self.model_began, self.model_ended
        between = self.between
        queue = began - self.arrived if began else NOT_MEASURED
        if not model:
            return queue, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED
        if submitted:
            queue = max(0, queue) + model - submitted
        preprocess = (submitted or model) - (began or self.arrived) if began or submitted else NOT_MEASURED
        if not after:
            return queue, preprocess, NOT_MEASURED, NOT_MEASURED
        # Where the model's end is all that was seen of the answer, what came after it is not known.
        postprocess = end - after + between if end > after or between else NOT_MEASURED
        return queue, preprocess, after - model - between, postprocess


# The request that the code running now works for. Tasks and threads that a framework starts for it inherit it.
current: ContextVar[Request | None] = ContextVar("aitop_request", default=None)


class Requests:
    """Notes what was answered, and keeps the number of requests under way in the ring's header."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.journal: Journal = session.journal
        # Requests under way, by the layer that counts them: a request may be in several.
        self.alive: dict[str, int] = {}
        self.due = 0
        # The CPU time that threads had used when they were done with a request, by the kernel's id.
        self.ran: dict[int, int] = {}

    @classmethod
    def of(cls, session: Session) -> Requests:
        """Return the Requests of this session, which all measures share."""
        if session.requests is None:
            session.requests = cls(session)
        return session.requests  # type: ignore[no-any-return]

    def watched(self) -> bool:
        """Return whether requests are to be measured: not after the hook has left, and not in a forked child."""
        journal = self.journal
        if journal.owner == GONE:
            # Here the hook leaves, if it was about to.
            self.session.not_owner()
            return False
        if _pid() != self.session.pid:
            journal.owner = GONE
            return False
        return True

    def count(self, layer: str, number: int) -> None:
        """Note how many requests are under way in this layer."""
        alive, ring = self.alive, self.session.ring
        if alive.get(layer) != number:
            alive[layer] = number
            if ring is not None:
                ring.write_alive(max(alive.values()))

    def answered(self, request: Request, end: int) -> None:
        """Note a request that was answered at `end`; once only."""
        if request.ended:
            return
        request.ended = end
        arrived, first, sent = request.arrived, request.first, 0
        # An answer in one piece has no first part. The first part of one may go out before its first token is there.
        if request.chunks > 1 and request.first_chunk:
            sent = max(first, request.first_chunk) - arrived
        self.note(
            (
                REQUEST_PARTS,
                *request.parts(end),
                REQUEST_MORE,
                first - arrived if first else NOT_MEASURED,
                request.preempted,
                self.used(request),
                sent,
                REQUEST,
                arrived,
                end,
                request.tokens,
                request.prompt_tokens,
            ),
            end,
        )

    def used(self, request: Request) -> int:
        """Return the CPU time that the thread which worked on a request has used for it; 0 where that is not known."""
        thread, before = request.worker, request.ran
        if not thread:
            return 0
        try:
            now = time.clock_gettime_ns(clock_of(thread))
        except OSError:
            # It has ended.
            return 0
        if len(self.ran) >= MOST_THREADS:
            self.ran.clear()
        self.ran[thread] = now
        return now - before if before >= 0 else 0

    def turned(
        self,
        start: int,
        end: int,
        *,
        idle: int,
        requests: int,
        parts: tuple[int, int, int, int],
        tokens: tuple[int, int, int, int] = (NOT_MEASURED,) * 4,
        state: tuple[int, int, int] = (NOT_MEASURED,) * 3,
    ) -> None:
        """Note a turn of an engine's loop; what `parts`, `tokens` and `state` are stands in protocol/events.py."""
        self.note(
            (
                ITERATION_PARTS,
                *parts,
                ITERATION_TOKENS,
                *tokens,
                ITERATION_STATE,
                *state,
                0,
                ITERATION,
                start,
                end,
                idle,
                requests,
            ),
            end,
        )

    def note(self, words: tuple[int, ...], end: int) -> None:
        """Add these events all at once, and tick if it is due."""
        journal = self.journal
        if len(journal.words) < MOST_WORDS:
            journal.extend(words)
        # A time of its own: while root modules are searched for, the journal's is always due.
        if end > self.due:
            self.due = end + TICK_EVERY_NS
            journal.tick(end)

    def computed(self, start: int, end: int, tokens: int = NOT_MEASURED, first: int = 0) -> None:
        """Count what a model computed as a part of the request that the calling code works for."""
        request = current.get()
        if request is None or request.submitted:
            return
        if not request.model_began:
            request.model_began = start
            thread = _thread_id()
            if request.worker not in (0, thread):
                # It was handed to this thread, which has done nothing since it was done with its last one.
                request.worker, request.ran = thread, self.ran.get(thread, NOT_MEASURED)
        elif start > request.model_ended:
            request.between += start - request.model_ended
        request.model_ended = max(end, request.model_ended)
        request.first = request.first or first
        if tokens >= 0:
            request.tokens = max(0, request.tokens) + tokens


def clock_of(thread: int) -> int:
    """Return the kernel's clock of the CPU time of a thread of this process, by its id."""
    # As the kernel's `make_thread_cpuclock` does it: of one thread (4), as the scheduler counts it (2).
    return (~thread << 3) | 6


def mono_of(wall: float, now: int) -> int:
    """Return the moment of CLOCK_MONOTONIC at a time of the wall clock (seconds), at the latest `now`, the present."""
    return min(now, now - (time.time_ns() - int(wall * 1e9)))


def whole(value: Any) -> int:
    """Return a count as an integer, -1 where it is none."""
    return value if type(value) is int else NOT_MEASURED


keep_from_compiling(Requests.watched.__code__, Requests.answered.__code__, Requests.computed.__code__, inner=True)
keep_from_compiling(Requests.count.__code__, Requests.turned.__code__, Requests.note.__code__, inner=True)
keep_from_compiling(Requests.used.__code__, Request.begin.__code__, inner=True)
