"""A job of two real ranks that hangs, told by `aitop diagnose`."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from serving_run import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOB = Path(__file__).parent / "ranks" / "job.py"


def test_the_rank_that_stands_in_a_lock_is_named_with_its_line(training, diagnose):
    # It starts the ranks, and passes for their launcher: that is not to be the process of these tests.
    job = training(JOB, "lock", "--launch", "processes", "--after", 12, "--port", free_port()).wait_steps(10)
    ranks = psutil.Process(job.pid).children()
    first = next(rank for rank in ranks if rank.environ()["RANK"] == "0")

    # It ends as soon as it is sure.
    report = diagnose(first.pid, 60)

    verdict = report["verdicts"][0]
    assert (verdict["id"], verdict["subtype"], verdict["ranks"]) == ("hang", "rank-blocked", [1])
    place = verdict["where"][0]
    assert "guard.acquire()  # for ever" in Path(place["file"]).read_text().splitlines()[place["line"] - 1]
    roles = [member["role"] for member in report["target"]["processes"]]
    assert roles.count("rank") == 2
