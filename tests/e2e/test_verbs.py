"""record, replay, run and doctor on real processes."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys

import pytest
from waiting import until

from aitop.sources.replay import read_recording

pytestmark = [pytest.mark.e2e, pytest.mark.one_by_one]

AITOP = [sys.executable, "-m", "aitop"]


@pytest.fixture(scope="module")
def recorded(aitop, slow_loader_script, tmp_path_factory):
    """A run under `aitop run --headless`, recorded: what it printed, and the recording."""
    recording = tmp_path_factory.mktemp("recorded") / "run.jsonl.gz"
    command = [sys.executable, str(slow_loader_script), "--steps", "80"]
    return aitop("run", "--headless", "--record", recording, "--", *command), recording


def test_run_headless_passes_the_commands_output_on_and_reports_at_the_end(recorded):
    done, _ = recorded
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 1: loss")
    assert "step 80:" in done.stdout
    assert "INPUT-BOUND" in done.stderr
    assert "slow_loader.py" in done.stderr


def test_run_puts_the_hook_in_from_the_first_step(recorded):
    events = list(read_recording(recorded[1])[1])
    facts = [event.facts for event in events if type(event).__name__ == "HookSample" and event.facts]
    steps = [step.index for event in events if type(event).__name__ == "HookSample" for step in event.steps]
    assert facts[0].way == "run"
    assert min(steps) <= 1


def test_a_recording_replays_to_the_report_of_the_live_run(aitop, recorded, slow_loader_script):
    done = aitop("replay", recorded[1], "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdicts"][0]["id"] == "input-bound"
    assert report["verdicts"][0]["where"][0]["file"] == str(slow_loader_script)
    assert report["step"]["basis"] == "hook"
    assert aitop("replay", recorded[1], "--format", "text").stdout in recorded[0].stderr


def test_replay_writes_html_to_a_file(aitop, recorded, tmp_path):
    assert aitop("replay", recorded[1], "--format", "html", "-o", tmp_path / "report.html").returncode == 0
    assert "input-bound" in (tmp_path / "report.html").read_text()


def test_replay_says_how_many_lines_it_left_out(aitop, recorded, tmp_path):
    noisy = tmp_path / "noisy.jsonl"
    lines = gzip.decompress(recorded[1].read_bytes()).splitlines(keepends=True)
    noisy.write_bytes(b"".join([*lines[:3], b"noise\n", *lines[3:], b'{"type":"ti']))
    done = aitop("replay", noisy, "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdicts"][0]["id"] == "input-bound"
    assert done.stderr == f"aitop: 1 lines of {noisy} could not be read and were left out\n"


def test_replay_of_what_is_no_recording_is_6(aitop, slow_loader_script):
    done = aitop("replay", slow_loader_script)
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr == f"aitop: {slow_loader_script} is not an aitop recording\n"


def test_record_until_ctrl_c(start, tmp_path):
    target = start("import time; print(flush=True); time.sleep(600)")
    recording = tmp_path / "idle.jsonl"
    words = ["record", "--pid", str(target.pid), "-o", str(recording), "--interval", "200ms"]
    watching = start([*AITOP, *words], wait=False, stderr=subprocess.PIPE)

    def three_moments():
        assert watching.poll() is None, watching.stderr.read()
        return recording.exists() and recording.read_text().count('"type":"tick"') >= 3

    until(three_moments, pause=0.05)
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, out) == (0, "")
    assert f"aitop replay {recording}" in err
    assert target.poll() is None
    header, events = read_recording(recording)
    assert header.target.pid == target.pid
    assert len(list(events)) > 3


def test_record_keeps_somebodys_file(aitop, tmp_path):
    precious = tmp_path / "train.py"
    precious.write_text("import torch\n")
    done = aitop("record", "--pid", os.getpid(), "-o", precious)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert precious.read_text() == "import torch\n"


@pytest.mark.parametrize(("script", "code"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_run_leaves_with_the_commands_code(aitop, script, code):
    assert aitop("run", "--headless", "--no-stacks", "--", sys.executable, "-c", script).returncode == code


def test_run_keeps_a_sitecustomize_that_was_there(aitop, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.mine = 'still here'\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = aitop("run", "--headless", "--no-stacks", "--", sys.executable, "-c", "print(mine)", env=environment)
    assert done.stdout == "still here\n"
