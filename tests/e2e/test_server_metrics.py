"""A server's own `/metrics`, live: read over the loopback at a low rate, and only if it is wanted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving_run import free_port

pytestmark = pytest.mark.e2e

PROGRAM = Path(__file__).parent / "servers" / "metrics_server.py"
# Runs aitop and prints every address that it connects to, or tries to.
LISTENER = """
import sys

def listen(event, arguments):
    if event == "socket.connect":
        sys.stderr.write(f"connects {arguments[1]!r}\\n")

sys.addaudithook(listen)
from aitop.__main__ import main
main()
"""


@pytest.fixture
def serving(start, tmp_path):
    """`serving()` starts the server in the place of vLLM's; gives its process and the file with what it was asked."""

    def run(*flags: str):
        packages = tmp_path / "lib" / "site-packages"
        module = packages / "vllm" / "entrypoints" / "openai" / "api_server.py"
        module.parent.mkdir(parents=True)
        (packages / "vllm-0.32.0.dist-info").mkdir()
        shutil.copy(PROGRAM, module)
        log = tmp_path / "asked"
        log.touch()
        port = free_port()
        argv = [
            sys.executable,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--port",
            str(port),
            "--log",
            str(log),
            *flags,
        ]
        return start(argv, cwd=packages), log

    return run


def test_the_figures_of_a_server_are_those_of_its_page(serving, watched):
    process, log = serving()

    def check(report):
        assert report["target"]["engine"] == "vllm 0.32.0" and report["target"]["kind"] == "inference"
        assert [member["part"] for member in report["target"]["processes"]] == ["API server"]
        assert report["sources"]["server"] == {"state": "ok"}
        served = report["serving"]
        assert served["basis"] == "metrics"
        assert served["requests_per_s"] == pytest.approx(20.0, rel=0.1)
        assert served["tokens_per_s"] == pytest.approx(1280.0, rel=0.1)
        assert served["concurrency"] == pytest.approx(12.0, rel=0.1)
        assert served["latency_ms"]["p50"] == pytest.approx(600.0, rel=0.05)
        assert served["latency_ms"]["p99"] == pytest.approx(796.0, rel=0.05)
        assert (served["kv_used"], served["alive"], served["batch_mean"]) == (0.25, 12, 12.0)
        assert served["still_s"] < 4.0 and served["itl_ms"] is None
        # Seldom: not more than every two seconds.
        asked = log.read_text().splitlines()
        assert set(asked) == {"127.0.0.1 /metrics"}
        assert 3 <= len(asked) <= (time.monotonic() - began) / 2.0 + 1

    began = time.monotonic()
    watched(process.pid, check, "--no-hook")


@pytest.mark.parametrize("flag", ["--no-metrics", "--passive"])
def test_nothing_is_asked_that_is_not_wanted(serving, watched, flag):
    process, log = serving()

    def check(report):
        assert report["sources"]["server"]["state"] == "absent" and flag in report["sources"]["server"]["reason"]
        assert report["target"]["engine"].startswith("vllm") and report["serving"]["basis"] == "stacks"
        assert report["serving"]["requests_per_s"] is None

    # A server that may be asked is asked at once.
    watched(process.pid, check, flag, least=2.0)
    assert log.read_text() == ""


def test_a_server_that_stands_is_still_and_alive(serving, watched):
    process, _ = serving("--stalled")

    def check(report):
        served = report["serving"]
        assert served["alive"] == 12 and served["still_s"] > 3.0
        assert served["requests_per_s"] == 0.0 and served["latency_ms"] is None

    watched(process.pid, check, "--no-hook")


@pytest.mark.slow
def test_nobody_but_the_server_is_connected_to(serving, aitop, tmp_path):
    process, log = serving()
    recording = tmp_path / "run.jsonl.gz"
    arguments = ["record", "--pid", str(process.pid), "--no-hook", "--for", "12s", "-o", str(recording)]

    done = subprocess.run(
        [sys.executable, "-c", LISTENER, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "http_proxy": "http://192.0.2.1:9", "HTTP_PROXY": "http://192.0.2.1:9"},
        check=False,
    )

    assert done.returncode == 0, done.stderr
    port = next(word for word in _argv(process.pid) if word.isdigit())
    connects = {line for line in done.stderr.splitlines() if line.startswith("connects")}
    assert connects == {f"connects ('127.0.0.1', {port})"}
    assert set(log.read_text().splitlines()) == {"127.0.0.1 /metrics"}
    report = json.loads(aitop("replay", recording, "--format", "json").stdout)
    assert report["target"]["engine"] == "vllm 0.32.0"
    assert report["serving"]["requests_per_s"] == pytest.approx(20.0, rel=0.15)


def _argv(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
