"""Fixtures of several files of unit tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aitop.commands.config import path


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], None]:
    """`settings_file(text)` makes that the settings file; until then there is none."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def write(text: str | bytes) -> None:
        path().parent.mkdir(exist_ok=True)
        path().write_bytes(text if isinstance(text, bytes) else text.encode())

    return write
