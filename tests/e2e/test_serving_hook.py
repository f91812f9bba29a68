"""Servers that nobody prepared: the hook goes in while they answer, and tells of their requests what clients saw."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from aitop.engine.hook_requests import HookRequests, take_out
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.sources.ring.reader import HookRing, find_ring

pytestmark = pytest.mark.e2e

SERVERS = Path(__file__).parent / "servers"
CLIENTS = 4
# Enough of them to compare percentiles of, or give up.
ENOUGH, PATIENCE = 60, 30.0
VLLM_PYTHON = os.environ.get("AITOP_TEST_VLLM_PYTHON")
# A model of two layers, and no tokenizer: prompts are token ids.
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 256,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Server:
    """A server as a child of its own session, and the answers that clients got from it."""

    def __init__(self, folder, command, port, ready="/health", patience=60.0, env=None):
        self.port, self.waits, self.failures = port, [], []
        self.clients: list[threading.Thread] = []
        self._stop = threading.Event()
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **(env or {})}
            )
        until = time.monotonic() + patience
        while not self._answers(ready):
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def _answers(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def load(self, path, body=None, clients=CLIENTS):
        """Have clients ask without a pause until the end."""
        self.clients += [threading.Thread(target=self._client, args=(path, body), daemon=True) for _ in range(clients)]
        for client in self.clients:
            client.start()

    def _client(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Content-Type": "application/json"} if body else {}
        while not self._stop.is_set():
            start = time.monotonic()
            try:
                connection.request("POST" if body else "GET", path, body, headers)
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failures += [] if self._stop.is_set() else [repr(error)]
                return
            self.waits.append((time.monotonic(), time.monotonic() - start))
            if answer.status != 200:
                self.failures.append(text)

    def end(self):
        self._stop.set()
        for client in self.clients:
            client.join(5.0)
        family = [self.process.pid, *(child.pid for child in psutil.Process(self.process.pid).children(recursive=True))]
        for pid in family:
            if psutil.pid_exists(pid):
                psutil.Process(pid).kill()
        self.process.wait()


class Seen:
    """What the hook in one process has told: it is brought in, read until there is enough, and taken out again."""

    def __init__(self, server, pid, enough=ENOUGH):
        self.requests: list[RequestRecord] = []
        self.iterations: list[IterationRecord] = []
        self.alive: list[int] = []
        HookRequests().bring_in(pid)
        ring = HookRing(pid)
        until = time.monotonic() + PATIENCE
        while len(self.requests) < enough and time.monotonic() < until:
            ring.renew()
            sample = ring.read(time.monotonic())
            self.requests += sample.requests
            self.iterations += sample.iterations
            self.alive += [] if sample.alive is None else [sample.alive]
            time.sleep(0.1)
        ring.release()
        ring.close()
        take_out([pid])
        assert find_ring(pid) is None, "nothing stays"
        assert len(self.requests) >= enough
        # The same requests, as the clients have seen them.
        first, last = self.requests[0].end - 0.005, self.requests[-1].end + 0.1
        self.waits = [wait for end, wait in server.waits if first <= end <= last]
        assert server.failures == []


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def mean(values):
    return sum(values) / len(values)


def check_latency(seen):
    """The middle of the latencies, within 10 % (and a tick of the kernel's clock) of what clients waited."""
    assert median([one.seconds for one in seen.requests]) == pytest.approx(median(seen.waits), rel=0.1, abs=0.006)


def check_parts(seen):
    """Where all parts are known, they add up to the request."""
    whole = [one for one in seen.requests if None not in (one.queue, one.preprocess, one.model, one.postprocess)]
    assert len(whole) >= len(seen.requests) // 2
    for one in whole:
        assert one.queue + one.preprocess + one.model + one.postprocess == pytest.approx(one.seconds, abs=1e-6)


@pytest.fixture
def start(tmp_path):
    begun: list[Server] = []

    def begin(script, *arguments, **options):
        port = free_port()
        command = [sys.executable, str(SERVERS / script), str(port), *map(str, arguments)]
        begun.append(Server(tmp_path, command, port, **options))
        return begun[-1]

    yield begin
    for server in begun:
        server.end()


@pytest.mark.parametrize(("protocol", "loop"), [("h11", "asyncio"), ("httptools", "uvloop")])
def test_a_web_server_whose_handlers_run_in_threads(protocol, loop, start):
    for module in ("uvicorn", "fastapi", protocol, loop):
        pytest.importorskip(module)
    server = start("fastapi_server.py", protocol, loop)
    server.load("/threads")
    seen = Seen(server, server.process.pid)
    check_latency(seen)
    check_parts(seen)
    assert mean([one.preprocess for one in seen.requests]) >= 0.010
    assert mean([one.model for one in seen.requests]) >= 0.020
    assert mean([one.postprocess for one in seen.requests]) >= 0.005
    assert max(seen.alive) == CLIENTS


@pytest.mark.parametrize(("protocol", "loop"), [("h11", "asyncio"), ("httptools", "uvloop")])
def test_handlers_that_block_the_event_loop_make_the_others_wait(protocol, loop, start):
    for module in ("uvicorn", "fastapi", protocol, loop):
        pytest.importorskip(module)
    server = start("fastapi_server.py", protocol, loop)
    server.load("/loop")
    seen = Seen(server, server.process.pid)
    check_latency(seen)
    check_parts(seen)
    # One runs the model for 20 ms, the others wait in the loop or in their sockets, or have not sent the next one yet.
    assert median([one.queue for one in seen.requests]) >= 0.5 * (CLIENTS - 1) * 0.020


def test_the_first_part_of_a_streamed_answer(start):
    pytest.importorskip("fastapi")
    server = start("fastapi_server.py", "h11", "asyncio")
    server.load("/stream")
    seen = Seen(server, server.process.pid, 20)
    firsts = [one.first_token for one in seen.requests if one.first_token is not None]
    assert len(firsts) >= len(seen.requests) - CLIENTS
    assert all(first >= 0.02 for first in firsts)
    assert mean(firsts) < 0.6 * mean([one.seconds for one in seen.requests])


def worker_of(server):
    """The process of a LitServe server that runs the model."""
    for child in psutil.Process(server.process.pid).children(recursive=True):
        if any("spawn_main" in part for part in child.cmdline()):
            return child.pid
    raise AssertionError("no worker")


@pytest.mark.parametrize("batch", [1, 4])
def test_the_worker_of_litserve(batch, start):
    pytest.importorskip("litserve")
    server = start("litserve_server.py", batch)
    server.load("/predict", b"{}")
    seen = Seen(server, worker_of(server))
    check_parts(seen)
    # What passes in the web server, another process, is not in it.
    assert 0.7 * median(seen.waits) <= median([one.seconds for one in seen.requests]) <= median(seen.waits) + 0.006
    assert mean([one.model for one in seen.requests]) >= 0.020
    assert mean([one.preprocess for one in seen.requests]) >= 0.003 * min(batch, 2)
    sizes = [turn.requests for turn in seen.iterations]
    assert max(sizes) == batch and sum(sizes) == pytest.approx(len(seen.requests), abs=2 * batch)
    assert all(turn.seconds >= turn.model >= 0.020 for turn in seen.iterations)


def test_continuous_batching_of_transformers_behind_a_web_server(start):
    pytest.importorskip("transformers.generation.continuous_batching")
    pytest.importorskip("fastapi")
    server = start("batching_server.py", 64)
    server.load("/generate")
    seen = Seen(server, server.process.pid)
    check_latency(seen)
    check_parts(seen)
    assert {(one.tokens, one.prompt_tokens) for one in seen.requests[CLIENTS:]} == {(12, 5)}, "one record for each"
    assert all(0 < one.first_token < one.seconds for one in seen.requests[CLIENTS:])
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
    seen = Seen(server, engine)
    # What the API server does after the last token, another process, is not in it.
    latency = mean([one.seconds for one in seen.requests])
    assert 0.5 * mean(seen.waits) <= latency <= 1.02 * mean(seen.waits), (latency, seen.waits)
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
