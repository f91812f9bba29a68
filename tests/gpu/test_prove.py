"""prove.py without a device: it says so of each check. Its scripts and its checks are rehearsed on the CPU, slowly."""

from __future__ import annotations

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path

import gpu_checks
import prove
import pytest
from gpu_box import SCENARIO_SCRIPTS, Box, SkippedError
from gpu_checks import CHECKS, Check, verdict
from gpu_scenarios import BY_NAME, SCENARIOS, SCRIPTS
from results import MISSED_BAR, Figure

PROVE = str(Path(prove.__file__))
ON_CPU = ("--device", "cpu", "--width", "64")
SMALL = {
    "gpu_compute_bound": ("--width", 64, "--batch-size", 8),
    "gpu_healthy": ("--width", 64, "--depth", 1, "--batch-size", 4, "--length", 16, "--workers", 0),
    "gpu_sync_stall": ("--width", 32, "--batch-size", 8, "--remembered", 100),
    "gpu_transfer_bound": ("--side", 32, "--batch-size", 4),
    "gpu_launch_bound": ("--depth", 5),
    "gpu_memory_bandwidth": ("--width", 64, "--batch-size", 8),
    "gpu_precision": ("--width", 64, "--batch-size", 8),
    "gpu_fragmentation": ("--width", 64, "--longest", 64),
    "gpu_oom_risk": ("--width", 64),
    "gpu_underbatched": ("--side", 16, "--channels", 4),
    "gpu_input_bound": ("--width", 64, "--batch-size", 2),
    "gpu_steady": ("--width", 64, "--depth", 1),
    "gpu_allocating": ("--width", 64, "--unit", 1000),
}


def proved(out, env=None, *words):
    return subprocess.run(
        [sys.executable, PROVE, "-o", str(out), *words], capture_output=True, text=True, check=False, env=env
    )


def results(out):
    return {path.stem: json.loads(path.read_text()) for path in (out / "results").iterdir()}


@pytest.fixture
def without_device(tmp_path):
    """An environment in which no driver can be loaded, although the machine may have one."""
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).write_bytes(b"")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def test_without_a_device_every_check_says_why_it_is_left_out(tmp_path, without_device):
    done = proved(tmp_path / "out", without_device)
    assert done.returncode == prove.NO_DEVICE, done.stderr
    by_check = results(tmp_path / "out")
    assert by_check.keys() == {check.name for check in CHECKS} and len(by_check) > 20
    assert {(result["state"], result["why"].partition(":")[0]) for result in by_check.values()} == {
        ("skipped", "no device")
    }
    page = (tmp_path / "out" / "prove.md").read_text()
    assert all(f"| `{check.name}` | left out |" in page for check in CHECKS)


def test_what_the_driver_says_is_proved_on_the_fake_one(tmp_path, fake_nvml, without_device):
    fake = fake_nvml("h200-busy", TARGET_PID="1")
    done = proved(tmp_path / "out", {**without_device, "LD_LIBRARY_PATH": fake["LD_LIBRARY_PATH"], **fake}, "devices")
    assert done.returncode == prove.NO_DEVICE, done.stderr
    (result,) = results(tmp_path / "out").values()
    assert result["state"] == "passed", result
    assert result["figures"][0]["value"] > 20
    assert "## `devices`" in (tmp_path / "out" / "prove.md").read_text()


BOX = Box(Path("/nowhere"), name="a device")


def check_of(run, seconds=5.0):
    return Check("one", "What it is about.", ("cuda",), seconds, run)


def raise_(error):
    raise error


@pytest.mark.parametrize(
    ("run", "state", "why", "code"),
    [
        (lambda box: [Figure("time", 1.0, most=2)], "passed", "", 0),
        (lambda box: [Figure("time", 3.0, most=2)], "missed", "", MISSED_BAR),
        (lambda box: [Figure("time", 3.0)], "missed", "", MISSED_BAR),
        (lambda box: raise_(SkippedError("no nvidia-smi")), "skipped", "no nvidia-smi", prove.LEFT_OUT),
        (lambda box: raise_(AssertionError("no step")), "failed", "AssertionError: no step", prove.FAILED),
        (lambda box: prove.time.sleep(30), "failed", "TimeLimitError: not done in 0 s", prove.FAILED),
    ],
)
def test_what_comes_of_a_check(run, state, why, code):
    result = prove.result_of(check_of(run, 0.2), BOX)
    assert (result["state"], result["why"]) == (state, why)
    assert prove.exit_code([result], BOX, unfinished=False) == code
    assert prove.WORDS[state] in prove.page([{**result, "name": CHECKS[0].name}], BOX)


