"""Requests that the hook measures in this very process, and the names in servers that it relies on."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest
import torch
from hook_runs import Net, loader, served, train

import aitop.hook
from aitop.hook import session as session_module
from aitop.hook.measures.serving import names
from aitop.hook.measures.serving.batching import Batching
from aitop.hook.measures.serving.http import Http, transport_socket, wrap_in_loop
from aitop.hook.measures.serving.requests import Request, Requests, current
from aitop.protocol.events import REQUEST
from aitop.protocol.training import TRAINING_ENDS_AFTER_NS
from aitop.sources.ring.reader import HookRing

# Of the kernel's clock, by which the arrival of a request may be off.
A_TICK = 0.005
# Engines that have an environment of their own, by the variable that names its interpreter.
ELSEWHERE = {"vllm": "AITOP_TEST_VLLM_PYTHON", "ray": "AITOP_TEST_RAY_PYTHON"}
# Lists the rows of a server that this interpreter does not have; of an engine that it lacks, only that.
LOOK_UP = """
import importlib, importlib.util, json, sys
server = sys.argv[1]
if importlib.util.find_spec(server) is None:
    print(json.dumps("absent")); raise SystemExit
missing = []
for module, name, attribute in json.loads(sys.argv[2]):
    owner = getattr(importlib.import_module(module), name, None)
    if owner is None or attribute not in vars(owner):
        missing.append([module, name, attribute])
