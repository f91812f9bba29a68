"""Fixtures for tests of the program as a user starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attach_targets import Victim


@pytest.fixture
def start_victim() -> Iterator[Callable[..., Victim]]:
    """`start_victim(kind, python=..., **more)` starts a hostile target; all are killed at the end."""
    victims: list[Victim] = []

    def start(kind: str, **more: object) -> Victim:
        victims.append(Victim(kind, **more))
        return victims[-1]

    yield start
    for victim in victims:
        victim.kill()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """`script(text)` writes a file and gives its path."""

    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write
