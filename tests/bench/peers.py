"""The programs that watch a job beside each other, the jobs that they watch, and what each of them uses."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import results  # noqa: F401 - it makes the next two importable

# isort: split
import fake_nvml
from launch import Training
from terminal import OnTerminal

FOLDER = Path(__file__).resolve().parent
FOUR_WORKERS = FOLDER / "four_workers.py"
# Launchers of so many ranks as their argument says: those that only write the events of steps, and those that train.
SIMULATED_RANKS, WORKING_RANKS = FOLDER.parent / "e2e" / "ranks" / "simulated.py", FOLDER / "working_ranks.py"
SCENARIO = "h200-starved"
# What each program has on its screen once it measures.
MEASURES = {"aitop": r"host●.* hook●", "nvitop": r"\d+(\.\d+)?[MG]iB", "py-spy top": r"\d+\.\d\ds +\d+\.\d\ds"}
COMES_UP_SECONDS = 30.0


@contextlib.contextmanager
def job(script: Path, *arguments: object) -> Iterator[int]:
    """The pid of a script, from the first step that it prints until it is ended."""
    with tempfile.TemporaryDirectory() as folder:
        process = Training(script, *arguments, log=Path(folder, "log"))
        try:
            yield process.wait_steps(1).pid
        finally:
            process.stop()


def commands(pid: int) -> dict[str, list[str]]:
    """By name, the command of each program that is installed here, to watch `pid` once a second."""
    installed = {"aitop": [sys.executable, "-m", "aitop", "--pid", str(pid)]}
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    if nvitop := shutil.which("nvitop", path=path):
        installed["nvitop"] = [nvitop, "--interval", "1", "--pid", str(pid)]
    elif importlib.util.find_spec("nvitop"):
        installed["nvitop"] = [sys.executable, "-m", "nvitop", "--interval", "1", "--pid", str(pid)]
    if py_spy := shutil.which("py-spy", path=path):
        installed["py-spy top"] = [py_spy, "top", "--nonblocking", "--pid", str(pid)]
    return installed


def environment(pid: int) -> dict[str, str]:
    """An environment in which NVML is the fake one and `pid` uses its device."""
    return fake_nvml.environment(SCENARIO, TARGET_PID=str(pid))


@dataclass(frozen=True)
class Use:
    """Of one program: its CPU in cores and the bytes it wrote, a value for each second; bytes of memory."""

    cpu: list[float]
    written: list[float]
    memory: int

    def mean_cpu(self) -> float:
        return statistics.fmean(self.cpu)


def use_of(command: list[str], pid: int, start: int, seconds: int, shows: str) -> Use:
    """What a program uses on a terminal for so many seconds, once `start` seconds have passed.

    At the end it has to show what matches `shows`.
    """
    with OnTerminal(command, environment(pid)) as program:
        time.sleep(start)
        cpu, written = [], []
        for _ in range(seconds):
            before = time.monotonic(), program.cpu(), program.written
            time.sleep(1.0)
            elapsed = time.monotonic() - before[0]
            cpu.append((program.cpu() - before[1]) / elapsed)
            written.append((program.written - before[2]) / elapsed)
        program.must_show(shows, COMES_UP_SECONDS)
        return Use(cpu, written, program.memory())
