"""Fixtures for tests of the program as a user starts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
