"""Runs that slow down at a planted moment: since when, and why, in committed recordings and live."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "changes"))

from planted import MOMENTS, PLANTED, RECORDINGS, recorded
from recorded import replayed

WITHIN_SECONDS = 5.0
# Each takes more than a minute. `changes/planted.py` runs the others.
LIVE = ("longer_files", "neighbour")
KNOWN_MISSES: dict[str, str] = {}
"""Recordings in which another reason is named, and why."""


def judged(path):
    """The verdicts of every tick that are a regression, with the time of the tick since the epoch."""
    return [
        (snapshot.wall, [verdict for verdict in snapshot.diagnosis.verdicts if verdict.id == "regression"])
        for snapshot in replayed(path)
    ]


@cache
def committed(name):
    return judged(RECORDINGS / f"{name}.jsonl.gz")


MOMENT = json.loads(MOMENTS.read_text())


@pytest.mark.parametrize("name", PLANTED)
def test_the_moment_is_told(name):
    last = committed(name)[-1][1]
    assert [abs(verdict.since - MOMENT[name]) < WITHIN_SECONDS for verdict in last] == [True]


@pytest.mark.parametrize("name", PLANTED)
def test_nothing_is_said_before_the_moment(name):
    assert not [said for wall, said in committed(name) if said and wall < MOMENT[name]]


@pytest.mark.parametrize("name", PLANTED)
def test_the_reason_is_named_with_its_line(name):
    [verdict] = committed(name)[-1][1]
    assert (is_named(name, verdict)) != (name in KNOWN_MISSES), verdict


def is_named(name, verdict):
    planted = PLANTED[name]
    place = verdict.where[0].text if verdict.where else ""
    return verdict.subtype == planted.subtype and (planted.line is None or planted.line in (place or ""))


def test_four_of_five_reasons_are_named():
    named = [all(is_named(name, verdict) for verdict in committed(name)[-1][1]) for name in PLANTED]
    assert sum(named) >= 0.8 * len(PLANTED)


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize("name", LIVE)
def test_live_the_moment_and_the_reason_are_told(name, tmp_path):
    # A second time where the machine itself has changed meanwhile.
    for attempt in ("once", "again"):
        folder = tmp_path / attempt
        folder.mkdir()
        moment = recorded(name, folder)
        said = judged(folder / f"{name}.jsonl.gz")[-1][1]
        if len(said) == 1 and abs(said[0].since - moment) < WITHIN_SECONDS and is_named(name, said[0]):
            return
    pytest.fail(f"{moment}: {said}")
