"""Measures requests of web servers, such as uvicorn, gunicorn, gRPC and Ray Serve (`servers` of `Http` has all).

A request arrives when the kernel has received it. While the event loop or the worker is busy it waits in the socket,
where no server sees it. It ends when its answer has been handed to the kernel. Its model time is the time in root
modules and `generate` in the code that works on it; it is not known if another thread runs the model for several
requests.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from ....protocol.events import NOT_MEASURED
from ...patches import Patches
from .arrival import SENT_AT, Loop, Threads, Ticks, ticks_since
from .earlier import Earlier
from .names import Wrap
from .requests import Request, current, now_ns
from .server import Server

if TYPE_CHECKING:
    from ...session import Session

BODY = "http.response.body"
_ident, _thread_id = _thread.get_ident, _thread.get_native_id


class Http(Server):
    """The requests of all web servers in this process. `under_way` has those that are being answered.

    Requests in `earlier` began before the hook came in: they are counted but not measured.
    """

    servers = (
        "uvicorn", "starlette", "quart", "aiohttp", "tornado", "grpc", "ray", "waitress", "gunicorn", "http"
    )  # fmt: skip
    layer = "http"

    def __init__(self, torch: Any, patches: Patches, session: Session) -> None:
        self.under_way: set[Request] = set()
        # Threads that are inside of `handle_one_request`.
        self.handling: set[int] = set()
        self.ticks = Ticks()
        # When the head of a request that has not begun yet was complete, by connection (file descriptor).
        self.came: dict[int, int] = {}
        # Requests that gRPC has queued for its pool of threads, by the id of the event that they came with.
        self.queued: dict[int, Request] = {}
        # The thread that runs the event loop, by the kernel's thread id.
        self.loop_thread = 0
        # The requests that each thread works on, by the kernel's thread id: more than one only where it has greenlets.
        self.at_work: dict[int, list[Request]] = {}
        # How many requests the event loop has taken up.
        self.taken_up = 0
        self.loop, self.threads = Loop(self.ticks.length), Threads(self.ticks.length)
        # Code objects of the original functions that answer a request in a task or in a thread.
        self.in_tasks, self.in_threads = set[CodeType](), set[CodeType]()
        self.earlier = Earlier(set(), set(), self.count)
        super().__init__(torch, patches, session)
        self.requests.resumed = self.resumed
        # Copies: servers that are imported later had no request before the hook came in.
        self.earlier = Earlier(self.in_tasks.copy(), self.in_threads.copy(), self.count)
        if self.earlier.tasks:
            self.count()

    def wraps(self) -> dict[str, Wrap]:
        return {
            "run_asgi": lambda call: wrap_in_loop(noted(call, self.in_tasks), self, transport_socket),
            # Not `noted`: aiohttp's tasks are connections, which may have no request.
            "data_received": lambda call: wrap_received(call, self),
            "_handle_request": lambda call: wrap_in_loop(call, self, transport_socket),
            "__call__": lambda call: wrap_application(call, self),
            "_execute": lambda call: wrap_in_loop(noted(call, self.in_tasks), self, tornado_socket),
            "flush": lambda call: wrap_flush(call, self),
            "_handle_exceptions": lambda call: wrap_in_loop(noted(call, self.in_tasks), self, no_socket),
            "_handle_with_method_handler": lambda call: wrap_queued(call, self),
            "_unary_response_in_pool": lambda call: wrap_pooled(noted(call, self.in_threads), self),
            "_stream_response_in_pool": lambda call: wrap_pooled(noted(call, self.in_threads), self),
            "_wrap_request": lambda call: wrap_around(call, self),
            "_call_func_or_gen": lambda call: wrap_user_code(call, self),
            "service": lambda call: wrap_call(noted(call, self.in_threads), self, waitress_socket),
            "send": lambda call: wrap_send(call, self),
            "prepare": lambda call: wrap_prepare(call, self),
            "write": lambda call: wrap_write(call, self),
            "handle_request": lambda call: wrap_call(noted(call, self.in_threads), self, gunicorn_socket),
            "handle_one_request": lambda call: wrap_handle(noted(call, self.in_threads), self),
            "parse_request": lambda call: wrap_parse(call, self),
            "run": lambda call: wrap_call(noted(call, self.in_threads), self, wsgiref_socket),
        }

    def over(self) -> None:
        self.earlier.over()

    def count(self) -> None:
        """Note how many requests are in flight, unless there may be some that are not known."""
        if not self.requests.watched():
            return
        earlier, number = self.earlier.number(now_ns()), -1
        # Again if another thread has ended a request meanwhile: it may have written its lower number first.
        while earlier is not None and number != len(self.under_way):
            number = len(self.under_way)
            self.in_flight(number + earlier)

    def begin(self, socket: Any, loop: Loop | None = None) -> Request | None:
        """Return a new request that came in on this socket; None inside another request, or where none are measured.

        `loop` is the event loop that takes it up, None if a thread does. Requests to a process that trains are not
        measured: they do not use the model, but ask how the run is going.
        """
        outer, journal, trains = current.get(), self.session.journal, now_ns() < self.session.trains_until
        if not self.requests.watched() or trains or (outer is not None and not outer.ended):
            return None
        if journal.computed is None:
            journal.computed = self.requests.computed
        # A thread that begins a request has finished any from before the hook. Those of a loop are searched for now.
        self.earlier.threads.discard(_ident())
        if loop is not None:
            self.earlier.look_at_loop()
            connection = descriptor(socket)
            request = Request(self.came.pop(connection, 0) or self.arrival(socket, connection))
            self.taken_up += 1
            request.connection, request.number, request.beside = connection, self.taken_up, bool(self.under_way)
        else:
            now, ticks_ns = now_ns(), ticks_since(socket)
            request = Request(self.threads.arrival(now, ticks_ns, self.ticks.since(now)))
            request.socket = socket
        self.under_way.add(request)
        self.count()
        return request

    def never_began(self, request: Request) -> None:
        """Forget a request whose task was cancelled before its first step."""
        try:
            self.under_way.discard(request)
            self.count()
        except Exception:
            self.failed()

    def arrival(self, socket: Any, connection: int) -> int:
        """Return when the data arrived that the event loop has just read."""
        now, ticks_ns = now_ns(), ticks_since(socket)
        return self.loop.arrival(now, ticks_ns, self.ticks.since(now), connection)

    def begin_in_thread(self, socket: Any) -> Request | None:
        """Return a new request that this thread begins to work on; see `begin`."""
        request = self.begin(socket)
        if request is not None:
            request.begin()
            current.set(request)
            others = self.at_work.setdefault(request.worker, [])
            for other in others:
                other.shared = request.shared = True
            others.append(request)
        return request

    def streams(self, request: Request) -> None:
        """Note that an answer has begun that may go on for as long as somebody listens.

        If the model has not computed for it, as for a page that waits for events, nobody waits for it to get on.
        """
        if not request.model_began and not request.streams:
            request.streams = True
            self.under_way.discard(request)
            self.count()

    def resumed(self, request: Request) -> None:
        """Note that the model computes for an answer that had begun: now somebody waits for it to get on."""
        try:
            self.under_way.add(request)
            # Asked only now: the event loop may end it at any moment.
            if request.ended:
                self.under_way.discard(request)
            self.count()
        except Exception:
            self.failed()

    def end_in_thread(self, request: Request) -> None:
        """Note that a thread has finished a request.

        The request ended when the kernel sent the last of its answer, if that is more than a tick ago: what the thread
        did after that kept no client waiting.
        """
        ended = now = now_ns()
        try:
            thread = _thread_id()
            others = self.at_work.get(thread, [])
            if request in others:
                others.remove(request)
                if not others:
                    del self.at_work[thread]
            ticks_ns, tick_ns = ticks_since(request.socket, SENT_AT), self.ticks.length
            sent = now - (ticks_ns + self.ticks.since(now) - tick_ns // 2)
            if ticks_ns > tick_ns and sent > max(request.began, request.model_ended):
                ended = sent
        except Exception:
            self.failed()
        request.socket = None
        self.end(request, ended)
        current.set(None)

    def end_in_loop(self, request: Request) -> None:
        """Note that the event loop's handler has given its answer."""
        if not request.ended:
            now = now_ns()
            self.end(request, now)
            self.loop.answered(now, request.connection)

    def end(self, request: Request, now: int) -> None:
        """Note that a request was answered at `now`."""
        if request.ended:
            return
        try:
            self.under_way.discard(request)
            awaited = request.worker == self.loop_thread and (request.beside or self.taken_up > request.number)
            if awaited or request.shared:
                # While it awaited something, its thread may have worked on others: how long on which is not known.
                request.ran = NOT_MEASURED
            if self.requests.watched():
                self.requests.answered(request, now)
                # Again: until it counted as answered, another thread may have found it going on.
                self.under_way.discard(request)
                self.count()
        except Exception:
            self.failed()


