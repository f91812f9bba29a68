"""Requests that the hook measures of ASGI applications, tornado, gRPC, waitress and Ray Serve, in this very process."""

from __future__ import annotations

import asyncio
import http.client
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import ModuleType

import pytest
import torch
from hook_runs import Net, served

MODEL = Net(0.02)
# Of the kernel's clock, by which the arrival of a request may be off.
A_TICK = 0.005


def predict():
    with torch.no_grad():
        MODEL(torch.ones(1, 8))


@contextmanager
def in_a_loop(serve):
    """Run `serve(address_is_known)`, a coroutine function that serves until it is cancelled, in a thread's event loop.

    Yields what `serve` has called `address_is_known` with.
    """
    address, known, loop = [], threading.Event(), asyncio.new_event_loop()

    def ready(where):
        address.append(where)
        known.set()

    task = loop.create_task(serve(ready))

    def run():
        try:
            loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass
        finally:
            loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert known.wait(20)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(20)


def get(port, path, times):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    answers = []
    for _ in range(times):
        connection.request("GET", path)
        answers.append(connection.getresponse().read())
    connection.close()
    return answers


def tornado_server(**handlers):
    httpserver, web = pytest.importorskip("tornado.httpserver"), pytest.importorskip("tornado.web")

    async def serve(ready):
        pages = [(f"/{name}", type(name, (web.RequestHandler,), {"get": method})) for name, method in handlers.items()]
        server = httpserver.HTTPServer(web.Application(pages))
        server.listen(0, "127.0.0.1")
        ready(next(iter(server._sockets.values())).getsockname()[1])
        try:
            await asyncio.Event().wait()
        finally:
            server.stop()
            await server.close_all_connections()

    return in_a_loop(serve)


def test_each_request_of_a_connection_to_tornado_is_measured(watched):
    async def model(handler):
        await asyncio.sleep(0.01)
        predict()
        handler.write("ok")

    with tornado_server(model=model) as port:
        watched.session.look(time.monotonic_ns())
        assert get(port, "/model", 3) == [b"ok"] * 3
        sample = served(watched)
    assert len(sample.requests) == 3 and sample.alive == 0
    for record in sample.requests:
        assert record.preprocess >= 0.01 and record.model >= 0.02
        assert record.first_sent is None


def test_a_page_of_tornado_that_stays_open_is_no_request_that_waits(watched):
    leave = threading.Event()

    async def events(handler):
        handler.write("first")
        await handler.flush()
        while not leave.is_set():
            await asyncio.sleep(0.01)

    with tornado_server(events=events) as port:
        watched.session.look(time.monotonic_ns())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/events")
        assert connection.getresponse().read(5) == b"first"
        watched.session._send(time.monotonic_ns())
        assert watched.ring.read(time.monotonic()).alive == 0
        leave.set()
        connection.close()


def asked(application, path, kind="http"):
    """What an ASGI application sends for a request, or a websocket, as a server asks it that is not known itself."""
    sent = []

    async def receive():
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "raw_path": path.encode(), "method": "GET", "headers": [], "query_string": b""}
    with suppress(ConnectionError):
        asyncio.run(application(scope, receive, send))
    return [message.get("body") for message in sent if message["type"] == "http.response.body"]


def fastapi_application():
    application, responses = pytest.importorskip("fastapi").FastAPI(), pytest.importorskip("starlette.responses")

    @application.get("/model")
    async def model():
        await asyncio.sleep(0.01)
        predict()
        return "ok"

    @application.get("/parts")
    async def parts():
        async def computed():
            for _ in range(3):
                predict()
                yield b"part"

        return responses.StreamingResponse(computed())

    @application.get("/broken")
    async def broken():
        raise ConnectionError("no")

    @application.websocket("/socket")
    async def socket(websocket):
        predict()

    return application


def test_requests_to_an_asgi_application_are_measured_whatever_server_it_has(watched):
    application = fastapi_application()
    watched.session.look(time.monotonic_ns())
    assert asked(application, "/model") == [b'"ok"']
    assert asked(application, "/parts") == [b"part", b"part", b"part", b""]
    assert asked(application, "/socket", "websocket") == []
    sample = served(watched)
    assert len(sample.requests) == 2 and sample.alive == 0
    once, parts = sorted(sample.requests, key=lambda record: record.end)
    assert once.preprocess >= 0.01 and once.model >= 0.02
    assert once.first_sent is None
    assert parts.model >= 0.06 and parts.first_sent >= 0.02