print(json.dumps(missing))
"""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body in one go: else the second waits for the client's kernel.
    wbufsize = 4096
    model = Net(0.02)

    def do_GET(self):
        time.sleep(0.01)
        if self.path == "/model":
            with torch.no_grad():
                self.model(torch.ones(1, 8))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        time.sleep(0.005)
        self.wfile.write(b"ok")

    def log_message(self, *args):
        pass


class Quiet(WSGIRequestHandler):
    def log_message(self, *args):
        pass


def serving(server):
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def server():
    made = serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    yield made
    made.shutdown()
    made.server_close()


def ask(server, path, times=1, pause=0.0):
    """Ask over one connection, and return how long the client waited for each answer."""
    connection, waits = http.client.HTTPConnection(*server.server_address, timeout=10), []
    for _ in range(times):
        time.sleep(pause)
        start = time.monotonic()
        connection.request("GET", path)
        assert connection.getresponse().read() == b"ok"
        waits.append(time.monotonic() - start)
    connection.close()
    return waits


def test_a_request_of_a_web_server_has_the_parts_that_its_own_thread_did(watched, server):
    waits = ask(server, "/model", times=4, pause=0.03)
    sample = served(watched)
    assert len(sample.requests) == 4 and sample.alive == 0
    # The client may read its answer before the thread that wrote it goes on: that delay is no error of the record.
    late = [record.seconds - wait for record, wait in zip(sample.requests, waits, strict=True)]
    assert min(late) <= A_TICK
    for record in sample.requests:
        parts = (record.queue, record.preprocess, record.model, record.postprocess)
        assert sum(parts) == pytest.approx(record.seconds)
        assert record.preprocess >= 0.010 and record.model >= 0.020
        # Where the thread was late to go on, when it had sent its answer is known to half a tick of the kernel's.
        assert record.postprocess >= 0.005 - A_TICK / 2
        assert record.first_token is None and record.tokens is None


def test_what_a_thread_does_after_its_answer_is_no_part_of_the_request(watched):
    class Tidy(Handler):
        wbufsize = 0
        disable_nagle_algorithm = True

        def do_GET(self):
            super().do_GET()
            time.sleep(0.05)

    made = serving(ThreadingHTTPServer(("127.0.0.1", 0), Tidy))
    waits = ask(made, "/plain", times=3, pause=0.1)
    time.sleep(0.05)
    records = served(watched).requests
    made.shutdown()
    made.server_close()
    assert len(records) == 3
    for record, wait in zip(records, waits, strict=True):
        # What the client itself is late is no error of the record.
        assert record.seconds <= wait + 2 * A_TICK


@pytest.mark.parametrize(("path", "known"), [("/here", [True, True]), ("/handed-on", [False, True])])
def test_the_cpu_time_of_the_thread_that_works_on_a_request_is_no_time_in_which_it_waits(watched, path, known):
    """In the thread that takes the request up; and in one of a pool, whose first request it cannot be known of."""
    with ThreadPoolExecutor(1) as pool:

        class Computes(Handler):
            def do_GET(self):
                if self.path == "/here":
                    self.compute()
                else:
                    pool.submit(copy_context().run, self.compute).result()
                super().do_GET()

            def compute(self):
                with torch.no_grad():
                    self.model(torch.ones(1, 8))
                until = time.thread_time() + 0.03
                while time.thread_time() < until:
                    pass

        made = serving(ThreadingHTTPServer(("127.0.0.1", 0), Computes))
        ask(made, path, times=2)
        records = served(watched).requests
        made.shutdown()
        made.server_close()
    assert [record.cpu is not None for record in records] == known
    assert all(record.seconds >= 0.065 - A_TICK / 2 for record in records)
    assert all(0.03 <= record.cpu < 0.045 for record in records if record.cpu is not None)


def test_requests_that_greenlets_of_one_thread_answer_at_once_have_no_cpu_time_of_their_own(watched):
    """A greenlet has its own context, and hands the thread to the next one while its request waits."""
    measure = next(measure for measure in watched.session.measures if isinstance(measure, Http))
    one, other = socket.socketpair()
    with closing(one), closing(other):
        for number in (2, 1):
            greenlets = [copy_context() for _ in range(number)]
            begun = [each.run(measure.begin_in_thread, one) for each in greenlets]
            for each, request in zip(greenlets, begun, strict=True):
                each.run(measure.end_in_thread, request)
    assert [record.cpu is None for record in served(watched).requests] == [True, True, False]
    assert measure.at_work == {}


def test_a_web_server_that_never_steps_loads_their_measure_at_once(unhooked):
    loaded = []

    def load(name):
        loaded.append(name)
        return importlib.import_module(f"aitop.hook.{name}")

    assert aitop.hook.install("attach", load) == "installed"
    assert loaded == ["measures.serving.http"]
    assert aitop.hook.remove() == "removed"


def test_without_a_model_a_request_has_no_parts(watched, server):
    ask(server, "/plain")
    (record,) = served(watched).requests
    assert record.seconds > 0.01 - A_TICK / 2 and (record.preprocess, record.model, record.postprocess) == (
        None,
        None,
        None,
    )


def test_requests_under_way_are_counted_before_they_end(watched, server):
    clients = [threading.Thread(target=ask, args=(server, "/model", 8)) for _ in range(3)]
    for client in clients:
        client.start()
    most = 0
    while any(client.is_alive() for client in clients):
        time.sleep(0.01)
        most = max(most, watched.ring.read(time.monotonic()).alive or 0)
    assert most == 3 and served(watched).alive == 0


def test_requests_keep_the_ring_flushed_where_nothing_else_happens(watched, server):
    watched.session._roots._narrow()
    ask(server, "/plain", times=5, pause=0.06)
    assert watched.ring.read(time.monotonic()).requests, "the hook has sent them by itself"


def test_a_wsgi_application_is_measured_too(watched):
    def application(environ, start_response):
        time.sleep(0.01)
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    made = WSGIServer(("127.0.0.1", 0), Quiet)
    made.set_app(application)
    serving(made)
    watched.session.look(time.monotonic_ns())
    ask(made, "/")
    (record,) = served(watched).requests
    assert record.seconds >= 0.01 - A_TICK / 2
    made.shutdown()
    made.server_close()


def test_each_request_of_a_connection_to_aiohttp_is_measured(watched):
    web = pytest.importorskip("aiohttp.web")
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def answer(request):
        with torch.no_grad():
            Handler.model(torch.ones(1, 8))
        return web.Response(text="ok")

    async def start():
        app = web.Application()
        app.router.add_get("/model", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.address = site._server.sockets[0].getsockname()
        ready.set()
        return runner

    def serve():
        runner = loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(10)
    watched.session.look(time.monotonic_ns())
    connection = http.client.HTTPConnection(*ready.address, timeout=10)
    for _ in range(3):
        connection.request("GET", "/model")
        assert connection.getresponse().read() == b"ok"
    sample = served(watched)
    connection.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    assert len(sample.requests) == 3 and sample.alive == 0
    assert all(record.model >= 0.02 for record in sample.requests)


def test_answers_that_stream_are_no_requests_that_wait(watched):
    """A page that stays open, with a stream of events or a websocket, does not make an idle server one that stands."""
    aiohttp, web = pytest.importorskip("aiohttp"), pytest.importorskip("aiohttp.web")
    alive = []

    def now_alive():
        watched.session._send(time.monotonic_ns())
        # What one reader has read does not come again.
        with closing(HookRing(os.getpid())) as other:
            alive.append(other.read(time.monotonic()).alive)

    async def stream(request):
        answer = web.StreamResponse()
        now_alive()
        await answer.prepare(request)
        now_alive()
        await answer.write(b"data: 1")
        await answer.write_eof()
        return answer

    async def talk(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        now_alive()
        await socket.send_str("hello")
        await socket.close()
        return socket

    async def both():
        app = web.Application()
        app.router.add_get("/stream", stream)
        app.router.add_get("/talk", talk)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        watched.session.look(time.monotonic_ns())
        address = "http://{}:{}".format(*site._server.sockets[0].getsockname())
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{address}/stream") as answer:
                assert await answer.read() == b"data: 1"
            async with client.ws_connect(f"{address}/talk") as socket:
                assert (await socket.receive()).data == "hello"
        await runner.cleanup()

    asyncio.run(both())
    assert alive == [1, 0, 0]
    (record,) = served(watched).requests
    assert record.seconds < 5.0


def train_a_little():
    model = Net()
    train(model, loader(), torch.optim.SGD(model.parameters(), 0.1))


def test_beside_a_training_run_nothing_counts_as_served(watched, server):
    train_a_little()
    watched.records()
    ask(server, "/model")
    sample = served(watched)
    assert sample.requests == () and sample.alive is None


def test_a_program_that_trained_and_serves_now_has_requests(watched, server):
    train_a_little()
    watched.records()
    # As long after the training as it takes to count as over.
    watched.session.trains_until -= TRAINING_ENDS_AFTER_NS
    ask(server, "/plain")
    sample = served(watched)
    assert len(sample.requests) == 1 and sample.alive == 0


def test_a_request_that_trains_is_under_way_no_longer_than_it_takes(watched):
    class Trains(Handler):
        def do_GET(self):
            train_a_little()
            super().do_GET()

    made = serving(ThreadingHTTPServer(("127.0.0.1", 0), Trains))
    ask(made, "/train")
    sample = served(watched)
    made.shutdown()
    made.server_close()
    assert len(sample.requests) == 1 and sample.alive == 0


def test_a_measure_that_fails_leaves_its_server_alone_and_the_rest_goes_on(watched, server, monkeypatch):
    measure = next(one for one in watched.session.measures if type(one).__name__ == "Http")

    def broken(*args):
        raise ValueError

    monkeypatch.setattr(measure, "begin", broken)
    ask(server, "/model", times=4)
    owner, attribute = BaseHTTPRequestHandler, "parse_request"
    assert not watched.session._patches.has(owner, attribute)
    watched.session.look(time.monotonic_ns())
    assert not watched.session._patches.has(owner, attribute), "for good"
    assert served(watched).steps, "steps are measured as before"


def measure_of(watched, name="Http"):
    return next(one for one in watched.session.measures if type(one).__name__ == name)


def test_of_a_server_that_is_unpatched_no_request_is_under_way_any_more(watched):
    http, engine = measure_of(watched), measure_of(watched, "Vllm")
    http.under_way.add(Request(100))
    http.count()
    engine.in_flight(2)
    assert watched.ring.read(time.monotonic()).alive == 2
    for measure, left in ((engine, 1), (http, None)):
        for _ in range(3):
            measure.failed()
        assert watched.ring.read(time.monotonic()).alive == left
    http.count()
    assert watched.ring.read(time.monotonic()).alive is None, "wrappers that still run change nothing"


def test_two_threads_that_end_a_request_at_once_leave_the_number_of_both(watched, monkeypatch):
    http, ring, first = measure_of(watched), watched.session.ring, Request(100)
    http.under_way.update((first, Request(100), Request(100)))
    write = ring.write_alive

    def write_late(number):
        if first in http.under_way:
            http.under_way.discard(first)
            http.count()
        write(number)

    monkeypatch.setattr(ring, "write_alive", write_late)
    http.count()
    assert watched.ring.read(time.monotonic()).alive == 2


def test_a_request_that_is_cancelled_before_its_task_runs_is_under_way_no_more(watched):
    handler = SimpleNamespace(transport=SimpleNamespace(get_extra_info=lambda name: None))

    async def original(self):
        raise AssertionError

    async def cancelled():
        task = asyncio.ensure_future(wrap_in_loop(original, measure_of(watched), transport_socket)(handler))
        before = watched.ring.read(time.monotonic()).alive
        task.cancel()
        await asyncio.wait([task])
        return before

    assert asyncio.run(cancelled()) == 1
    assert watched.ring.read(time.monotonic()).alive == 0


def test_a_ring_that_is_opened_late_has_the_requests_under_way(watched, monkeypatch):
    session = watched.session
    measure_of(watched).under_way.add(Request(100))
    ring, session.ring = session.ring, None
    measure_of(watched).count()
    monkeypatch.setattr(session_module, "Ring", lambda way: ring)
    session.journal.note(REQUEST, 100, 200)
    session._send(time.monotonic_ns())
    assert watched.ring.read(time.monotonic()).alive == 1


def test_a_child_that_was_forked_writes_nothing_into_its_parents_ring(watched, server):
    ask(server, "/plain")
    before = served(watched).alive
    child = os.fork()
    if not child:
        measure = next(one for one in watched.session.measures if type(one).__name__ == "Http")
        os._exit(0 if measure.begin(None) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sample = served(watched)
    assert sample.requests == () and sample.alive == before


@pytest.mark.parametrize(
    ("moments", "parts"),
    [
        ({}, (-1, -1, -1, -1)),
        ({"began": 2}, (2, -1, -1, -1)),
        ({"began": 2, "model_began": 5, "model_ended": 8}, (2, 3, 3, 2)),
        ({"began": 2, "submitted": 3, "model_began": 5, "model_ended": 8}, (4, 1, 3, 2)),
        ({"began": 2, "model_began": 5, "model_ended": 10}, (2, 3, 5, -1)),
        ({"began": 2, "model_began": 5}, (2, 3, -1, -1)),
        ({"began": 2, "submitted": 6, "model_began": 5, "model_ended": 8}, (2, 3, 3, 2)),
        ({"model_began": 5, "model_ended": 8}, (-1, -1, 3, 2)),
    ],
)
def test_the_parts_of_a_request_follow_one_another(moments, parts):
    request = Request(100)
    for name, moment in moments.items():
        setattr(request, name, 100 + moment)
    assert request.parts(110) == parts


def test_what_is_done_between_two_calls_of_a_model_is_no_part_of_it(watched):
    """An answer that is made token by token: the model, then the text, and so on."""
    requests, request = Requests.of(watched.session), Request(100)
    request.began = 100
    token = current.set(request)
    for start in (110, 130, 150):
        requests.computed(start, start + 5)
    current.reset(token)
    assert request.parts(160) == (0, 10, 15, 35)


def triples(server):
    """What is patched in a server: module, class, attribute."""
    return [(*place.split(":"), name) for place, found in names.TABLE[server].items() for name in found.split()]


@pytest.mark.parametrize("server", [server for server in names.TABLE if server not in ELSEWHERE])
def test_the_names_that_are_patched_exist_in_the_release_that_is_installed(server):
    pytest.importorskip(server)
    for module, name, attribute in triples(server):
        owner = importlib.import_module(module)
        assert callable(getattr(vars(owner)[name] if name else owner, attribute))


@pytest.mark.parametrize("server", ELSEWHERE)
def test_the_names_of_engines_exist_in_another_environment(server):
    python = os.environ.get(ELSEWHERE[server], sys.executable)
    asked = [python, "-c", LOOK_UP, server, json.dumps(triples(server))]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=True)
    missing = json.loads(done.stdout.splitlines()[-1])
    if missing == "absent":
        pytest.skip(f"no {server} in the interpreter that {ELSEWHERE[server]} names")
    assert missing == []


def rows():
    """Where each row of the table stands, of those that can be imported here."""
    for server in names.TABLE:
        for module, name, attribute in triples(server):
            try:
                owner = importlib.import_module(module)
            except ImportError:
                continue
            yield getattr(owner, name) if name else owner, attribute


def test_everything_of_servers_is_put_back_as_the_very_same_object(unhooked):
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute in rows()]
    assert len(before) >= 7
    assert aitop.hook.install("run") == "installed"
    aitop.hook._session.look(time.monotonic_ns())
    assert all(vars(owner)[attribute] is not original for owner, attribute, original in before)
    assert aitop.hook.remove() == "removed"
    assert all(vars(owner)[attribute] is original for owner, attribute, original in before)


def test_a_queue_of_multiprocessing_is_left_alone_without_litserve(unhooked, monkeypatch):
    managers = importlib.import_module("multiprocessing.managers")
    original = vars(managers.BaseProxy)["_callmethod"]
    for name in [name for name in sys.modules if name.partition(".")[0] == "litserve"]:
        monkeypatch.delitem(sys.modules, name)
    assert aitop.hook.install("run") == "installed"
    aitop.hook._session.look(time.monotonic_ns())
    assert vars(managers.BaseProxy)["_callmethod"] is original
    assert aitop.hook.remove() == "removed"


def test_requests_that_were_cancelled_before_their_first_token_are_forgotten():
    """transformers drops them without a word, and their states have all tokens of their prompts."""
    batching = Batching.__new__(Batching)
    batching.requests, batching.stepped, batching.idle = SimpleNamespace(count=lambda *_: None), False, 0
    batching.known = dict.fromkeys(("runs", "waits", "cancelled"))
    batching.tokenless = dict.fromkeys(batching.known)
    scheduler = SimpleNamespace(active_requests={"runs": 1}, waiting_requests={"waits": 1})
    batching.turned(0, None, None, SimpleNamespace(scheduler=scheduler))
    assert batching.known.keys() == batching.tokenless.keys() == {"runs", "waits"}


def test_a_request_that_hands_in_several_prompts_has_the_figures_of_all(watched):
    batching = next(one for one in watched.session.measures if isinstance(one, Batching))
    request = Request(time.monotonic_ns())
    request.began = request.arrived

    def hand_in(*names):
        token = current.set(request)
        for name in names:
            batching.entered(0, name)
        current.reset(token)

    def run(name, began, prompt, generated):
        """Take a prompt into a batch at `began`. Returns what ends it."""
        state = SimpleNamespace(
            lifespan=(began / 1e9, -1), initial_tokens=prompt * [1], generated_tokens=generated * [1]
        )
        state._true_initial_tokens = 0
        batching.met(name, state)
        return lambda: batching.finished(SimpleNamespace(active_requests={name: state}), name)

    hand_in("one", "two")
    submitted = request.submitted
    first_began = time.monotonic_ns()
    ends = [run("one", first_began, prompt=5, generated=3), run("two", first_began + 1000, prompt=7, generated=4)]
    for end in ends:
        end()
    # The third only when the answers of the others are there.
    hand_in("three")
    pause = 10_000_000
    end = run("three", request.model_ended + pause, prompt=1, generated=2)
    time.sleep(0.02)
    end()
    assert (request.prompt_tokens, request.tokens, request.preempted) == (13, 9, 0)
    queue, preprocess, model, postprocess = request.parts(request.model_ended)
    assert preprocess == submitted - request.began and queue == pytest.approx(first_began - submitted, abs=1000)
    assert postprocess == pytest.approx(pause, abs=1000)
    assert queue + preprocess + model + postprocess == request.model_ended - request.arrived


def test_compilations_are_pauses_of_what_serves(watched, server):
    callback = pytest.importorskip("torch._dynamo.callback")
    watched.session.look(time.monotonic_ns())
    ask(server, "/plain")
    start = time.monotonic()
    with callback.callback_handler.install_callbacks(callback.CallbackTrigger.DYNAMO, "0/0"):
        time.sleep(0.02)
    took = time.monotonic() - start
    (pause,) = (one for one in served(watched).pauses if one.kind == "compile")
    assert 0.02 <= pause.seconds <= took
    ours = [one for one in callback.callback_handler.start_callbacks if "Compiles" in one.__qualname__]
    # Torch before 2.8 calls them without an argument.
    ours[0]()
    next(one for one in callback.callback_handler.end_callbacks if "Compiles" in one.__qualname__)()
    aitop.hook.remove()
    assert len(ours) == 1 and ours[0] not in callback.callback_handler.start_callbacks


def test_a_request_that_is_under_way_when_the_hook_leaves_ends_as_ever(watched, server):
    client = threading.Thread(target=ask, args=(server, "/model", 20))
    client.start()
    while client.is_alive() and not watched.ring.read(time.monotonic()).alive:
        time.sleep(0.001)
    aitop.hook.remove()
    client.join(10)
    assert not client.is_alive()
