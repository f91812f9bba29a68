"""--on VERDICT --exec CMD on a run that waits for its data: the command gets the report, and ends with aitop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch import Training

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    run = Training("tutorial_latency", "--width", 128, log=tmp_path_factory.mktemp("training") / "log")
    yield run.wait_steps(10)
    run.stop()


def test_the_command_gets_the_report_of_the_moment(waiting, diagnose, tmp_path):
    report = tmp_path / "alert.json"
    told = diagnose(waiting.pid, 20.0, "--on", "input-bound", "--exec", f"cat > {report}; echo mailed")

    assert told["verdicts"][0]["id"] == "input-bound"
    assert "input-bound" in [verdict["id"] for verdict in json.loads(report.read_text())["verdicts"]]
    assert waiting.alive()


def test_a_command_that_fails_changes_nothing(waiting, aitop):
    done = aitop("diagnose", "--pid", waiting.pid, "--for", "20s", "--on", "any", "--exec", "no-such-program-here")
    assert done.returncode == 0
    assert "INPUT-BOUND" in done.stdout
    assert "aitop: the command of --exec ended with code 127: no-such-program-here\n" in done.stderr


def test_terminating_the_monitor_ends_the_command(waiting, tmp_path):
    started = tmp_path / "pid"
    command = ["diagnose", "--pid", str(waiting.pid), "--for", "120s", "--on", "any"]
    monitor = subprocess.Popen(
        [sys.executable, "-m", "aitop", *command, "--exec", f"sleep 300 & echo $! > {started}; wait"]
    )
    try:
        deadline = time.monotonic() + 60
        while not started.exists() or not started.read_text().strip():
            assert time.monotonic() < deadline and monitor.poll() is None
            time.sleep(0.1)
        monitor.send_signal(signal.SIGTERM)
        assert monitor.wait(30) == 128 + signal.SIGTERM
    finally:
        monitor.kill()
    stat = Path(f"/proc/{started.read_text().strip()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    assert waiting.alive()
