"""`aitop diagnose` on training runs that know nothing of aitop: verdicts, and the commands of --on and --exec."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from expected import BY_NAME
from launch import Training
from waiting import until

from aitop.sources import procfs
from aitop.sources.ring.reader import find_ring

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LEAST_SECONDS = 4.0
# Beside other tests the computing takes several times as long, and is to stay small beside the planted wait.
NARROW = 128


def check(report, name):
    """The primary verdict is the planted fault, at the guilty line."""
    scenario = BY_NAME[name]
    primary = report["verdicts"][0]
    assert primary["id"] == scenario.verdict, primary
    if scenario.subtypes:
        assert primary["subtype"] in scenario.subtypes, primary
    if scenario.guilty:
        where = primary["where"][0]
        assert where["file"] == str(scenario.script)
        assert where["line"] in scenario.guilty_lines(), where
    return primary


def check_waits(report, name):
    """It is certain that it waits for its data, and why and where."""
    primary = check(report, name)
    assert primary["severity"] == "critical"
    assert primary["share"] > 0.3
    assert primary["speedup"] > 1.2
    assert primary["fixes"]


def test_a_run_that_waits_for_its_workers_is_told_why_and_where(training, watched):
    process = training("tutorial_loader", "--width", NARROW).wait_steps(10)

    def check_all(report):
        check_waits(report, "tutorial_loader")
        check_contract(report, process.pid)

    watched(process.pid, check_all, least=LEAST_SECONDS)
    assert process.alive()


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A run that waits for a request at each sample."""
    run = Training("tutorial_latency", "--width", NARROW, log=tmp_path_factory.mktemp("training") / "log")
    try:
        yield run.wait_steps(10)
    finally:
        run.stop()


def test_a_run_that_waits_for_a_request_at_each_sample_is_told_why_and_where(waiting, watched):
    watched(waiting.pid, lambda report: check_waits(report, "tutorial_latency"))

    assert waiting.alive()


def test_a_command_gets_the_report_of_the_moment(waiting, diagnose, tmp_path):
    file = tmp_path / "alert.json"
    report = diagnose(waiting.pid, 15.0, "--on", "input-bound", "--exec", f"cat > {file}; echo mailed")

    assert report["verdicts"][0]["id"] == "input-bound"
    assert "input-bound" in [verdict["id"] for verdict in json.loads(file.read_text())["verdicts"]]
    assert waiting.alive()


def test_a_command_that_fails_changes_nothing(waiting, aitop):
    done = aitop("diagnose", "--pid", waiting.pid, "--for", "15s", "--on", "any", "--exec", "no-such-program-here")
    assert done.returncode == 0
    assert "INPUT-BOUND" in done.stdout
    assert "aitop: the command of --exec ended with code 127: no-such-program-here\n" in done.stderr


def test_terminating_the_monitor_ends_the_command(waiting, start, tmp_path):
    file = tmp_path / "pid"
    command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(waiting.pid), "--for", "120s", "--on", "any"]
    monitor = start([*command, "--exec", f"sleep 300 & echo $! > {file}; wait"], wait=False, stderr=subprocess.PIPE)

    def begun():
        assert monitor.poll() is None, monitor.stderr.read()
        return file.exists() and file.read_text().strip()

    pid = int(until(begun, pause=0.1))
    try:
        monitor.send_signal(signal.SIGTERM)
        assert monitor.wait(30) == 128 + signal.SIGTERM
        assert (stat := procfs.stat(pid)) is None or stat.state == "Z"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert waiting.alive()


def check_contract(report, pid):
    """What scripts rely on, in the report of a training run with two workers."""
    assert report["schema"] == 1
    assert report["target"]["pid"] == pid
    assert report["target"]["kind"] == "training"
    roles = [member["role"] for member in report["target"]["processes"]]
    assert roles.count("rank") == 1
    assert roles.count("loader-worker") == 2
    assert report["sources"]["hook"]["state"] == "ok"
    assert report["sources"]["stacks"]["state"] == "ok"
    assert report["step"]["count"] > 10
    assert sum(share or 0.0 for share in report["step"]["phases"].values()) == pytest.approx(1.0, abs=0.1)


def test_a_healthy_run_is_compute_bound_and_not_warned(training, watched):
    process = training("healthy_mlp").wait_steps(10)

    def check_healthy(report):
        check(report, "healthy_mlp")
        assert [verdict["id"] for verdict in report["verdicts"] if verdict["severity"] != "info"] == []

    watched(process.pid, check_healthy, least=LEAST_SECONDS)


def test_losses_are_the_same_bit_for_bit_with_aitop_coming_and_going(training, watched, tmp_path: Path):
    alone_file, watched_file = tmp_path / "alone", tmp_path / "watched"
    alone = training("tutorial_loader", "--fixed", "--seed", 3, "--losses", alone_file)
    watched_run = training("tutorial_loader", "--fixed", "--seed", 3, "--losses", watched_file)
    watched_run.wait_steps(1)

    def check_steps(report):
        assert report["sources"]["hook"]["state"] == "ok", report["sources"]["hook"]
        assert report["step"]["count"] > 0

    for _ in range(2):
        watched(watched_run.pid, check_steps, least=2.0)
        assert find_ring(watched_run.pid) is None

    watched_run.stop()
    with_aitop = watched_file.read_text().split()
    alone.wait_losses(alone_file, len(with_aitop))
    assert len(set(with_aitop)) > 20
    assert with_aitop == alone_file.read_text().split()[: len(with_aitop)]
