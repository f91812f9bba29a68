"""Two monitors on one real run, and what may happen to them: the run computes what it computes without them."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from fault_scene import SCRIPT, Scene, Target

pytestmark = pytest.mark.e2e

# More than the run makes while it is watched.
STEPS = 800
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


def test_faults_of_the_monitors_do_not_reach_the_run(scene, tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    undisturbed = subprocess.Popen([sys.executable, str(SCRIPT), str(alone), "steady", str(STEPS)])
    target = scene.target.ready()
    recording = tmp_path / "recording.jsonl"
    closed, starved = scene.watch("--record", str(recording)), scene.watch("--interval", "0.2")
    for monitor in (closed, starved):
        assert monitor.until(UP, 40.0), monitor.screen.text()

    soft, hard = resource.prlimit(starved.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(starved.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{starved.pid}/fd")) - 4, hard))
    assert starved.until("host✗", 20.0), starved.screen.text()
    assert "target ended" not in starved.screen.text()
    assert re.search("as many files|cannot be read just n", starved.screen.text()), starved.screen.text()
    resource.prlimit(starved.pid, resource.RLIMIT_NOFILE, (soft, hard))
    closed.close()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        os.kill(starved.pid, number)
    for rows, columns in ((1, 1), (0, 0), (90, 10), (36, 120)):
        starved.resize(rows, columns)
    scene.ends(closed, 129, 1, restored=False)
    scene.readable(recording, whole=True)
    scene.recovers(starved, sources=UP)
    scene.quits(starved)
    scene.clear()

    assert scene.bad == []
    assert target.harm() == []
    (losses,) = target.runs()
    assert undisturbed.wait(60) == 0
    expected = (alone / "losses").read_text().split()[1:]
    compared = min(len(losses), len(expected))
    assert compared > 60
    assert losses[:compared] == expected[:compared]
