"""Fixtures for every folder of tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_nvml as fake
import pytest

# What these say depends on how a run spends its time: one after the other, so as not to take each other the cores.
ONE_BY_ONE = (
    "test_diagnose.py",
    "test_bad_input.py",
    "test_terminals.py",
    "test_verbs.py",
    "test_demo.py",
)
# And these come first because they take long.
EARLY = (*ONE_BY_ONE, "test_who_works.py", "test_frameworks.py", "test_recordings.py", "test_attach.py")


# A shell that has them run in the background starts them, and all that they start, deaf to Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported and collected here stays to the end: to look through it for cycles takes a third of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on as always, but for what there is by now."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, each file as a whole."""
    items.sort(key=lambda item: EARLY.index(item.path.name) if item.path.name in EARLY else len(EARLY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays with one worker, which so starts what its tests share only once; ONE_BY_ONE is like one file."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "one by one" if Path(file).name in ONE_BY_ONE else file

    return ByFile(config, log)


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
