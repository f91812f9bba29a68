"""The requests in flight in this process, and the events of those that were answered. All times are in nanoseconds.

Where a request passes through several measured layers (a web server, and an engine that it calls), the outermost layer
makes the record and the inner one adds what it knows.
"""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable
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
from ...journal import GONE, MOST_WORDS, TICK_EVERY_NS, Journal

if TYPE_CHECKING:
    from ...session import Session

MOST_THREADS = 1024
# Nanoseconds, and parts of a whole, in the units of events.
SECOND, MILLIONTHS = 1_000_000_000, 1_000_000

now_ns = time.monotonic_ns
_thread_id = _thread.get_native_id
_pid = os.getpid


class Request:
    """A request in flight. Timestamps are CLOCK_MONOTONIC, 0 if not reached yet or not known.

    arrived         when it arrived
    began           when this process began to work on it; the time before is queue time
    worker, ran     kernel id of the thread that works on it (0: not known), and the CPU time that the thread had used
                    before (-1: not known)
    asked           when the server called the user's code that calls the model, where that is seen
    submitted       when it was handed to an engine; from then until `model_began` it is in a queue again
    model_began, model_ended    start of the model's first call and end of its last one
    between         time between the model's calls, in which code that generates token by token does its own work
    first           when its first token was there
    chunks          number of parts of the answer that were sent; `first_chunk` is when the first was
    ended           when it was answered
    connection      file descriptor of its socket if an event loop took it up, else -1
    number          which one it is of those that an event loop took up, from 1
    beside          others were under way in the event loop when it took this one up
    shared          the thread that began it has greenlets, one of which worked on another request meanwhile
    streams         its answer had begun before the model computed for it
    socket          its connection's socket while a thread works on it, else None
    tokens, prompt_tokens, preempted    tokens generated, tokens of the prompt, preemptions; -1: not known
    """

    def __init__(self, arrived: int) -> None:
        self.arrived = arrived
        self.began = self.asked = self.submitted = self.model_began = self.model_ended = self.ended = 0
        self.first = self.first_chunk = self.chunks = self.between = 0
        self.connection = -1
        self.number = 0
        self.streams = self.beside = self.shared = False
        self.worker, self.ran = 0, NOT_MEASURED
        self.socket: Any = None
        self.tokens = self.prompt_tokens = self.preempted = NOT_MEASURED

    def begin(self) -> None:
        """Note that the calling thread begins to work on the request."""
        self.began, self.worker, self.ran = now_ns(), _thread_id(), time.thread_time_ns()

    def sends_part(self) -> None:
        """Note that a part of the answer is sent."""
        self.chunks += 1
        self.first_chunk = self.first_chunk or now_ns()

    def predicted(self, call: Request, end: int) -> None:
        """Take over the model's calls in the user's code that ended at `end`; without any, the code's own times."""
        if call.model_began:
            self.model_began, self.model_ended, self.between = call.model_began, call.model_ended, call.between
        else:
            self.model_began, self.model_ended = self.asked, end

    def parts(self, end: int) -> tuple[int, int, int, int]:
        """Return the nanoseconds in queue, preprocess, model and postprocess of a request answered at `end`.

        -1: not known. The parts do not overlap. Time between two calls of the model counts as postprocess.
        """
        began, model, after, between = self.began, self.model_began, self.model_ended, self.between
        # Code that runs a model before it hands the request to an engine waits there between two calls of the model.
        submitted = self.submitted if self.submitted <= model else 0
        queue = began - self.arrived if began else NOT_MEASURED
        if not model:
            return queue, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED
        if submitted:
            queue = max(0, queue) + model - submitted
        preprocess = (submitted or model) - (began or self.arrived) if began or submitted else NOT_MEASURED
        if not after:
            return queue, preprocess, NOT_MEASURED, NOT_MEASURED
        # If the answer is taken to end with the model, it is not known what came after that.
        postprocess = end - after + between if end > after or between else NOT_MEASURED
        return queue, preprocess, after - model - between, postprocess


# The request that the running code works on. Tasks and threads that a framework starts for it inherit the value.
current: ContextVar[Request | None] = ContextVar("aitop_request", default=None)