def test_a_request_to_an_asgi_application_that_fails_is_answered(watched):
    application = fastapi_application()
    watched.session.look(time.monotonic_ns())
    assert asked(application, "/broken") == [b"Internal Server Error"]
    sample = served(watched)
    assert len(sample.requests) == 1 and sample.alive == 0


@contextmanager
def grpc_threads(threads, **methods):
    """A gRPC server with a pool of threads: yields a function that starts a call of a method by its name."""
    grpc = pytest.importorskip("grpc")
    server = grpc.server(ThreadPoolExecutor(threads))
    port = grpc_port(grpc, server, methods)
    server.start()
    with calls_to(grpc, port, methods) as call:
        yield call
    server.stop(None).wait()


def grpc_asyncio(**methods):
    grpc = pytest.importorskip("grpc")

    async def serve(ready):
        server = grpc.aio.server()
        port = grpc_port(grpc, server, methods)
        await server.start()
        ready(port)
        try:
            await asyncio.Event().wait()
        finally:
            await server.stop(None)

    @contextmanager
    def started():
        with in_a_loop(serve) as port, calls_to(grpc, port, methods) as call:
            yield call

    return started()


def is_stream(name):
    return name.endswith("_parts")


def grpc_port(grpc, server, methods):
    handlers = {
        name: (grpc.unary_stream_rpc_method_handler if is_stream(name) else grpc.unary_unary_rpc_method_handler)(method)
        for name, method in methods.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))
    # The code that protoc generates does both.
    server.add_registered_method_handlers("test.Service", handlers)
    return server.add_insecure_port("127.0.0.1:0")


@contextmanager
def calls_to(grpc, port, methods):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        unary = {name: channel.unary_unary(f"/test.Service/{name}") for name in methods if not is_stream(name)}
        parts = {name: channel.unary_stream(f"/test.Service/{name}") for name in methods if is_stream(name)}
        yield lambda name: parts[name](b"x") if is_stream(name) else unary[name].future(b"x")


def test_a_call_that_waits_for_a_thread_of_grpcs_pool_is_in_its_queue(watched):
    def model(request, context):
        time.sleep(0.05)
        predict()
        return b"ok"

    def model_parts(request, context):
        for _ in range(3):
            predict()
            yield b"ok"

    with grpc_threads(1, model=model, model_parts=model_parts) as call:
        watched.session.look(time.monotonic_ns())
        first, second = call("model"), call("model")
        assert [first.result(), second.result()] == [b"ok", b"ok"]
        assert list(call("model_parts")) == [b"ok"] * 3
        sample = served(watched)
    assert len(sample.requests) == 3 and sample.alive == 0
    early, late, parts = sorted(sample.requests, key=lambda record: record.end)
    assert early.preprocess >= 0.05 and early.model >= 0.02 and early.queue < 0.05
    assert late.queue >= 0.05 - A_TICK
    assert parts.model >= 0.06


def test_calls_of_a_grpc_server_of_asyncio_are_measured(watched):
    async def model(request, context):
        await asyncio.sleep(0.01)
        predict()
        return b"ok"

    async def model_parts(request, context):
        for _ in range(3):
            predict()
            yield b"ok"

    with grpc_asyncio(model=model, model_parts=model_parts) as call:
        watched.session.look(time.monotonic_ns())
        assert call("model").result() == b"ok"
        assert list(call("model_parts")) == [b"ok"] * 3
        sample = served(watched)
    assert len(sample.requests) == 2 and sample.alive == 0
    once, parts = sorted(sample.requests, key=lambda record: record.end)
    assert once.preprocess >= 0.01 and once.model >= 0.02
    assert parts.model >= 0.06


