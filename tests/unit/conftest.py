"""Fixtures of several files of unit tests."""

from __future__ import annotations

import shutil
import subprocess
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


@pytest.fixture
def in_another_network() -> list[str]:
    """The words of a command that runs the words after them in a network of its own."""
    command = ["unshare", "--net", "--map-root-user"]
    if shutil.which(command[0]) is None or subprocess.run([*command, "true"], check=False).returncode != 0:
        pytest.skip("no network of its own can be made here")
    return command
