"""The fake itself: its scenarios can be read, mistakes are told, and another tool takes it for the real one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).parents[1] / "fakes" / "nvml"
READY = sorted(path.stem for path in (FOLDER / "scenarios").glob("*.txt"))
START = "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlInitWithFlags(0))"


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", READY)
def test_a_scenario_that_lies_ready_makes_sense(fake_nvml, name):
    done = run([sys.executable, "-S", "-c", START], fake_nvml(name))
    assert done.stderr == ""
    assert done.stdout.strip() == ("4" if name == "not-permitted" else "0")


def test_a_mistake_in_a_scenario_is_told_with_its_line(fake_nvml):
    done = run([sys.executable, "-S", "-c", START], fake_nvml("devices 1\ngpus 0 busy 3\n"))
    assert ":2 does not make sense" in done.stderr
    assert done.stdout.strip() == "999"


def test_the_command_line_runs_a_program_on_a_scenario(fake_nvml):
    fake_nvml("eight-gpus")  # skips without a C compiler
    run_py = [sys.executable, str(FOLDER / "run.py")]
    listed = run([*run_py, "--list"], dict(os.environ)).stdout.split()
    assert "h200-starved" in listed
    assert not any(name.startswith("base-") for name in listed)
    script = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    done = run([*run_py, "eight-gpus", "--", sys.executable, "-c", script], dict(os.environ))
    assert (done.stdout.strip(), done.returncode) == ("8", 0), done.stderr
    assert run([*run_py, "no-such-scenario", "--", "true"], dict(os.environ)).returncode == 2


@pytest.mark.skipif(importlib.util.find_spec("nvitop") is None, reason="nvitop is not installed (pip install nvitop)")
@pytest.mark.parametrize("scenario", ["two-gpus", "old-driver"])
def test_nvitop_shows_the_fake(fake_nvml, scenario):
    environment = fake_nvml(scenario, TARGET_PID=str(os.getpid()), COLUMNS="120")
    done = run([sys.executable, "-m", "nvitop", "--once"], environment)
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    assert {"two-gpus": "642W / 700W", "old-driver": "450.119.04"}[scenario] in shown
    assert str(os.getpid()) in shown
    if scenario == "two-gpus":
        assert "99%" in shown
        assert "96.00GiB / 140.4GiB" in shown
        assert "95.00GiB" in shown