def noted(call: Any, codes: set[CodeType]) -> Any:
    """Return `call`, and add its code object to `codes` if it has one."""
    code = getattr(call, "__code__", None)
    if code is not None:
        codes.add(code)
    return call


def descriptor(socket: Any) -> int:
    """Return a socket's file descriptor, -1 if it has none."""
    try:
        number: int = socket.fileno()
        return number
    except (AttributeError, OSError):
        return -1


class Pending:
    """Belongs to the coroutine that answers a request, and notices if that is freed without having run."""

    __slots__ = ("http", "request")

    def __init__(self, request: Request, http: Http) -> None:
        self.request, self.http = request, http

    def __del__(self) -> None:
        if not self.request.began:
            self.http.never_began(self.request)


def wrap_in_loop(original: Callable[..., Any], http: Http, socket_of: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a coroutine function that answers a request in an event loop, called when the request's head has arrived.

    These are uvicorn's `RequestResponseCycle.run_asgi`, aiohttp's `RequestHandler._handle_request`, tornado's
    `RequestHandler._execute`, and the function of `grpc.aio` around the coroutine of each call. `socket_of` returns the
    socket, from the function's arguments.
    """

    def answer(*args: Any, **kwargs: Any) -> Any:
        request = None
        try:
            request = http.begin(socket_of(*args), http.loop)
        except Exception:
            http.failed()
        if request is None:
            return original(*args, **kwargs)
        return within(request, Pending(request, http), args, kwargs)

    # It calls the original itself: a task may be cancelled before its first step, and would leave a second coroutine.
    async def within(request: Request, pending: Pending, args: Any, kwargs: Any) -> Any:
        request.begin()
        http.loop_thread = request.worker
        # This sets it in the context of the task. It is reset below, as the task may go on to the next request.
        current.set(request)
        try:
            return await original(*args, **kwargs)
        finally:
            current.set(None)
            http.end_in_loop(request)

    return answer


def wrap_application(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap the coroutine function of an ASGI application: the request of a server that is not measured itself.

    Its socket is not known, so neither is when the request arrived.
    """
    answer = wrap_in_loop(original, http, no_socket)
    sent = wrap_send(lambda send, message: send(message), http)

    def application(self: Any, scope: Any, receive: Any, send: Any) -> Any:
        measured = False
        try:
            outer = current.get()
            measured = scope["type"] == "http" and (outer is None or bool(outer.ended))
        except Exception:
            http.failed()
        if measured:
            return answer(self, scope, receive, lambda message: sent(send, message))
        return original(self, scope, receive, send)

    return application


def transport_socket(answering: Any, *rest: Any) -> Any:
    """Return the socket of an object that has asyncio's transport, as those of uvicorn and aiohttp do."""
    return answering.transport.get_extra_info("socket")


def tornado_socket(handler: Any, *rest: Any) -> Any:
    """Return the socket of tornado's `RequestHandler`; None where its stream has none."""
    return getattr(getattr(handler.request.connection, "stream", None), "socket", None)


def no_socket(*args: Any) -> None:
    """Return None: gRPC's sockets are those of its C++ core."""


def wrap_received(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap aiohttp's `RequestHandler.data_received`, because the handler begins only in a later turn of the loop."""

    def data_received(self: Any, data: Any) -> Any:
        now, socket = 0, None
        try:
            if http.requests.watched():
                socket, before = self.transport.get_extra_info("socket"), len(self._messages)
                now, ticks_ns = now_ns(), ticks_since(socket)
                phase = http.ticks.since(now)
        except Exception:
            http.failed()
        result = original(self, data)
        try:
            # Other data is the rest of a body, which may come when its request was answered, or half a head.
            if now and len(self._messages) > before:
                connection = descriptor(socket)
                # If none was waiting, what is there is of a connection that ended, and had the same number.
                if not before or connection not in http.came:
                    http.came[connection] = http.loop.arrival(now, ticks_ns, phase, connection)
        except Exception:
            http.failed()
        return result

    return data_received


def wrap_send(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap uvicorn's `RequestResponseCycle.send`. Of a message only the type is read, and whether its body is empty."""

    def send(self: Any, message: Any) -> Any:
        try:
            request = current.get()
            if request is not None and not request.ended and message["type"] == BODY:
                if message.get("body"):
                    request.sends_part()
                if not message.get("more_body", False):
                    return last(self, message, request)
                http.streams(request)
        except Exception:
            http.failed()
        return original(self, message)

    async def last(self: Any, message: Any, request: Request) -> Any:
        try:
            return await original(self, message)
        finally:
            # What the application does after its answer keeps no client waiting.
            http.end_in_loop(request)

    return send


def wrap_prepare(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap the method of aiohttp's responses that sends the head: the answer of a stream, or of a websocket, begins."""

    def prepare(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            request = current.get()
            # What has a body sends it at once.
            if request is not None and not request.ended and not hasattr(type(self), "body"):
                http.streams(request)
                if hasattr(type(self), "receive"):
                    # How long a websocket is open is no latency.
                    request.ended = now_ns()
                    http.under_way.discard(request)
                    http.count()
        except Exception:
            http.failed()
        return original(self, *args, **kwargs)

    return prepare


def wrap_write(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap the method of aiohttp's streams that sends a part of the answer. The part is not read."""

    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            request = current.get()
            if request is not None and not request.ended:
                request.sends_part()
        except Exception:
            http.failed()
        return original(self, *args, **kwargs)

    return write


def wrap_flush(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap tornado's `RequestHandler.flush`, which sends what was written, at last with `include_footers`."""

    def flush(self: Any, include_footers: bool = False, *args: Any, **kwargs: Any) -> Any:
        try:
            request = current.get()
            if request is not None and not request.ended:
                request.sends_part()
                if not include_footers:
                    http.streams(request)
        except Exception:
            http.failed()
        return original(self, include_footers, *args, **kwargs)

    return flush


def wrap_queued(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap the function of gRPC's serving thread that hands a call, which has just come in, to a pool of threads."""

    def queued(event: Any, *args: Any, **kwargs: Any) -> Any:
        request = None
        try:
            request = http.begin(None)
            if request is not None:
                http.queued[id(event)] = request
        except Exception:
            http.failed()
        try:
            return original(event, *args, **kwargs)
        except BaseException:
            if request is not None and http.queued.pop(id(event), None) is not None:
                http.never_began(request)
            raise

    return queued


def wrap_pooled(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap a function of gRPC that answers a call in a thread of its pool."""

    def pooled(event: Any, *args: Any, **kwargs: Any) -> Any:
        request = http.queued.pop(id(event), None)
        if request is not None:
            http.earlier.threads.discard(_ident())
            request.begin()
            current.set(request)
        try:
            return original(event, *args, **kwargs)
        finally:
            if request is not None:
                http.end_in_thread(request)

    return pooled


class Around:
    """What `with` enters around a request to a replica of Ray Serve, and the request, which begins and ends with it."""

    __slots__ = ("http", "manager", "request")

    def __init__(self, manager: Any, http: Http) -> None:
        self.manager, self.http = manager, http
        self.request: Request | None = None

    def __enter__(self) -> Any:
        entered = self.manager.__enter__()
        try:
            self.request = self.http.begin(None, self.http.loop)
            if self.request is not None:
                current.set(self.request)
        except Exception:
            self.http.failed()
        return entered

    def __exit__(self, *error: Any) -> Any:
        if self.request is not None:
            current.set(None)
            self.http.end_in_loop(self.request)
        return self.manager.__exit__(*error)


def wrap_around(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap Ray Serve's `Replica._wrap_request`, which makes the context manager in which a request is answered."""

    def around(*args: Any, **kwargs: Any) -> Any:
        return Around(original(*args, **kwargs), http)

    return around


def wrap_user_code(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap the method of Ray Serve that calls the user's code, after the wait for the limit of requests at a time."""

    def user_code(*args: Any, **kwargs: Any) -> Any:
        try:
            request = current.get()
            if request is not None and not request.began:
                request.begin()
                http.loop_thread = request.worker
        except Exception:
            http.failed()
        return original(*args, **kwargs)

    return user_code


def wrap_call(original: Callable[..., Any], http: Http, socket_of: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that answers one request. `socket_of` returns the socket, from the method's arguments."""

    def handle_request(*args: Any, **kwargs: Any) -> Any:
        request = None
        try:
            request = http.begin_in_thread(socket_of(*args))
        except Exception:
            http.failed()
        try:
            return original(*args, **kwargs)
        finally:
            if request is not None:
                http.end_in_thread(request)

    return handle_request


def gunicorn_socket(worker: Any, first: Any, second: Any, *rest: Any) -> Any:
    """Return the socket: a ThreadWorker's method gets `(req, conn)`, others' get `(listener, req, client, addr)`."""
    return rest[0] if rest else second.sock


def waitress_socket(task: Any) -> Any:
    """Return the socket of waitress's `Task`."""
    return task.channel.socket


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

    return handle_one_request


def wrap_parse(original: Callable[..., Any], http: Http) -> Callable[..., Any]:
    """Wrap `BaseHTTPRequestHandler.parse_request`, called when the first line of a request has arrived."""

    def parse_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _ident() in http.handling:
                http.begin_in_thread(self.connection)
        except Exception:
            http.failed()
        return original(self, *args, **kwargs)

    return parse_request
