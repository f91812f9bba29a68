"""Measures requests of web servers: uvicorn's, aiohttp's, gunicorn's, Python's own, and werkzeug's (Flask).

A request arrives when the kernel has received it: where the event loop or a worker is busy it waits in the socket,
which no server sees. It ends when its answer is with the kernel. Its model's part is what root modules and `generate`
took in the code that works for it; where another thread runs the model for several requests it is not known.
"""

from __future__ import annotations

import _thread
import math
import struct
import time
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...patches import Patches
from .earlier import Earlier
from .names import Wrap
from .requests import Request, current, now_ns
from .server import Server

if TYPE_CHECKING:
    from ...session import Session

BODY = "http.response.body"
# Of the kernel's tcp_info: how long ago the last data was sent and came, in milliseconds.
IPPROTO_TCP, TCP_INFO, SENT_AT, CAME_AT = 6, 11, 44, 52
_AGO = struct.Struct("=I")
MILLISECOND = 1_000_000
LONGEST_WAIT_NS = 600 * 10**9
# The kernel counts that time in ticks; this clock goes on with them.
CLOCK_MONOTONIC_COARSE = 6

# An event loop that takes a request up so soon after it came back from a handler has not waited for it.
AT_ONCE_NS = 500_000
# Where a distribution is cut off at more than this many means, that makes no difference.
MOST_CUT = 50.0
# Of this many of the last requests is learnt how long they wait for the loop.
LEARNT_FROM = 128

_ident = _thread.get_ident
coarse_ns = time.clock_gettime_ns


class Ticks:
    """Tells how long ago the kernel's last tick was, from its coarse clock, which changes at each tick.

    What that clock shows may lie `behind` the tick. By how much is learnt: the last tick is at most one `length` ago.
    """

    __slots__ = ("behind", "length")

    def __init__(self) -> None:
        self.length = int(time.clock_getres(CLOCK_MONOTONIC_COARSE) * 1e9)
        self.behind = 0

    def since(self, now: int) -> int:
        """Return the nanoseconds since the last tick."""
        shown = now - coarse_ns(CLOCK_MONOTONIC_COARSE)
        self.behind = min(shown, max(self.behind, shown - self.length))
        return shown - self.behind


class Loop:
    """Estimates when requests arrived that the event loop of this process takes up.

    While a handler runs, the loop reads no socket. So a request that it takes up right afterwards arrived after it last
    took one up, and after the answer to the request before it on the same connection. When exactly, the kernel knows
    only in ticks, of 4 ms on most machines. That is too coarse for one request, but right on average: it tells for
    which part of the time in which it could have come a request usually waits.

    Moments are in nanoseconds.

    took        when it took up the last request, `since` when it did so before the last handler ran
    ran         when a handler last gave an answer; `answers` by connection (the number of its descriptor)
    waited      how long the last LEARNT_FROM requests waited by the kernel's ticks
    held        how long the times were in which they could have come
    """

    __slots__ = ("answers", "at_once", "held", "ran", "since", "tick_ns", "took", "waited")

    def __init__(self, tick_ns: int) -> None:
        self.tick_ns = tick_ns
        self.took = self.since = self.ran = 0
        self.answers: dict[int, int] = {}
        self.at_once = False
        self.waited = self.held = 0.0

    def answered(self, now: int, connection: int) -> None:
        """Note that a handler has given its answer."""
        self.ran = now
        if connection >= 0:
            self.answers[connection] = now

    def arrival(self, now: int, ticks_ns: int, phase: int, connection: int = -1) -> int:
        """Return when a request arrived that is taken up now.

        The kernel has counted `ticks_ns` of whole ticks since then, the last of which was `phase` ago.
        """
        if self.ran >= self.took:
            # A handler ran since the last one was taken up; else both were there when the loop looked.
            self.since, self.at_once = self.took, now - self.ran < AT_ONCE_NS
        self.took = now
        held = now - max(self.since, self.answers.get(connection, 0))
        if not self.at_once or not self.since or ticks_ns > held + self.tick_ns:
            # One tick may have passed at once.
            return now - ticks_ns if ticks_ns > self.tick_ns else now
        self.waited += ticks_ns - self.waited / LEARNT_FROM
        self.held += held - self.held / LEARNT_FROM
        usual = held * self.waited / self.held
        # It came in the tick's time before the first of these ticks.
        least = phase + ticks_ns - self.tick_ns if ticks_ns else 0
        return now - int(min(max(usual, least), phase + ticks_ns, held))


class Threads:
    """Estimates when requests arrived that threads take up, each of one connection or from a pool.

    The kernel counts in ticks how long a request has waited in its socket. The mean of many such counts is the usual
    wait. Waits are taken to be distributed exponentially around it, within the tick in which the request came.
    """

    __slots__ = ("mean", "tick_ns")

    def __init__(self, tick_ns: int) -> None:
        self.tick_ns = tick_ns
        self.mean = 0.0

    def arrival(self, now: int, ticks_ns: int, phase: int) -> int:
        """Return when a request arrived that is taken up now; see `Loop.arrival`."""
        self.mean += (ticks_ns - self.mean) / LEARNT_FROM
        least = phase + ticks_ns - self.tick_ns if ticks_ns else 0
        return now - int(least + _usual_within(phase + ticks_ns - least, self.mean))