class Requests:
    """Notes answered requests and engine iterations, and writes the number of requests in flight to the ring."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.journal: Journal = session.journal
        # Requests in flight, by the layer that counts them. A request may be in several layers.
        self.alive: dict[str, int] = {}
        self.due = 0
        # Is called with a request whose answer had begun before the model computed for it.
        self.resumed: Callable[[Request], None] | None = None
        # The CPU time that each thread had used when it finished its last request, by the kernel's thread id.
        self.ran: dict[int, int] = {}

    @classmethod
    def of(cls, session: Session) -> Requests:
        """Return the Requests of this session, which all measures share."""
        if session.requests is None:
            session.requests = cls(session)
        return session.requests  # type: ignore[no-any-return]

    def watched(self) -> bool:
        """Return whether requests are to be measured. They are not once the hook has left, nor in a forked child."""
        journal = self.journal
        if journal.owner == GONE:
            # This call makes the hook leave if it was about to.
            self.session.not_owner()
            return False
        if _pid() != self.session.pid:
            journal.owner = GONE
            return False
        return True

    def count(self, layer: str, number: int) -> None:
        """Note how many requests are in flight in this layer."""
        self.alive[layer] = number
        self.write_alive()

    def forget(self, layer: str) -> None:
        """Forget a layer that is no longer measured."""
        self.alive.pop(layer, None)
        self.write_alive()

    def write_alive(self) -> None:
        """Write the largest of all layers' numbers to the ring: how many requests are in flight."""
        ring = self.session.ring
        if ring is not None:
            ring.write_alive(max(self.alive.values(), default=NOT_MEASURED))

    def answered(self, request: Request, end: int) -> None:
        """Note that a request was answered at `end`. Has no effect if it was answered before."""
        if request.ended:
            return
        request.ended = end
        arrived, first, sent = request.arrived, request.first, 0
        # Only a streamed answer has a first chunk. It may be sent before the first token is there.
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
        """Return the CPU time that the thread which worked on a request used for it; 0 if not known."""
        thread, before = request.worker, request.ran
        if not thread:
            return 0
        try:
            now = time.clock_gettime_ns(clock_of(thread))
        except OSError:
            # The thread has ended.
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
        """Note an iteration (turn) of an engine's loop. See ITERATION in protocol/events.py for the arguments."""
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
        """Add these events in one piece, and tick if a tick is due."""
        journal = self.journal
        if len(journal.words) < MOST_WORDS:
            journal.extend(words)
        # Not the journal's `due`: while root modules are searched for, that is always over.
        if end > self.due:
            self.due = end + TICK_EVERY_NS
            journal.tick(end)

    def computed(self, start: int, end: int, tokens: int = NOT_MEASURED, first: int = 0) -> None:
        """Add a computation of a model to the request that the calling code works on.

        `tokens` were generated in it (-1: not known), the first of them at `first` (0: not known).
        """
        request = current.get()
        if request is None or request.submitted:
            return
        if not request.model_began:
            request.model_began = start
            if request.streams and self.resumed is not None:
                self.resumed(request)
            thread = _thread_id()
            if request.worker not in (0, thread):
                # The request was handed to this thread, which was idle since it finished its last request.
                request.worker, request.ran = thread, self.ran.get(thread, NOT_MEASURED)
        elif start > request.model_ended:
            request.between += start - request.model_ended
        request.model_ended = max(end, request.model_ended)
        request.first = request.first or first
        if tokens >= 0:
            request.tokens = max(0, request.tokens) + tokens


def clock_of(thread: int) -> int:
    """Return the id of the kernel's CPU clock of a thread of this process, from the kernel's thread id."""
    # As in the kernel's `make_thread_cpuclock`: a per-thread clock (4) with the scheduler's count (2).
    return (~thread << 3) | 6


keep_from_compiling(Requests.watched.__code__, Requests.answered.__code__, Requests.computed.__code__, inner=True)
keep_from_compiling(Requests.count.__code__, Requests.turned.__code__, Requests.note.__code__, inner=True)
keep_from_compiling(Requests.used.__code__, Request.begin.__code__, inner=True)
