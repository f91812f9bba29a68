"""The programs that benches of the monitor run beside each other, and the job that they watch."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / "fakes" / "nvml"))

import fake_nvml  # noqa: E402

FIRST_STEP_SECONDS = 60.0


@contextlib.contextmanager
def training() -> Iterator[int]:
    """The pid of a training job with four loader workers, from its first step on."""
    with tempfile.NamedTemporaryFile("w+") as log:
        command = [sys.executable, str(FOLDER / "four_workers.py")]
        with subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True) as job:
            try:
                deadline = time.monotonic() + FIRST_STEP_SECONDS
                while "step 0" not in Path(log.name).read_text():
                    if job.poll() is not None or time.monotonic() > deadline:
                        raise SystemExit(f"the training job did not start: {Path(log.name).read_text()}")
                    time.sleep(0.1)
                yield job.pid
            finally:
                os.killpg(job.pid, signal.SIGKILL)


def commands(pid: int, nvitop: str | None) -> dict[str, list[str]]:
    """By name, how each program that is installed here is told to watch `pid` once a second."""
    found = {"aitop": [sys.executable, "-m", "aitop", "--pid", str(pid)]}
    nvitop = nvitop or shutil.which("nvitop")
    if nvitop is not None or importlib.util.find_spec("nvitop"):
        program = [nvitop] if nvitop is not None else [sys.executable, "-m", "nvitop"]
        found["nvitop"] = [*program, "--interval", "1", "--pid", str(pid)]
    py_spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if py_spy is not None:
        found["py-spy top"] = [py_spy, "top", "--nonblocking", "--pid", str(pid)]
        found["py-spy top -s"] = [py_spy, "top", "--nonblocking", "--subprocesses", "--pid", str(pid)]
    return found


def environment(pid: int, scenario: str) -> dict[str, str]:
    """An environment in which NVML is the fake one and `pid` uses its device."""
    return fake_nvml.environment(scenario, TARGET_PID=str(pid))
