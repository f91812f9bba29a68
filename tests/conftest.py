"""Fixtures for every folder of tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "fakes" / "nvml"))

import fake_nvml as fake


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
