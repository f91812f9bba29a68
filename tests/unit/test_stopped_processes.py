"""Processes that somebody has stopped are named once, and others wait only where there are others."""

from __future__ import annotations

import pytest

from aitop.diagnosis.conditions.hang import odd_one
from aitop.model.ranks import Standing, Standstill


def rank(number, state="S"):
    return Standing(pid=100 + number, rank=number, role="rank", state=state)


def worker(pid, state="S"):
    return Standing(pid=pid, rank=0, role="loader-worker", state=state)


@pytest.mark.parametrize(
    ("ranks", "workers", "title", "pids"),
    [
        ([rank(0, "T")], [worker(7, "T")], "rank 0 is stopped by a signal or a debugger", "100 7"),
        ([rank(0), rank(1, "T")], [], "rank 1 is stopped by a signal or a debugger: all others wait for it", "101"),
        ([rank(0, "t"), rank(1, "t")], [], "ranks 0 and 1 are stopped by a signal or a debugger", "100 101"),
        (
            [rank(0)],
            [worker(7, "T")],
            "loader worker 7 is stopped by a signal or a debugger: all others wait for it",
            "7",
        ),
    ],
)
def test_who_is_stopped_and_who_waits(ranks, workers, title, pids):
    odd = odd_one(Standstill(seconds=9.0, ranks=tuple(ranks), workers=tuple(workers)))
    assert (odd.subtype, odd.title, odd.fix) == ("stopped", title, f"let it go on: kill -CONT {pids}")
