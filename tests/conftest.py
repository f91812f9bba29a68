"""Fixtures for every folder of tests."""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fake_nvml as fake
import hypothesis
import pytest
from expected import WORKLOAD_DIR
from launch import Training

from aitop.model.snapshot import Snapshot

Aitop = Callable[..., "subprocess.CompletedProcess[str]"]

pytest_plugins = ["scheduling"]

# How long an example takes says something of the machine only.
hypothesis.settings.register_profile("aitop", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("aitop")

# A shell that has them run in the background starts them, and all that they start, deaf to Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test leaves a summary of its runs behind, or is compared with one, unless it names a folder of its own.
os.environ["XDG_STATE_HOME"] = os.devnull

# While tests are collected, to look for cycles in what is imported would take a third of the time.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again, but leave out what collecting the tests has made: it stays to the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture
def fake_nvml(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """`fake_nvml(scenario, log=None, NAME=value...)` is the environment in which a child process sees that NVML.

    `scenario` is the name of one in tests/fakes/nvml/scenarios, or the text of one (several lines).
    """

    def environment(scenario: str, log: Path | None = None, **variables: str) -> dict[str, str]:
        chosen: str | Path = scenario
        if "\n" in scenario:
            chosen = fake.write_scenario(tmp_path / f"scenario-{len(list(tmp_path.iterdir()))}.txt", scenario)
        try:
            return fake.environment(chosen, log=log, **variables)
        except fake.NoCompilerError as error:
            pytest.skip(str(error))

    return environment


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
    for old, new in (("ROUND_TRIP = 0.004", "ROUND_TRIP = 0.04"), ("batch_size=16", "batch_size=4")):
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


@pytest.fixture
def watched() -> Callable[..., dict[str, Any]]:
    """`watched(pid, check, *flags)` watches as `aitop diagnose` does until `check(report)` raises nothing any more.

    Returns that report. Those of the first `least` seconds are not asked; after `most` seconds what `check` raises of
    the last one is raised. So a test takes as long as its machine needs.
    """
    from aitop.commands.headless import watching
    from aitop.commands.options import add_watch_options, settle
    from aitop.model.settings import Settings
    from aitop.outputs.report import as_json, report_of
    from aitop.sources.host.target import look

    def run(
        pid: int, check: Callable[[dict[str, Any]], None], *flags: str, least: float = 0.0, most: float = 90.0
    ) -> dict[str, Any]:
        parser = argparse.ArgumentParser()
        add_watch_options(parser)
        args = parser.parse_args(flags)
        settle(args, Settings())
        began, seen, report, held = time.monotonic(), None, {}, False

        def holds(snapshot: Snapshot) -> bool:
            nonlocal seen, report, held
            if snapshot is seen or time.monotonic() < began + least:
                return False
            seen, report = snapshot, json.loads(as_json(report_of(snapshot)))
            try:
                check(report)
            except (AssertionError, LookupError, TypeError, ValueError):
                return False
            held = True
            return True

        with watching([look(pid)], args.settings) as watcher:
            watcher.wait(most, until=holds)
        assert seen is not None, f"nothing was seen of {pid} in {most} s"
        if not held:
            check(report)
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
