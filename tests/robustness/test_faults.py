"""A real run, and what may happen to whoever watches it: the run computes what it computes without."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys

import pytest
from fault_scene import SCRIPT, Scene, Target

pytestmark = pytest.mark.e2e

# More than the run makes while it is watched.
STEPS = 500
# Without waiting for the first stacks.
UP = "host●.* hook●"


@pytest.fixture
def scene(tmp_path):
    target = Target("steady")
    made = Scene(target, random.Random(0), tmp_path)
    yield made
    made.clear()
    target.kill()
    target.clear()


def test_faults_of_the_monitor_do_not_reach_the_run(scene, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    undisturbed = subprocess.Popen([sys.executable, str(SCRIPT), str(alone), "steady", str(STEPS)])
    target = scene.target.ready()
    recording = tmp_path / "recording.jsonl"
    monitor = scene.watch("--record", str(recording), "--interval", "0.2")
    assert monitor.until(UP, 90.0), monitor.screen.text()

    soft, hard = resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE)
    # No number that is free is below: nothing more can be opened.
    resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (3, hard))
    assert monitor.until("host✗", 60.0), monitor.screen.text()
    assert "target ended" not in monitor.screen.text()
    assert monitor.until("as many files|cannot be read just n", 20.0), monitor.screen.text()
    resource.prlimit(monitor.pid, resource.RLIMIT_NOFILE, (soft, hard))
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(monitor.pid, number)
    for rows, columns in ((1, 1), (0, 0), (90, 10), (36, 120)):
        monitor.resize(rows, columns)
    scene.recovers(monitor, seconds=120.0, sources=UP)
    monitor.close()
    scene.ends(monitor, 129, 1, restored=False)
    assert scene.readable(recording, whole=True) > 10
    scene.clear()

    assert scene.bad == []
    assert target.harm() == []
    (losses,) = target.runs()
    assert undisturbed.wait(60) == 0
    expected = (alone / "losses").read_text().split()[1:]
    compared = min(len(losses), len(expected))
    assert compared > 60
    assert losses[:compared] == expected[:compared]
