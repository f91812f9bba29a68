"""A real Ray Serve, where an interpreter has it: its replica among Ray's many processes, its requests, and its line."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from serving_run import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PYTHON = os.environ.get("AITOP_TEST_RAY_PYTHON", sys.executable)
SERVER = Path(__file__).parent / "servers" / "ray_serve.py"


@pytest.fixture(scope="module")
def deployment():
    """The pid of the program that has started Ray and serves, while three clients ask it."""
    if subprocess.run([PYTHON, "-c", "import ray.serve, torch"], capture_output=True, check=False).returncode:
        pytest.skip("the interpreter that AITOP_TEST_RAY_PYTHON names has no ray[serve] with torch")
    port, over = free_port(), threading.Event()
    command = [PYTHON, str(SERVER), str(port)]
    environment = {**os.environ, "PYTHONPATH": ""}
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while not over.wait(0.03):
            connection.request("GET", "/")
            assert connection.getresponse().read()
        connection.close()

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
    try:
        assert "up\n" in iter(server.stdout.readline, "")
        for client in clients:
            client.start()
        yield server.pid
    finally:
        over.set()
        for client in clients:
            client.join(30)
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            server.kill()
            raise


def names_the_line(verdict):
    return any(where["file"] == str(SERVER) and where["function"].endswith("features") for where in verdict["where"])


def test_requests_of_a_replica_are_measured_from_the_program_that_started_ray(deployment, watched):
    def check(report):
        assert report["target"]["engine"].startswith("ray serve ")
        first = report["verdicts"][0]
        assert first["id"] == "preprocessing-bound"
        assert names_the_line(first)
        serving = report["serving"]
        assert serving["basis"] == "hook"
        assert serving["requests_per_s"] > 5
        assert serving["latency_ms"]["p50"] > 1

    watched(deployment, check)


def test_without_the_hook_the_line_is_named(deployment, watched):
    def check(report):
        assert names_the_line(report["verdicts"][0])
        assert not [verdict for verdict in report["verdicts"] if verdict["id"] == "python-overhead"]

    watched(deployment, check, "--no-hook")
