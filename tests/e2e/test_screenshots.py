"""A picture of the documents is the same, byte by byte, whenever it is drawn of the same recording."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAKE = Path(__file__).parents[2] / "screenshots" / "make.py"
NAMES = ("monitor-80x24", "serving-80x24", "flame-120x36", "fleet-80x24", "report-1000")


def drawn(folder, seed):
    folder.mkdir()
    environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": "UTC" if seed == "1" else "Asia/Tokyo", "COLUMNS": seed}
    subprocess.run([sys.executable, MAKE, *NAMES, "-o", folder], check=True, capture_output=True, env=environment)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_twice_gives_the_same_bytes(tmp_path):
    first, second = drawn(tmp_path / "first", "1"), drawn(tmp_path / "second", "77")
    assert {f"{name}.svg" for name in NAMES[:4]} <= first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
