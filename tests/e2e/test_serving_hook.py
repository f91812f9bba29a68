"""Servers that nobody prepared: the hook goes in while they answer, and tells of their requests what clients saw."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import threading
import time
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from statistics import median_high as median
from typing import Any, NamedTuple
from urllib.request import urlopen

import psutil
import pytest
from serving_run import Server
from waiting import until

from aitop.attach.refusal import AttachRefused
from aitop.engine.hook_requests import HookRequests, take_out
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.sources.ring.reader import HookRing, find_ring

pytestmark = [pytest.mark.e2e, pytest.mark.early]

SERVERS = Path(__file__).parent / "servers"
CLIENTS = 4
# So many requests are read, or the test gives up.
ENOUGH, PATIENCE = 60, 90.0
# The hook takes a request's arrival from the kernel, which counts in ticks of its clock.
TICK = time.clock_getres(6) + 0.001  # CLOCK_MONOTONIC_COARSE, told in milliseconds
# Is in every request, and must not be in what the hook tells.
CONTENT = "words that nobody but the server reads"
VLLM_PYTHON = os.environ.get("AITOP_TEST_VLLM_PYTHON")
# A model of two layers, and no tokenizer: prompts are token ids.
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 256,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


class Exchange(NamedTuple):
    """A request as its client saw it: from `start` to `end`; at `sent` all of it was with the kernel. What the handler
    answered has its own moments. All on the clock that all processes share.
    """

    start: float
    sent: float
    end: float
    answer: dict[str, Any]


class LoadedServer(Server):
    """A server, and the answers that its clients got from it."""

    def __init__(self, command, **more):
        super().__init__(command, "/health", {}, **more)
        self.failures = []
        self.exchanges: list[Exchange] = []
        self.clients: list[threading.Thread] = []
        self._stop = threading.Event()

    def ask(self):
        return urlopen(f"http://127.0.0.1:{self.port}{self.path}", timeout=60).read()

    def load(self, path, body=None, clients=CLIENTS, pause=0.0):
        """Have clients ask until the next load or the end, with a pause (seconds) before each request."""
        self.unload()
        self._stop, self.exchanges = threading.Event(), []
        asks = (path, body, pause, self._stop, self.exchanges)
        self.clients = [threading.Thread(target=self._client, args=asks, daemon=True) for _ in range(clients)]
        for client in self.clients:
            client.start()

    def unload(self):
        self._stop.set()
        for client in self.clients:
            client.join(30.0)
            assert not client.is_alive()

    def _client(self, path, body, pause, stop, exchanges):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"X-Content": CONTENT, **({"Content-Type": "application/json"} if body else {})}
        while not stop.wait(pause):
            start = time.monotonic()
            try:
                connection.request("POST" if body else "GET", path, body, headers)
                sent = time.monotonic()
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                return
            end = time.monotonic()
            if answer.status != 200:
                self.failures.append(text)
                return
            exchanges.append(Exchange(start, sent, end, json.loads(text)))

    def stop(self):
        self._stop.set()
        super().stop()
        # Their server is gone, so nothing keeps them.
        for client in self.clients:
            client.join(30.0)


class HookReading:
    """What the hook in one process has told: it is brought in, read until there is enough, and taken out again.

    `also` says of this object whether it has all else that the test needs. `pairs` are the requests with their
    exchanges, in which they arrived at the `latest`. `fronts` need no torch.
    """

    def __init__(
        self, server, pid, enough=ENOUGH, also=lambda reading: True, latest=lambda exchange: exchange.sent, fronts=()
    ):
        self.requests: list[RequestRecord] = []
        self.iterations: list[IterationRecord] = []
        self.alive: list[int] = []
        HookRequests(lambda: fronts).bring_in(pid)
        ring, self.came = HookRing(pid), time.monotonic()
        deadline = time.monotonic() + PATIENCE
        while (len(self.requests) < enough or not also(self)) and time.monotonic() < deadline:
            ring.renew()
            sample = ring.read(time.monotonic())
            self.requests += sample.requests
            self.iterations += sample.iterations
            self.alive += [] if sample.alive is None else [sample.alive]
            time.sleep(0.1)
        content = Path(find_ring(pid)).read_bytes()
        assert content.count(b"\0") < len(content) and CONTENT.encode() not in content, "only counts and times"
        ring.release()
        ring.close()
        take_out([pid])
        assert find_ring(pid) is None, "nothing stays"
        assert len(self.requests) >= enough and also(self), (len(self.requests), self.alive[-9:])
        server.unload()
        assert server.failures == []
        self.pairs = paired(self.requests, server.exchanges, latest)


def paired(requests, exchanges, latest):
    """Each request with its exchange, where there is one in which it arrived and was answered at just these times.

    It arrived after the client began and at the `latest` one says; it ended after its handler was `ready` (if the
    answer says when) and when the client had the answer, which may go on before the server does.
    """
    pairs, left = [], sorted(exchanges, key=lambda exchange: exchange.end)
    for request in sorted(requests, key=lambda request: request.end):
        arrival = request.end - request.seconds
        for exchange in left:
            ready = exchange.answer.get("ready", exchange.start)
            arrives = exchange.start - TICK <= arrival <= latest(exchange) + 2 * TICK
            if arrives and ready <= request.end <= exchange.end + 2 * TICK:
                pairs.append((request, exchange))
                left.remove(exchange)
                break
    return pairs


def check_latency(reading):
    """Nearly all requests lasted from when their client sent them until it had the answer, as far as cores are free."""
    assert len(reading.pairs) >= 0.75 * len(reading.requests)


def check_parts(requests, since=0.0):
    """Return those of which all parts are known, at least half of them. These add up to the request.

    Those that began before `since` are not returned: the hook may have come in the middle of their model's forward.
    """
    whole = []
    for request in requests:
        parts = (request.queue, request.preprocess, request.model, request.postprocess)
        if None not in parts:
            assert sum(parts) == pytest.approx(request.seconds, abs=1e-6)
            whole.append(request)
    assert len(whole) >= len(requests) // 2
    return [request for request in whole if request.end - request.seconds >= since]


@pytest.fixture(scope="module")
def start():
    """`start(script, *arguments)` starts one of the servers, or returns the one that was started with these before."""
    begun: dict[tuple, LoadedServer] = {}

    with ExitStack() as servers:

        def begin(*command):
            if command not in begun:
                script, *arguments = command
                server = LoadedServer([str(SERVERS / script), "{port}", *map(str, arguments)])
                begun[command] = servers.enter_context(server)
            return begun[command]

        yield begin


@pytest.fixture(params=[("h11", "asyncio"), ("httptools", "uvloop")], ids=["h11-asyncio", "httptools-uvloop"])
def web_server(request, start):
    """FastAPI in uvicorn, with either of its parsers and loops."""
    for module in ("uvicorn", "fastapi", *request.param):
        pytest.importorskip(module)
    return start("fastapi_server.py", *request.param)


def test_a_web_server_whose_handlers_run_in_threads(web_server):
    web_server.load("/threads")
    reading = HookReading(web_server, web_server.process.pid, also=lambda reading: CLIENTS in reading.alive)
    check_latency(reading)
    for request in check_parts(reading.requests, reading.came):
        assert request.preprocess >= 0.010 and request.model >= 0.020 and request.postprocess >= 0.005
    # One more was seen for a moment, probably as a client asks again before the server is through with its last answer.
    assert median(reading.alive) <= CLIENTS


def test_handlers_that_block_the_event_loop_make_the_others_wait(web_server):
    web_server.load("/loop")
    reading = HookReading(web_server, web_server.process.pid)
    check_latency(reading)
    check_parts(reading.requests)
    # Until the loop comes to their handler, requests wait in it or in their sockets. Most do so while others compute.
    waits = [(request.queue, exchange.answer["began"] - exchange.sent) for request, exchange in reading.pairs]
    assert median([abs(queue - wait) for queue, wait in waits]) <= 2 * TICK
    assert median([wait for _, wait in waits]) >= 0.010


def test_the_first_part_of_a_streamed_answer(web_server):
    # One client: with several it would not be sure which answer is whose.
    web_server.load("/stream", clients=1)
    reading = HookReading(web_server, web_server.process.pid, 20)
    check_latency(reading)
    for request, exchange in reading.pairs:
        answer = exchange.answer
        # Two more calls of the model come after it.
        assert answer["first"] <= request.end - request.seconds + request.first_sent <= answer["ready"] - 2 * 0.020


def test_a_web_server_without_torch(start):
    for module in ("uvicorn", "fastapi"):
        pytest.importorskip(module)
    server = start("front_server.py")
    pid = server.process.pid
    server.load("/ask")
    with pytest.raises(AttachRefused, match="has not loaded torch"):
        HookRequests().bring_in(pid)
    reading = HookReading(server, pid, also=lambda reading: CLIENTS in reading.alive, fronts=(pid,))
    check_latency(reading)
    assert {request.model for request in reading.requests} == {None} and max(reading.alive) == CLIENTS
    # As soon as it has torch, the hook leaves and may come again for all that there is to measure.
    server.load("/ask")
    HookRequests(lambda: (pid,)).bring_in(pid)
    ring = HookRing(pid)
    urlopen(f"http://127.0.0.1:{server.port}/load", timeout=60).read()

    def has_left():
        ring.renew()
        ring.read(time.monotonic())
        return ring.state == "removed"

    until(has_left, PATIENCE, pause=0.05)
    ring.close()
    assert find_ring(pid) is None
    assert any(request.model is not None for request in HookReading(server, pid).requests)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http.server", "wsgiref", "werkzeug", "http.server beside torch"])
def test_a_front_made_of_pythons_own_server_is_found_and_measured(kind, start, watched):
    if kind == "werkzeug":
        pytest.importorskip(kind)
    server = start("plain_front.py", *kind.split(" beside "))
    # A connection that rests between two requests has none.
    server.load("/ask", pause=0.03)

    def check(report):
        serving = report["serving"]
        assert report["target"]["engine"].startswith("werkzeug" if kind == "werkzeug" else "http.server")
        assert serving["basis"] == "hook" and serving["requests_per_s"] > 0
        now = time.monotonic()
        lately = [exchange for exchange in server.exchanges if exchange.end > now - report["window_s"]]
        took = median([exchange.end - exchange.start for exchange in lately])
        assert serving["latency_ms"]["p50"] == pytest.approx(1e3 * took, abs=1e3 * 2 * TICK)
        assert serving["requests_per_s"] == pytest.approx(len(lately) / report["window_s"], rel=0.25)

    watched(server.process.pid, check, least=8.0)
    server.unload()
    assert server.failures == [] and find_ring(server.process.pid) is None


@pytest.mark.parametrize(
    ("command", "engine", "part"),
    [
        (
            "-m gunicorn plain_front:application --workers 2 --bind 127.0.0.1:{port} --chdir SERVERS",
            "gunicorn",
            "worker",
        ),
        pytest.param(
            "-m gunicorn plain_front:application -k gevent --workers 2 --bind 127.0.0.1:{port} --chdir SERVERS",
            "gunicorn",
            "worker",
            marks=pytest.mark.slow,
        ),
        pytest.param("SERVERS/plain_front.py {port} forked", "http.server", "API server", marks=pytest.mark.slow),
    ],
    ids=["gunicorn", "gevent", "http.server"],
)
def test_requests_of_forked_workers_are_those_of_one_server(command, engine, part, watched):
    pytest.importorskip(engine)
    with LoadedServer(command.replace("SERVERS", str(SERVERS)).split()) as server:
        server.load("/ask", pause=0.01)

        def check(report):
            serving, target = report["serving"], report["target"]
            assert target["engine"].startswith(engine)
            assert [process.get("part") for process in target["processes"]].count(part) == 2
            now = time.monotonic()
            lately = [exchange for exchange in server.exchanges if exchange.end > now - serving["window_s"]]
            assert serving["basis"] == "hook"
            assert serving["requests_per_s"] == pytest.approx(len(lately) / serving["window_s"], rel=0.15)
            took = median([exchange.end - exchange.start for exchange in lately])
            assert serving["latency_ms"]["p50"] == pytest.approx(1e3 * took, abs=1e3 * 2 * TICK)

        watched(server.process.pid, check, least=8.0)
        server.unload()
        assert server.failures == []
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert [find_ring(process.pid) for process in children] == [None, None]


def worker_of(server):
    """The process of a LitServe server that runs the model."""
    for child in psutil.Process(server.process.pid).children(recursive=True):
        if any("spawn_main" in part for part in child.cmdline()):
            return child.pid
    raise AssertionError("no worker")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_the_worker_of_litserve(batch, start):
    pytest.importorskip("litserve")
    server = start("litserve_server.py", batch)
    server.load("/predict", json.dumps({"text": CONTENT}).encode())

    def full(reading):
        return batch in (turn.requests for turn in reading.iterations)

    reading = HookReading(server, worker_of(server), also=full, latest=lambda exchange: exchange.answer["began"])
    check_latency(reading)
    # What passes in the web server, another process, is not in it.
    assert median([request.seconds / (exchange.end - exchange.start) for request, exchange in reading.pairs]) >= 0.5
    for request in check_parts(reading.requests, reading.came):
        assert request.preprocess >= 0.008 and request.model >= 0.020 and request.postprocess >= 0.002
    sizes = [turn.requests for turn in reading.iterations]
    assert max(sizes) == batch and sum(sizes) == pytest.approx(len(reading.requests), abs=2 * batch)
    for turn in reading.iterations:
        assert turn.seconds >= turn.model >= 0.020 and turn.prepare >= 0.003 * turn.requests + 0.005


def has_tokens(request):
    """Whether the engine has said how many tokens it made."""
    return request.tokens is not None


@pytest.mark.slow
def test_continuous_batching_of_transformers_behind_a_web_server(start):
    pytest.importorskip("transformers.generation.continuous_batching")
    pytest.importorskip("fastapi")
    server = start("batching_server.py", 64)
    server.load("/generate")
    # The hook measures requests of the web server at once, those of the engine when it has loaded that.

    def enough_have(reading):
        return sum(map(has_tokens, reading.requests)) >= ENOUGH

    reading = HookReading(server, server.process.pid, also=enough_have)
    check_latency(reading)
    measured = list(takewhile(has_tokens, reversed(reading.requests)))
    assert len(measured) >= ENOUGH - CLIENTS
    check_parts(measured)
    assert {(request.tokens, request.prompt_tokens) for request in measured} == {(12, 5)}, "one record for each"
    assert all(0 < request.first_token < request.seconds for request in measured)
    assert {"decode"} <= {turn.kind for turn in reading.iterations} <= {"prefill", "decode", "mixed"}
    for turn in reading.iterations:
        assert turn.schedule + turn.prepare + turn.model + turn.output <= turn.seconds + 1e-6
        assert turn.requests <= CLIENTS and 0 < turn.kv_used < 1


def vllm_command(folder, blocks=None):
    """The words of the command behind the interpreter, for a tiny model in the folder."""
    if VLLM_PYTHON is None:
        pytest.skip("AITOP_TEST_VLLM_PYTHON names no interpreter")
    if subprocess.run([VLLM_PYTHON, "-c", "import vllm"], capture_output=True).returncode:
        pytest.skip(f"vllm cannot be imported by {VLLM_PYTHON}")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(TINY))
    return [
        "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"),
        "--load-format", "dummy", "--enforce-eager", "--dtype", "float32", "--skip-tokenizer-init",
        "--max-model-len", "128", "--block-size", "32", "--port", "{port}",
        *(["--num-gpu-blocks-override", str(blocks)] if blocks else []),
    ]  # fmt: skip


@pytest.fixture(params=[None, 6], ids=["roomy", "crowded"])
def vllm_server(request, tmp_path):
    command = vllm_command(tmp_path, request.param)
    # No monitor of ours in its path.
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": ""}
    with LoadedServer(command, python=VLLM_PYTHON, env=environment) as server:
        server.crowded, server.model = request.param is not None, str(tmp_path / "model")
        yield server


def test_the_engine_of_vllm(vllm_server):
    server = vllm_server
    asked = {"prompt": [5, 6, 7, 8], "max_tokens": 48, "min_tokens": 48, "temperature": 0, "detokenize": False}
    body = json.dumps({"model": server.model, "ignore_eos": True, **asked})
    server.load("/v1/completions", body.encode())
    time.sleep(2)
    (engine,) = (
        child.pid
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "EngineCore" in child.cmdline()[0]
    )
    reading = HookReading(server, engine, latest=lambda exchange: exchange.end)
    check_latency(reading)
    # What the API server does before and after, another process, is not in it.
    assert median([request.seconds / (exchange.end - exchange.start) for request, exchange in reading.pairs]) >= 0.5
    known = reading.requests[CLIENTS:]
    assert {(request.tokens, request.prompt_tokens) for request in known} == {(48, 4)}
    for request in known:
        assert request.queue + request.preprocess + request.model == pytest.approx(request.seconds, abs=1e-6)
        assert 0 < request.first_token < request.seconds and request.postprocess is None
    assert {"decode"} <= {turn.kind for turn in reading.iterations} <= {"prefill", "decode", "mixed"}
    for turn in reading.iterations:
        assert turn.schedule + turn.model + turn.sample + turn.output <= turn.seconds + 1e-6
        assert 1 <= turn.requests <= CLIENTS and turn.prefill_tokens + turn.decode_tokens >= turn.requests
    # The turns and the time without work fill the time.
    span = reading.iterations[-1].end - reading.iterations[0].end
    assert sum(turn.seconds + (turn.idle or 0) for turn in reading.iterations[1:]) == pytest.approx(span, rel=0.01)
    preempted = sum(turn.preempted for turn in reading.iterations)
    assert bool(preempted) == server.crowded and bool(sum(request.preempted for request in known)) == server.crowded
