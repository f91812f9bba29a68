"""Fixtures that start real processes and the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from expected import WORKLOAD_DIR
from launch import Training

Aitop = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """`training(script, *arguments)` starts a script, given by path or by its name in the table of scenarios.

    What comes back has pid, wait_steps(n), steps(), output(), wait(), alive() and stop(); all are ended at the end.
    """
    started: list[Training] = []

    def start(script: str | Path, *arguments: object, **more: Any) -> Training:
        process = Training(script, *arguments, log=tmp_path / f"training-{len(started)}.log", **more)
        started.append(process)
        return process

    yield start
    for process in started:
        process.stop()


@pytest.fixture(scope="session")
def slow_loader_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled run with a store so slow that its computing stays small beside the wait on the fullest machine."""
    text = (WORKLOAD_DIR / "slow_loader.py").read_text()
    for old, new in (("ROUND_TRIP = 0.004", "ROUND_TRIP = 0.04"), ("default=16", "default=4")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    script = tmp_path_factory.mktemp("workloads") / "slow_loader.py"
    script.write_text(text)
    return script


@pytest.fixture(scope="module")
def slow_loader(slow_loader_script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """That run with its two loader workers, from its first step on. The last test that needs it may end it."""
    run = Training(slow_loader_script, log=tmp_path_factory.mktemp("training") / "log")
    yield run.wait_steps(1)
    run.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(code or argv)` starts a process group and waits for its first line; all are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(what: str | list[str], *, wait: bool = True, **more: Any) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", what] if isinstance(what, str) else what
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True, text=True, **more)
        started.append(process)
        assert process.stdout is not None
        assert not wait or process.stdout.readline(), f"{argv[:3]} said nothing"
        return process

    yield run
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


@pytest.fixture(scope="session")
def aitop() -> Aitop:
    """`aitop(*arguments, timeout=60, before=())` runs the command to its end, without a terminal.

    `before` are words of a command that runs it with other rights.
    """

    def run(*arguments: object, timeout: float = 60.0, before: tuple[str, ...] = (), **more: Any) -> Any:
        with subprocess.Popen(
            [*before, sys.executable, "-m", "aitop", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **more,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                pytest.fail(f"aitop {arguments} did not end in {timeout} s\n{out}\n{err}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def diagnose(aitop: Aitop) -> Callable[..., dict[str, Any]]:
    """`diagnose(pid, seconds, *flags)` is the report of `aitop diagnose --format json`.

    It must leave with 0, or one of the exit codes that are `allowed`.
    """

    def run(pid: int, seconds: float = 10.0, *flags: str, allowed: Sequence[int] = (0,), **more: Any) -> dict[str, Any]:
        asked = ("diagnose", "--pid", pid, "--for", f"{seconds}s", "--format", "json", *flags)
        done = aitop(*asked, timeout=seconds + 120, **more)
        assert done.returncode in allowed, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    return run


@pytest.fixture(scope="session")
def printed() -> Callable[..., list[str]]:
    """`printed(environment, script, *arguments)` are the lines that a Python program prints, which must end well."""

    def run(environment: dict[str, str], script: str, *arguments: object) -> list[str]:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run
