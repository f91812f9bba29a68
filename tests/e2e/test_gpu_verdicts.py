"""Verdicts about the device, from NVML (a fake one) through the real pynvml to the report."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.e2e

BUSY = "print('up', flush=True)\nwhile True: sum(range(1000))"


@pytest.fixture
def busy():
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    yield child.pid
    child.kill()
    child.wait()
    child.stdout.close()


def verdicts(pid, environment):
    command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(pid), "--for", "4s", "--format", "json"]
    done = subprocess.run(
        [*command, "--no-stacks", "--no-hook"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["sources"]["gpu"]["state"] == "ok"
    return {verdict["id"]: verdict for verdict in said["verdicts"]}


def test_a_device_held_back_by_heat(fake_nvml, busy):
    hot_for_a_while = str(time.clock_gettime(time.CLOCK_MONOTONIC) - 60)
    said = verdicts(busy, fake_nvml("thermal", TARGET_PID=str(busy), FAKE_NVML_START=hot_for_a_while))[
        "thermal-throttle"
    ]
    assert "1125 of 1980 MHz" in said["title"] and "hw_thermal_slowdown" in said["evidence"][0]


def test_a_device_that_somebody_else_uses_and_that_is_nearly_full(fake_nvml, busy):
    said = verdicts(busy, fake_nvml("shared", TARGET_PID=str(busy)))
    assert said["gpu-shared"]["share"] == pytest.approx(0.4, abs=0.02)
    assert "93 %" in said["oom-risk"]["title"]
