"""Servers that nobody prepared: the hook goes in while they answer, and tells of their requests what clients saw."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from itertools import takewhile
from pathlib import Path
from statistics import median_high as median
from typing import Any, NamedTuple

import psutil
import pytest
from serving_run import free_port

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


class Server:
    """A server as a child of its own session, and the answers that clients got from it."""

    def __init__(self, folder, command, port, ready="/health", patience=120.0, env=None):
        self.port, self.failures = port, []
        self.exchanges: list[Exchange] = []
        self.clients: list[threading.Thread] = []
        self._stop = threading.Event()
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **(env or {})}
            )
        until = time.monotonic() + patience
        while not self.answers(ready):
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def answers(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

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

    def end(self):
        self.unload()
        family = [self.process.pid, *(child.pid for child in psutil.Process(self.process.pid).children(recursive=True))]
        for pid in family:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
        self.process.wait()


class Seen:
    """What the hook in one process has told: it is brought in, read until there is enough, and taken out again.

    `also` says of this object whether it has all else that the test needs. `pairs` are the requests with their
    exchanges, in which they arrived at the `latest`. `fronts` need no torch.
    """

    def __init__(
        self, server, pid, enough=ENOUGH, also=lambda seen: True, latest=lambda exchange: exchange.sent, fronts=()
    ):
        self.requests: list[RequestRecord] = []
        self.iterations: list[IterationRecord] = []
        self.alive: list[int] = []
        HookRequests(lambda: fronts).bring_in(pid)
        ring = HookRing(pid)
        until = time.monotonic() + PATIENCE
        while (len(self.requests) < enough or not also(self)) and time.monotonic() < until:
            ring.renew()
            sample = ring.read(time.monotonic())
            self.requests += sample.requests
            self.iterations += sample.iterations
            self.alive += [] if sample.alive is None else [sample.alive]
            time.sleep(0.1)
        told = Path(find_ring(pid)).read_bytes()
        assert told.count(b"\0") < len(told) and CONTENT.encode() not in told, "only counts and times"
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
    pairs, left = [], sorted(exchanges, key=lambda one: one.end)
    for one in sorted(requests, key=lambda one: one.end):
        arrival = one.end - one.seconds
        for exchange in left:
            ready = exchange.answer.get("ready", exchange.start)
            arrives = exchange.start - TICK <= arrival <= latest(exchange) + 2 * TICK
            if arrives and ready <= one.end <= exchange.end + 2 * TICK:
                pairs.append((one, exchange))
                left.remove(exchange)
                break
    return pairs


def check_latency(seen):
    """Nearly all requests lasted from when their client sent them until it had the answer, as far as cores are free."""
    assert len(seen.pairs) >= 0.75 * len(seen.requests)


def check_parts(requests):
    """Return those of which all parts are known, at least half of them. These add up to the request."""
    whole = [one for one in requests if None not in (one.queue, one.preprocess, one.model, one.postprocess)]
    assert len(whole) >= len(requests) // 2
    for one in whole:
        assert one.queue + one.preprocess + one.model + one.postprocess == pytest.approx(one.seconds, abs=1e-6)
    return whole


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """`start(script, *arguments)` starts one of the servers, or returns the one that was started with these before."""
    begun: dict[tuple, Server] = {}

    def begin(*command):
        if command not in begun:
            port, (script, *arguments) = free_port(), command
            argv = [sys.executable, str(SERVERS / script), str(port), *map(str, arguments)]
            begun[command] = Server(tmp_path_factory.mktemp("server"), argv, port)
        return begun[command]

    yield begin
    for server in begun.values():
        server.end()


@pytest.fixture(params=[("h11", "asyncio"), ("httptools", "uvloop")], ids=["h11-asyncio", "httptools-uvloop"])
def web_server(request, start):
    """FastAPI in uvicorn, with either of its parsers and loops."""
    for module in ("uvicorn", "fastapi", *request.param):
        pytest.importorskip(module)
    return start("fastapi_server.py", *request.param)


def test_a_web_server_whose_handlers_run_in_threads(web_server):
    web_server.load("/threads")
    seen = Seen(web_server, web_server.process.pid, also=lambda seen: CLIENTS in seen.alive)
    check_latency(seen)
    for one in check_parts(seen.requests):
        assert one.preprocess >= 0.010 and one.model >= 0.020 and one.postprocess >= 0.005
    assert max(seen.alive) == CLIENTS


def test_handlers_that_block_the_event_loop_make_the_others_wait(web_server):
    web_server.load("/loop")
    seen = Seen(web_server, web_server.process.pid)
    check_latency(seen)
    check_parts(seen.requests)
    # Until the loop comes to their handler, requests wait in it or in their sockets. Most do so while others compute.
    waits = [(one.queue, exchange.answer["began"] - exchange.sent) for one, exchange in seen.pairs]
    assert median([abs(queue - wait) for queue, wait in waits]) <= 2 * TICK
    assert median([wait for _, wait in waits]) >= 0.010


def test_the_first_part_of_a_streamed_answer(web_server):
    # One client: with several it would not be sure which answer is whose.
    web_server.load("/stream", clients=1)
    seen = Seen(web_server, web_server.process.pid, 20)
    check_latency(seen)
    for one, exchange in seen.pairs:
        answer = exchange.answer
        # Two more calls of the model come after it.
        assert answer["first"] <= one.end - one.seconds + one.first_sent <= answer["ready"] - 2 * 0.020


def test_a_web_server_without_torch(start):
    for module in ("uvicorn", "fastapi"):
        pytest.importorskip(module)
    server = start("front_server.py")
    pid = server.process.pid
    server.load("/ask")
    with pytest.raises(AttachRefused, match="has not loaded torch"):
        HookRequests().bring_in(pid)
    seen = Seen(server, pid, also=lambda seen: CLIENTS in seen.alive, fronts=(pid,))
    check_latency(seen)
    assert {one.model for one in seen.requests} == {None} and max(seen.alive) == CLIENTS
    # As soon as it has torch, the hook leaves and may come again for all that there is to measure.
    server.load("/ask")
    HookRequests(lambda: (pid,)).bring_in(pid)
    ring = HookRing(pid)
    assert server.answers("/load")
    until = time.monotonic() + PATIENCE
    while ring.state != "removed" and time.monotonic() < until:
        ring.renew()
        ring.read(time.monotonic())
        time.sleep(0.05)
    ring.close()
    assert find_ring(pid) is None
    assert any(one.model is not None for one in Seen(server, pid).requests)


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
        until = time.monotonic()
        lately = [one for one in server.exchanges if one.end > until - report["window_s"]]
        took = median([one.end - one.start for one in lately])
        assert serving["latency_ms"]["p50"] == pytest.approx(1e3 * took, abs=1e3 * 2 * TICK)
        assert serving["requests_per_s"] == pytest.approx(len(lately) / report["window_s"], rel=0.25)

    watched(server.process.pid, check, least=8.0)
    server.unload()
    assert server.failures == [] and find_ring(server.process.pid) is None


@pytest.mark.parametrize(
    ("command", "engine", "part"),
    [
        ("-m gunicorn plain_front:application --workers 2 --bind 127.0.0.1:PORT --chdir SERVERS", "gunicorn", "worker"),
        pytest.param("SERVERS/plain_front.py PORT forked", "http.server", "API server", marks=pytest.mark.slow),
    ],
    ids=["gunicorn", "http.server"],
)
def test_requests_of_forked_workers_are_those_of_one_server(command, engine, part, tmp_path, watched):
    pytest.importorskip(engine)
    port = free_port()
    words = command.replace("PORT", str(port)).replace("SERVERS", str(SERVERS)).split()
    server = Server(tmp_path, [sys.executable, *words], port)
    try:
        server.load("/ask", pause=0.01)

        def check(report):
            serving, target = report["serving"], report["target"]
            assert target["engine"].startswith(engine)
            assert [process.get("part") for process in target["processes"]].count(part) == 2
            until = time.monotonic()
            lately = [one for one in server.exchanges if one.end > until - serving["window_s"]]
            assert serving["basis"] == "hook"
            assert serving["requests_per_s"] == pytest.approx(len(lately) / serving["window_s"], rel=0.15)
            took = median([one.end - one.start for one in lately])
            assert serving["latency_ms"]["p50"] == pytest.approx(1e3 * took, abs=1e3 * 2 * TICK)

        watched(server.process.pid, check, least=8.0)
        server.unload()
        assert server.failures == []
        tree = psutil.Process(server.process.pid).children(recursive=True)
        assert [find_ring(process.pid) for process in tree] == [None, None]
    finally:
        server.end()


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

    def full(seen):
        return batch in (turn.requests for turn in seen.iterations)

    seen = Seen(server, worker_of(server), also=full, latest=lambda exchange: exchange.answer["began"])
    check_latency(seen)
    # What passes in the web server, another process, is not in it.
    assert median([one.seconds / (exchange.end - exchange.start) for one, exchange in seen.pairs]) >= 0.5
    for one in check_parts(seen.requests):
        assert one.preprocess >= 0.008 and one.model >= 0.020 and one.postprocess >= 0.002
    sizes = [turn.requests for turn in seen.iterations]
    assert max(sizes) == batch and sum(sizes) == pytest.approx(len(seen.requests), abs=2 * batch)
    for turn in seen.iterations:
        assert turn.seconds >= turn.model >= 0.020 and turn.prepare >= 0.003 * turn.requests + 0.005


def told(request):
    """Whether the engine has said how many tokens it made."""
    return request.tokens is not None


@pytest.mark.slow
def test_continuous_batching_of_transformers_behind_a_web_server(start):
    pytest.importorskip("transformers.generation.continuous_batching")
    pytest.importorskip("fastapi")
    server = start("batching_server.py", 64)
    server.load("/generate")
    # The hook measures requests of the web server at once, those of the engine when it has loaded that.
    seen = Seen(server, server.process.pid, also=lambda seen: sum(map(told, seen.requests)) >= ENOUGH)
    check_latency(seen)
    measured = list(takewhile(told, reversed(seen.requests)))
    assert len(measured) >= ENOUGH - CLIENTS
    check_parts(measured)
    assert {(one.tokens, one.prompt_tokens) for one in measured} == {(12, 5)}, "one record for each"
    assert all(0 < one.first_token < one.seconds for one in measured)
    assert {"decode"} <= {turn.kind for turn in seen.iterations} <= {"prefill", "decode", "mixed"}
    for turn in seen.iterations:
        assert turn.schedule + turn.prepare + turn.model + turn.output <= turn.seconds + 1e-6
        assert turn.requests <= CLIENTS and 0 < turn.kv_used < 1


def vllm_command(folder, port, blocks=None):
    if VLLM_PYTHON is None:
        pytest.skip("AITOP_TEST_VLLM_PYTHON names no interpreter")
    if subprocess.run([VLLM_PYTHON, "-c", "import vllm"], capture_output=True).returncode:
        pytest.skip(f"vllm cannot be imported by {VLLM_PYTHON}")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(TINY))
    return [
        VLLM_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model"),
        "--load-format", "dummy", "--enforce-eager", "--dtype", "float32", "--skip-tokenizer-init",
        "--max-model-len", "128", "--block-size", "32", "--port", str(port),
        *(["--num-gpu-blocks-override", str(blocks)] if blocks else []),
    ]  # fmt: skip


@pytest.fixture(params=[None, 6], ids=["roomy", "crowded"])
def vllm_server(request, tmp_path):
    port = free_port()
    command = vllm_command(tmp_path, port, request.param)
    # No monitor of ours in its path.
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": ""}
    server = Server(tmp_path, command, port, patience=180, env=environment)
    server.crowded = request.param is not None
    yield server
    server.end()


def test_the_engine_of_vllm(vllm_server):
    server = vllm_server
    asked = {"prompt": [5, 6, 7, 8], "max_tokens": 48, "min_tokens": 48, "temperature": 0, "detokenize": False}
    body = json.dumps({"model": str(server.log.parent / "model"), "ignore_eos": True, **asked})
    server.load("/v1/completions", body.encode())
    time.sleep(2)
    (engine,) = (
        child.pid
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "EngineCore" in child.cmdline()[0]
    )
    seen = Seen(server, engine, latest=lambda exchange: exchange.end)
    check_latency(seen)
    # What the API server does before and after, another process, is not in it.
    assert median([one.seconds / (exchange.end - exchange.start) for one, exchange in seen.pairs]) >= 0.5
    known = seen.requests[CLIENTS:]
    assert {(one.tokens, one.prompt_tokens) for one in known} == {(48, 4)}
    for one in known:
        assert one.queue + one.preprocess + one.model == pytest.approx(one.seconds, abs=1e-6)
        assert 0 < one.first_token < one.seconds and one.postprocess is None
    assert {"decode"} <= {turn.kind for turn in seen.iterations} <= {"prefill", "decode", "mixed"}
    for turn in seen.iterations:
        assert turn.schedule + turn.model + turn.sample + turn.output <= turn.seconds + 1e-6
        assert 1 <= turn.requests <= CLIENTS and turn.prefill_tokens + turn.decode_tokens >= turn.requests
    # The turns and the time without work fill the time.
    span = seen.iterations[-1].end - seen.iterations[0].end
    assert sum(turn.seconds + (turn.idle or 0) for turn in seen.iterations[1:]) == pytest.approx(span, rel=0.01)
    preempted = sum(turn.preempted for turn in seen.iterations)
    assert bool(preempted) == server.crowded and bool(sum(one.preempted for one in known)) == server.crowded
