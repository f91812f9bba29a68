"""`aitop demo` as a user types it, without a terminal."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from expected import BY_NAME
from waiting import line_of

from aitop.commands.demo import FOLDER, running

pytestmark = [pytest.mark.e2e, pytest.mark.one_by_one]


# The command with its workloads elsewhere, and a shorter look.
DEMO = """
import sys
from pathlib import Path
from aitop.cli import run
from aitop.commands import demo
demo.FOLDER, demo.REPORT_SECONDS = Path(sys.argv[1]), 15.0
sys.exit(run(["demo", *sys.argv[2:]]))
"""


@pytest.mark.slow
def test_the_demo_reports_its_planted_fault_and_leaves_nothing_behind(slow_loader_script, tmp_path):
    recording = tmp_path / "demo.jsonl"

    command = [sys.executable, "-c", DEMO, str(slow_loader_script.parent), "--record", str(recording)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert "INPUT-BOUND" in done.stdout
    assert "fetch" in done.stdout
    guilty = BY_NAME["slow-loader"].guilty_lines()
    assert any(f"slow_loader.py:{line}" in done.stdout for line in guilty)
    assert "aitop demo slow-loader --fixed" in done.stderr
    pid = int(done.stdout.partition("pid ")[2].split()[0])
    assert not psutil.pid_exists(pid)
    assert recording.stat().st_size > 1000


def test_every_demo_is_listed_with_its_summary(aitop):
    done = aitop("demo", "--list")

    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [
        "checkpoints", "comm", "generate", "hang", "healthy", "leak", "serve", "slow-loader", "slow-transform",
        "straggler",
    ]  # fmt: skip
    assert all(len(line.split()) > 5 for line in done.stdout.splitlines())


def test_an_unknown_demo_is_one_sentence_and_exit_code_2(aitop):
    done = aitop("demo", "fast-loader")

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "slow-loader" in done.stderr


def test_without_torch_the_demo_says_what_to_install(tmp_path):
    script = "import sys; sys.modules['torch'] = None\nfrom aitop.cli import run\nsys.exit(run(['demo']))\n"

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert "pip install '.[demo]'" in done.stderr


def test_the_server_takes_its_clients_and_its_port_with_it():
    with running(FOLDER / "serve.py", ["--fixed"]) as pid:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        connections = family[0].net_connections()
        (listening,) = {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}
        assert len(family) == 2
        assert listening.ip == "127.0.0.1"

    assert psutil.wait_procs(family, timeout=60)[1] == []
    with socket.socket() as late:
        assert late.connect_ex(tuple(listening)) != 0


# Answers as the demo's server does, without a model.
ANSWERS = r"""
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        os.write(1, b"answered\n")

    def log_message(self, *args):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def test_clients_whose_server_was_killed_end_by_themselves(start):
    server = start([sys.executable, "-c", ANSWERS], wait=False)
    port = line_of(server).strip()
    clients = start([sys.executable, str(FOLDER / "clients" / "classify.py"), port], wait=False)
    # Each of them is in the middle of asking and thinking.
    assert {line_of(server) for _ in range(20)} == {"answered\n"}
    assert clients.poll() is None

    server.kill()

    assert clients.wait(60) == 0


@pytest.mark.slow
def test_the_line_that_keeps_the_decoder_waiting_is_named(watched):
    lines = (FOLDER / "generate.py").read_text().splitlines()
    guilty = next(number for number, line in enumerate(lines, 1) if "text.count(token)" in line)

    def check(report):
        first = report["verdicts"][0]
        assert first["id"] in ("python-overhead", "host-bound")
        assert (Path(first["where"][0]["file"]).name, first["where"][0]["line"]) == ("generate.py", guilty)

    with running(FOLDER / "generate.py", []) as pid:
        watched(pid, check, least=4.0)