def _usual_within(width: int, mean: float) -> float:
    """Return the mean of those values of an exponential distribution with this `mean` that are less than `width`."""
    if mean <= 0.0 or width <= 0:
        return 0.0
    cut = width / mean
    return mean - width / math.expm1(cut) if cut < MOST_CUT else mean


class Http(Server):
    """The requests of all web servers in this process. `under_way` has those that are being answered.

    Those in `earlier` began before the hook came: they are counted, and not measured.
    """

    servers = ("uvicorn", "aiohttp", "gunicorn", "http")

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.under_way: set[Request] = set()
        # Threads that are inside of `handle_one_request`.
        self.handling: set[int] = set()
        self.ticks = Ticks()
        # When the first data came of what is not begun yet, by connection.
        self.came: dict[int, int] = {}
        self.loop, self.threads = Loop(self.ticks.length), Threads(self.ticks.length)
        # What answers a request in a task or in a thread, as it is without the hook.
        self.in_tasks, self.in_threads = set[CodeType](), set[CodeType]()
        self.earlier = Earlier(set(), set(), self.count)
        super().__init__(torch, patches, session)
        # What is imported later had no request before the hook came.
        self.earlier = Earlier(self.in_tasks.copy(), self.in_threads.copy(), self.count)
        if self.earlier.tasks:
            self.count()

    def wraps(self) -> dict[str, Wrap]:
        return {
            "run_asgi": lambda call: wrap_in_loop(noted(call, self.in_tasks), self),
            # Its tasks are connections, which may have no request.
            "data_received": lambda call: wrap_received(call, self),
            "_handle_request": lambda call: wrap_in_loop(call, self),
            "send": lambda call: wrap_send(call, self),
            "handle_request": lambda call: wrap_call(noted(call, self.in_threads), self, gunicorn_socket),
            "handle_one_request": lambda call: wrap_handle(noted(call, self.in_threads), self),
            "parse_request": lambda call: wrap_parse(call, self),
            "run": lambda call: wrap_call(noted(call, self.in_threads), self, wsgiref_socket),
        }

    def over(self) -> None:
        self.earlier.over()

    def count(self) -> None:
        """Note how many requests are under way, unless there may be others than those that are known."""
        if not self.requests.watched() or self.session.journal.steps:
            return
        earlier = self.earlier.number(now_ns())
        if earlier is not None:
            self.requests.count("http", len(self.under_way) + earlier)

    def begin(self, socket: Any, loop: Loop | None = None) -> Request | None:
        """Return a new request that came in on this socket; None within another one, or where none are measured.

        `loop` takes it up; None where a thread of its own does.
        Beside a training run nobody serves: what is asked for is how the run goes.
        """
        outer, journal = current.get(), self.session.journal
        if not self.requests.watched() or journal.steps or (outer is not None and not outer.ended):
            return None
        if journal.computed is None:
            journal.computed = self.requests.computed
        # A thread that begins a request is done with any from before the hook; those of this loop are looked for now.
        self.earlier.threads.discard(_ident())
        if loop is not None:
            self.earlier.look_at_loop()
            connection = descriptor(socket)
            request = Request(self.came.pop(connection, 0) or self.arrival(socket, connection))
            request.connection = connection
        else:
            now, ticks_ns = now_ns(), ticks_since(socket)
            request = Request(self.threads.arrival(now, ticks_ns, self.ticks.since(now)))
            request.socket = socket
        self.under_way.add(request)
        self.count()
        return request

    def arrival(self, socket: Any, connection: int) -> int:
        """Return when the data came that the event loop has just read."""
        now, ticks_ns = now_ns(), ticks_since(socket)
        return self.loop.arrival(now, ticks_ns, self.ticks.since(now), connection)

    def end_in_thread(self, request: Request) -> None:
        """Note that a thread is done with a request. What it did after the last of its answer was sent holds nobody up,
        if that took more than a tick.
        """
        ended = now = now_ns()
        try:
            ticks_ns, tick_ns = ticks_since(request.socket, SENT_AT), self.ticks.length
            sent = now - (ticks_ns + self.ticks.since(now) - tick_ns // 2)
            if ticks_ns > tick_ns and sent > max(request.began, request.model_ended):
                ended = sent
        except Exception:
            self.failed()
        request.socket = None
        self.end(request, ended)

    def end(self, request: Request, now: int) -> None:
        """Note that a request was answered at `now`."""
        if request.ended:
            return
        try:
            self.under_way.discard(request)
            if self.requests.watched():
                self.count()
                self.requests.answered(request, now)
        except Exception:
            self.failed()


def noted(call: Any, codes: set[CodeType]) -> Any:
    """Return the call, and add its code, where it has any, to `codes`."""
    code = getattr(call, "__code__", None)
    if code is not None:
        codes.add(code)
    return call


def ticks_since(socket: Any, at: int = CAME_AT) -> int:
    """Return how long ago the last data came (or what stands there in tcp_info), in whole ticks of the kernel
    (nanoseconds); 0 where it does not say.
    """
    try:
        (ago,) = _AGO.unpack_from(socket.getsockopt(IPPROTO_TCP, TCP_INFO, 104), at)
    except (AttributeError, OSError, TypeError, struct.error):
        # No TCP, or no socket that can be asked.
        return 0
    waited: int = ago * MILLISECOND
    return waited if waited < LONGEST_WAIT_NS else 0


def descriptor(socket: Any) -> int:
    """Return the number of a socket's descriptor, -1 where it has none."""
    try:
        number: int = socket.fileno()
        return number
    except (AttributeError, OSError):
        return -1


def wrap_in_loop(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap a coroutine method that answers a request in an event loop, called when its head is there: uvicorn's
    `RequestResponseCycle.run_asgi`, aiohttp's `RequestHandler._handle_request`.
    """

    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = None
        try:
            request = http.begin(self.transport.get_extra_info("socket"), http.loop)
        except Exception:
            http.failed()
        coroutine = original(self, *args, **kwargs)
        return coroutine if request is None else within(coroutine, request)

    async def within(coroutine: Any, request: Request) -> Any:
        request.begin()
        # The context is the task's own, which may go on to the next request.
        current.set(request)
        try:
            return await coroutine
        finally:
            current.set(None)
            # The rest of its own data, if it came later.
            http.came.pop(request.connection, None)
            if not request.ended:
                now = now_ns()
                http.end(request, now)
                http.loop.answered(now, request.connection)

    return answer


def wrap_received(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap aiohttp's `RequestHandler.data_received`: the handler begins in a later turn of the loop."""

    def data_received(self: Any, data: Any) -> Any:
        try:
            socket = self.transport.get_extra_info("socket")
            connection = descriptor(socket)
            if http.requests.watched() and connection not in http.came:
                http.came[connection] = http.arrival(socket, connection)
        except Exception:
            http.failed()
        return original(self, data)

    return data_received


def wrap_send(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap uvicorn's `RequestResponseCycle.send`. Of a message only its type, and whether it is empty, is read."""

    def send(self: Any, message: Any) -> Any:
        try:
            request = current.get()
            if request is not None and not request.ended and message["type"] == BODY:
                if message.get("body"):
                    request.chunks += 1
                    request.first_chunk = request.first_chunk or now_ns()
                if not message.get("more_body", False):
                    return last(self, message, request)
        except Exception:
            http.failed()
        return original(self, message)

    async def last(self: Any, message: Any, request: Request) -> Any:
        try:
            return await original(self, message)
        finally:
            # What the application does after its answer holds nobody up.
            now = now_ns()
            http.end(request, now)
            http.loop.answered(now, request.connection)

    return send


def wrap_call(original: Callable[..., Any], http: Http, socket_of: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that answers one request; `socket_of` returns its socket from the method's arguments."""

    def handle_request(*args: Any, **kwargs: Any) -> Any:
        request = None
        try:
            request = http.begin(socket_of(*args))
            if request is not None:
                request.begin()
                current.set(request)
        except Exception:
            http.failed()
        try:
            return original(*args, **kwargs)
        finally:
            if request is not None:
                http.end_in_thread(request)
                current.set(None)

    return handle_request


def gunicorn_socket(worker: Any, first: Any, second: Any, *rest: Any) -> Any:
    """Return the socket: a SyncWorker gets `(listener, req, client, addr)`, a ThreadWorker `(req, conn)`."""
    return rest[0] if rest else second.sock


def wsgiref_socket(handler: Any, *rest: Any) -> Any:
    """Return the socket of wsgiref's `BaseHandler.run(application)`."""
    return handler.request_handler.connection


def wrap_handle(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap `BaseHTTPRequestHandler.handle_one_request`, which waits for a request and answers it."""

    def handle_one_request(*args: Any, **kwargs: Any) -> Any:
        thread = _ident()
        http.handling.add(thread)
        http.earlier.threads.discard(thread)
        try:
            return original(*args, **kwargs)
        finally:
            http.handling.discard(thread)
            request = current.get()
            if request is not None:
                http.end_in_thread(request)
                current.set(None)

    return handle_one_request


def wrap_parse(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap `BaseHTTPRequestHandler.parse_request`, called when the first line of a request is there."""

    def parse_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _ident() in http.handling:
                request = http.begin(self.connection)
                if request is not None:
                    request.begin()
                    current.set(request)
        except Exception:
            http.failed()
        return original(self, *args, **kwargs)

    return parse_request