def test_calls_that_grpc_had_taken_up_before_the_hook_came_are_in_flight(unhooked):
    import aitop.hook

    go_on = threading.Event()

    async def wait(request, context):
        while not go_on.is_set():
            await asyncio.sleep(0.01)
        return b"ok"

    with grpc_asyncio(wait=wait) as call:
        first = call("wait")
        time.sleep(0.2)
        assert aitop.hook.install("run") == "installed"
        try:
            session = aitop.hook._session
            session.look(time.monotonic_ns())
            second = call("wait")
            deadline = time.monotonic() + 20
            while session.requests.alive.get("http") != 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert session.requests.alive["http"] == 2
            go_on.set()
            assert [first.result(), second.result()] == [b"ok", b"ok"]
            while session.requests.alive["http"] and time.monotonic() < deadline:
                time.sleep(0.02)
            assert session.requests.alive["http"] == 0
        finally:
            go_on.set()
            aitop.hook.remove()


def test_a_call_that_fails_is_answered(watched):
    def broken(request, context):
        raise ValueError("no")

    with grpc_threads(1, broken=broken) as call:
        watched.session.look(time.monotonic_ns())
        assert call("broken").exception() is not None
        sample = served(watched)
    assert len(sample.requests) == 1 and sample.alive == 0


def test_a_request_to_waitress_waits_for_a_thread_in_its_queue(watched):
    waitress = pytest.importorskip("waitress")

    def application(environ, start_response):
        time.sleep(0.05)
        predict()
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    server = waitress.create_server(application, host="127.0.0.1", port=0, threads=1)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    watched.session.look(time.monotonic_ns())
    with ThreadPoolExecutor(2) as clients:
        asked = [clients.submit(get, server.effective_port, "/", 2) for _ in range(2)]
        assert [client.result() for client in asked] == [[b"ok"] * 2] * 2
    sample = served(watched)
    server.close()
    thread.join(20)
    assert len(sample.requests) == 4 and sample.alive == 0
    assert all(record.preprocess >= 0.05 and record.model >= 0.02 for record in sample.requests)
    assert max(record.queue for record in sample.requests) >= 0.05


class Replica:
    """What a replica of Ray Serve 2.60 does with a request: it waits for its turn, and for its loop of the user's code.

    The real one is in tests/e2e/test_ray_serve.py, which runs where Ray is installed.
    """

    def __init__(self, user_code, most):
        self.user_code, self.most, self.loop = user_code, most, asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    @contextmanager
    def _wrap_request(self, metadata):
        yield metadata

    async def handle_request(self, turns):
        with self._wrap_request("metadata"):
            async with turns:
                wrapper = UserCallableWrapper()
                coroutine = wrapper.call_user_method(self.user_code)
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def answers(self, number):
        async def ask():
            turns = asyncio.Semaphore(self.most)
            return await asyncio.gather(*(self.handle_request(turns) for _ in range(number)), return_exceptions=True)

        return asyncio.run(ask())


class UserCallableWrapper:
    async def call_user_method(self, user_code):
        return await self._call_func_or_gen(user_code)

    async def _call_func_or_gen(self, user_code):
        return await user_code()


@pytest.fixture
def replica(monkeypatch):
    """`replica(user_code, most)` is a replica that has at most so many requests in the user's code at a time."""
    module = ModuleType("ray.serve._private.replica")
    module.Replica, module.UserCallableWrapper = Replica, UserCallableWrapper
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = []

    def start(user_code, most):
        made.append(Replica(user_code, most))
        return made[-1]

    yield start
    for each in made:
        each.loop.call_soon_threadsafe(each.loop.stop)
        each.thread.join(20)
        each.loop.close()


def test_a_request_to_ray_serve_waits_until_the_users_code_takes_it(watched, replica):
    async def model():
        await asyncio.sleep(0.03)
        predict()
        return "ok"

    ranker = replica(model, 1)
    watched.session.look(time.monotonic_ns())
    assert ranker.answers(2) == ["ok"] * 2
    sample = served(watched)
    assert len(sample.requests) == 2 and sample.alive == 0
    early, late = sorted(sample.requests, key=lambda record: record.end)
    assert early.preprocess >= 0.03 and early.model >= 0.02 and early.queue < 0.03
    assert late.queue >= 0.05 - A_TICK


def test_a_request_to_ray_serve_that_fails_is_answered(watched, replica):
    async def broken():
        raise ValueError("no")

    ranker = replica(broken, 2)
    watched.session.look(time.monotonic_ns())
    assert [str(answer) for answer in ranker.answers(2)] == ["no"] * 2
    sample = served(watched)
    assert len(sample.requests) == 2 and sample.alive == 0
