"""The looks of many jobs share one budget, and a new job gets more of it at first."""

from __future__ import annotations

from aitop.sources.stacks.pace import (
    NEW_EVERY_SECONDS,
    NEW_SECONDS,
    PartOfBudget,
    SharedBudget,
)

CORES = 0.01
FIRST_WINDOWS = round(NEW_SECONDS / NEW_EVERY_SECONDS)


def test_jobs_that_share_a_budget_stay_within_it_however_many_they_are():
    for count in (1, 8, 50):
        shared, cost, seconds = SharedBudget(CORES), 0.1, 20_000.0
        due = dict.fromkeys(range(count), 0.0)
        parts = [PartOfBudget(shared) for _ in range(count)]
        windows = dict.fromkeys(range(count), 0)
        while min(due.values()) < seconds:
            job = min(due, key=due.__getitem__)
            started = due[job]
            windows[job] += 1
            due[job] = started + max(2.0, parts[job].spend(cost, started, started + 2.0))
        spent = cost * sum(windows.values())
        assert spent <= CORES * seconds + count * cost * (FIRST_WINDOWS + 1)
        assert max(windows.values()) - min(windows.values()) <= 1


def test_a_new_job_is_looked_at_every_ten_seconds_of_its_first_minute_however_many_there_are():
    shared = SharedBudget(CORES)
    old = PartOfBudget(shared)
    for number in range(50):
        old.spend(0.1, 100.0 * number, 100.0 * number + 2.0)
    new, due = PartOfBudget(shared), [5000.0]
    for _ in range(FIRST_WINDOWS):
        due.append(due[-1] + new.spend(0.1, due[-1], due[-1] + 2.0))
    assert due[:-1] == [5000.0 + NEW_EVERY_SECONDS * number for number in range(FIRST_WINDOWS)]
    assert due[-2] < 5060.0
    # What the new one took puts off nobody: the old one comes when it would have come without it.
    assert old.spend(0.1, 5045.0, 5047.0) <= 2 * 0.1 / CORES + 2.0


def test_the_first_minute_of_a_job_begins_once_it_does_more_than_import():
    shared = SharedBudget(CORES)
    shared.reserve(100.0, 0.0)
    new = PartOfBudget(shared)
    imports = [new.spend(0.1, 10.0 * number, 10.0 * number + 2.0, works=False) for number in range(20)]
    works = [new.spend(0.1, 200.0 + 10.0 * number, 202.0 + 10.0 * number) for number in range(FIRST_WINDOWS - 2)]
    assert set(imports + works) == {NEW_EVERY_SECONDS}
    assert new.spend(0.1, 230.0, 232.0) > 1000.0
    # One that shows nothing for minutes gets no more than its turn.
    idle = PartOfBudget(shared)
    pauses = [idle.spend(0.1, 10.0 * number, 10.0 * number + 2.0, works=False) for number in range(60)]
    assert pauses[0] == NEW_EVERY_SECONDS < 1000.0 < pauses[-1]