def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(prove, "CHECKS", [check_of(lambda box: runs.append(box) or [Figure("time", 1.0, most=2)])])
    monkeypatch.setattr(Box, "here", lambda out, index: BOX)
    monkeypatch.setattr(sys, "argv", ["prove.py", "-o", str(tmp_path)])
    assert [prove.main(), prove.main(), len(runs)] == [0, 0, 1]
    monkeypatch.setattr(prove, "commit", lambda: "another")
    assert prove.main() == 0 and len(runs) == 2, "of another commit it is"
    monkeypatch.setattr(sys, "argv", ["prove.py", "-o", str(tmp_path), "--minutes", "0"])
    monkeypatch.setattr(prove, "commit", lambda: "a third")
    assert prove.main() == prove.UNFINISHED and len(runs) == 2
    assert "| `one` | not begun | – | the time was over |" in (tmp_path / "prove.md").read_text()


def test_a_check_that_failed_leaves_its_traceback_and_does_not_keep_others_from_being_gone_on_with():
    failed = prove.result_of(check_of(lambda box: raise_(AssertionError("no step"))), BOX)
    assert "in raise_" in failed["trace"] and "Traceback" not in prove.page([{**failed, "name": CHECKS[0].name}], BOX)
    assert prove.exit_code([failed], BOX, unfinished=True) == prove.UNFINISHED
    assert prove.exit_code([failed], BOX, unfinished=False) == prove.FAILED


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_guilty_line_is_one_line(scenario):
    assert len(scenario.guilty_lines()) == len(scenario.guilty)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_script_runs_as_it_is_and_fixed(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    fixed = [["--fixed"]] if name in BY_NAME and BY_NAME[name].fixed else []
    for more in ([], *fixed):
        words = ["--device", "cpu", "--steps", 3, *SMALL[name], *more]
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
        assert "done: 3 steps" in capsys.readouterr().out


def test_every_script_is_tried():
    assert {path.stem for path in SCRIPTS.glob("*.py")} - {"gpu_run"} == set(SMALL)


@pytest.mark.slow
def test_checks_are_rehearsed_on_the_cpu(tmp_path, monkeypatch):
    """Whether they run to their end and measure something: on the CPU their figures prove nothing."""
    (tmp_path / "recordings").mkdir()
    paths = (str(SCENARIO_SCRIPTS), os.environ.get("PYTHONPATH", ""))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for name, less in (
        ("CYCLES", 5),
        ("LEAST_LOSSES", 100),
        ("ROUNDS", 4),
        ("COST_SECONDS", 0.2),
        ("RATE_SECONDS", 0.7),
        ("WATCH_SECONDS", 7.0),
    ):
        monkeypatch.setattr(gpu_checks, name, less)
    box = Box(tmp_path, arguments=ON_CPU)
    nccl = ("--backend", "gloo")
    rehearsed = {
        "hook-cost": gpu_checks.hook_cost(box),
        "watch-cost": gpu_checks.watch_cost(box),
        "after-profile": gpu_checks.after_profile(box),
        "nccl": gpu_checks.nccl(Box(tmp_path, arguments=(*ON_CPU, *nccl))),
        "attaches": gpu_checks.attaches(box),
        "input-bound": verdict(BY_NAME["gpu_input_bound"], box),
    }
    taken = {name: list(figures) for name, figures in rehearsed.items()}
    unmeasured = [
        (name, figure.what)
        for name, figures in taken.items()
        for figure in figures
        if figure.judged() and (figure.value is None or not math.isfinite(figure.value))
    ]
    assert unmeasured == [] and all(any(figure.judged() for figure in figures) for figures in taken.values())
    values = {name: {figure.what: figure.value for figure in figures} for name, figures in taken.items()}
    assert values["attaches"]["losses that differ"] == 0 and values["attaches"]["runs harmed"] == 0
    assert values["input-bound"]["first verdict is right"] == values["input-bound"]["its line is right"] == 1
    assert values["input-bound"]["what its fix gives"] > 2
    assert values["after-profile"]["steps a second after a profile, of those before"] > 0.3
    recorded = {path.name for path in (tmp_path / "recordings").iterdir()}
    assert recorded == {"gpu_input_bound.t3.jsonl.gz", "nccl.jsonl.gz"}
