"""Every recording of the suite gets the right verdict, whatever the user's names, source text and order are."""

from __future__ import annotations

import sys
import zlib
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from expectation import Row
from expected import BY_NAME
from recorded import RECORDINGS, Recorded, read, recording_name, recordings
from renamed import renamed
from transform import shuffled, without_source

PATHS = list(recordings(RECORDINGS))
TIERS = (2, 3)
RIGHT_MARKS = {3: 0.95, 2: 0.9}
LINE_MARK = 0.9

KNOWN_MISSES: dict[tuple[str, int], str] = {}
"""Recordings (scenario, tier) with a wrong first verdict or line, or an untrue warning, and why it is so."""

pytestmark = pytest.mark.skipif(not PATHS, reason="no recordings here: make them as tests/accuracy/README.md says")


@cache
def recorded(path: Path) -> Recorded:
    return read(path)


@cache
def row(path: Path) -> Row:
    return recorded(path).row()


def missed(row: Row) -> list[str]:
    """What is not right about a row."""
    wrong = [] if row.right else [f"said {row.said}, expected {row.expected}"]
    wrong += [f"named {row.where}"] if row.right_line is False else []
    return wrong + [f"warned of {alarm}" for alarm in row.alarms]


def test_every_scenario_has_its_recordings() -> None:
    assert {path.name for path in PATHS} == {recording_name(name, tier) for name in BY_NAME for tier in TIERS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_the_fault_and_its_line_are_named_and_nothing_else(path: Path) -> None:
    got = row(path)

    assert bool(missed(got)) == ((got.name, got.tier) in KNOWN_MISSES), missed(got) or "right, but a known miss"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
@pytest.mark.parametrize("change", ["renamed", "no-source", "shuffled"])
def test_names_source_text_and_order_change_nothing(path: Path, change: str) -> None:
    seed = zlib.crc32(path.name.encode())
    transform = {"renamed": renamed(seed), "no-source": without_source(), "shuffled": shuffled(seed)}[change]

    assert transform(recorded(path)).row().answer == row(path).answer


@pytest.mark.parametrize("tier", TIERS)
def test_the_pass_marks_are_reached(tier: int) -> None:
    rows = [got for path in PATHS if (got := row(path)).tier == tier]
    lines = [got.right_line for got in rows if got.right_line is not None]
    warned = [got.name for got in rows if got.alarms and BY_NAME[got.name].healthy()]

    assert sum(got.right for got in rows) >= RIGHT_MARKS[tier] * len(rows)
    assert sum(lines) >= LINE_MARK * len(lines)
    assert warned == []


def test_known_misses_are_recordings_with_a_reason() -> None:
    assert {recording_name(*key) for key in KNOWN_MISSES} <= {path.name for path in PATHS}
    assert all(KNOWN_MISSES.values())
