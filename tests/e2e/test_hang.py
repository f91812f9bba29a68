"""A job of two real ranks that hangs, told by `aitop diagnose`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

JOB = Path(__file__).parents[1] / "ranks" / "job.py"


def test_the_rank_that_stands_in_a_lock_is_named_with_its_line(training, diagnose, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    for name, value in meeting.items():
        monkeypatch.setenv(name, value)
    ranks = []
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        ranks.append(training(JOB, "lock", "--after", 12))
    # Rank 0 tells of its steps, and leads to the other one.
    ranks[1].wait_steps(10)

    report = diagnose(ranks[1].pid, 15)

    verdict = report["verdicts"][0]
    assert (verdict["id"], verdict["subtype"], verdict["ranks"]) == ("hang", "rank-blocked", [1])
    place = verdict["where"][0]
    assert "guard.acquire()  # for ever" in Path(place["file"]).read_text().splitlines()[place["line"] - 1]
    roles = [one["role"] for one in report["target"]["processes"]]
    assert roles.count("rank") == 2
