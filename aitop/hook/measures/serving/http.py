"""Measures requests of web servers: uvicorn's, gunicorn's, and those of Python's own and of werkzeug (Flask).

A request arrives when the kernel has received it: where the event loop or a worker is busy it waits in the socket,
which no server sees. Its model's part is what root modules and `generate` took in the code that works for it; where
another thread runs the model for several requests it is not known.
"""

from __future__ import annotations

import _thread
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...patches import Patches
from .names import Wrap
from .requests import Request, current, now_ns
from .server import Server

if TYPE_CHECKING:
    from ...session import Session

BODY = "http.response.body"
# Of the kernel's tcp_info: how long ago the last data came, in milliseconds.
IPPROTO_TCP, TCP_INFO, LAST_DATA_AT = 6, 11, 52
_LAST_DATA = struct.Struct("=I")
MILLISECOND = 1_000_000
LONGEST_WAIT_NS = 600 * 10**9
# The kernel counts that time in ticks of this length.
CLOCK_MONOTONIC_COARSE = 6

_ident = _thread.get_ident


class Http(Server):
    """The requests of all web servers in this process. `under_way` has those that are being answered."""

    servers = ("uvicorn", "gunicorn", "http")

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.under_way: set[Request] = set()
        # Threads that are inside of `handle_one_request`.
        self.handling: set[int] = set()
        self.tick_ns = int(time.clock_getres(CLOCK_MONOTONIC_COARSE) * 1e9)
        super().__init__(torch, patches, session)

    def wraps(self) -> dict[str, Wrap]:
        return {
            "run_asgi": lambda call: wrap_run_asgi(call, self),
            "send": lambda call: wrap_send(call, self),
            "handle_request": lambda call: wrap_call(call, self, gunicorn_socket),
            "handle_one_request": lambda call: wrap_handle(call, self),
            "parse_request": lambda call: wrap_parse(call, self),
            "run": lambda call: wrap_call(call, self, wsgiref_socket),
        }

    def arrival(self, socket: Any, now: int) -> int:
        """Return when the request on this socket arrived, at most `now`."""
        try:
            (ago,) = _LAST_DATA.unpack_from(socket.getsockopt(IPPROTO_TCP, TCP_INFO, 104), LAST_DATA_AT)
        except (AttributeError, OSError, TypeError, struct.error):
            # No TCP, or no socket that can be asked.
            return now
        waited: int = ago * MILLISECOND
        # One tick may have passed at once.
        return now - waited if self.tick_ns < waited < LONGEST_WAIT_NS else now

    def begin(self, socket: Any) -> Request | None:
        """Return a new request that came in on this socket; None within another one, or where none are measured.

        Beside a training run nobody serves: what is asked for is how the run goes.
        """
        outer, journal = current.get(), self.session.journal
        if not self.requests.watched() or journal.steps or (outer is not None and not outer.ended):
            return None
        if journal.computed is None:
            journal.computed = self.requests.computed
        request = Request(self.arrival(socket, now_ns()))
        self.under_way.add(request)
        self.requests.count("http", len(self.under_way))
        return request

    def end(self, request: Request, now: int) -> None:
        """Note that a request was answered at `now`."""
        if request.ended:
            return
        try:
            self.under_way.discard(request)
            if self.requests.watched():
                self.requests.count("http", len(self.under_way))
                self.requests.answered(request, now)
        except Exception:
            self.failed()


def wrap_run_asgi(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap uvicorn's `RequestResponseCycle.run_asgi`: called when a request's head is there, awaited in a task."""

    def run_asgi(self: Any, app: Any) -> Any:
        request = None
        try:
            request = http.begin(self.transport.get_extra_info("socket"))
        except Exception:
            http.failed()
        return original(self, app) if request is None else run(self, app, request)

    async def run(self: Any, app: Any, request: Request) -> Any:
        request.began = now_ns()
        # The context is the task's own.
        current.set(request)
        try:
            return await original(self, app)
        finally:
            http.end(request, now_ns())

    return run_asgi


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
                    # What the application does after its answer holds nobody up.
                    http.end(request, now_ns())
        except Exception:
            http.failed()
        return original(self, message)

    return send


def wrap_call(original: Callable[..., Any], http: Http, socket_of: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that answers one request; `socket_of` returns its socket from the method's arguments."""

    def handle_request(*args: Any, **kwargs: Any) -> Any:
        request = None
        try:
            request = http.begin(socket_of(*args))
            if request is not None:
                request.began = now_ns()
                current.set(request)
        except Exception:
            http.failed()
        try:
            return original(*args, **kwargs)
        finally:
            if request is not None:
                http.end(request, now_ns())
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
        try:
            return original(*args, **kwargs)
        finally:
            http.handling.discard(thread)
            request = current.get()
            if request is not None:
                http.end(request, now_ns())
                current.set(None)

    return handle_one_request


def wrap_parse(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap `BaseHTTPRequestHandler.parse_request`, called when the first line of a request is there."""

    def parse_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _ident() in http.handling:
                request = http.begin(self.connection)
                if request is not None:
                    request.began = now_ns()
                    current.set(request)
        except Exception:
            http.failed()
        return original(self, *args, **kwargs)

    return parse_request
