"""How often to sample, what the windows ask, and which processes they take."""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

from aitop.sources import procfs
from aitop.sources.stacks.choice import Chooser
from aitop.sources.stacks.pace import (
    CORES,
    CREDIT_SECONDS,
    FULL_LOOK_EVERY,
    LEAST_CHILDREN,
    LONGEST_INTERVAL,
    MOST_CHILDREN,
    QUICK_CHILDREN,
    QUICK_SECONDS,
    Budget,
    GilWatch,
    IdleCores,
)
from aitop.sources.stacks.source import StackSource
from aitop.sources.stacks.speedscope import ThreadSamples


def spent(cpu: float, windows: int, budget: Budget | None = None) -> list[tuple[float, float]]:
    """(start, interval) of windows of two seconds that cost `cpu` each."""
    budget, now, taken = budget or Budget(0.0), 0.0, []
    for _ in range(windows):
        interval = budget.spend(cpu, now, now + 2.0)
        taken.append((now, interval))
        now += max(2.0, interval)
    return taken


def cores_used(cpu: float, budget: Budget) -> float:
    """The cores that such windows use once the credit of the beginning is spent."""
    windows = spent(cpu, 400, budget)
    (begin, _), (end, _) = windows[200], windows[-1]
    return 199 * cpu / (end - begin)


@pytest.mark.parametrize(
    ("cpu", "windows", "longest"), [(0.1, 5, 0.0), (CORES * 2.0, 200, 0.0), (2.0, 50, LONGEST_INTERVAL)],
    ids=["the first come back to back", "cheap ones", "no longer than the screen waits before it says stale"],
)  # fmt: skip
def test_how_long_windows_are_put_off(cpu, windows, longest):
    assert max(interval for _, interval in spent(cpu, windows)) == longest


def test_later_the_cost_stays_within_the_budget():
    windows = spent(0.1, 60)
    (begin, _), (end, _) = windows[20], windows[-1]
    assert 39 * 0.1 / (end - begin) <= CORES * 1.05
    assert windows[-1][1] > 2.0


def test_a_rest_does_not_save_up_more_than_the_first_credit():
    budget = Budget(0.0)
    assert budget.spend(0.0, 0.0, 1e6) == 0.0
    assert budget.spend(CREDIT_SECONDS + 0.03, 1e6, 1e6 + 2.0) > 2.0
    assert budget.tight


def test_a_few_processes_are_sampled_more_often_while_there_is_credit():
    budget = Budget(0.0)
    assert budget.rate(3) == 20, "not yet known whether a core is idle"
    budget.found_idle(2.0)
    assert [budget.rate(processes) for processes in (1, 3, 5, 8, 64)] == [50, 50, 30, 20, 20]
    budget.spend(CREDIT_SECONDS + 0.1, 0.0, 1.0, children=8)
    assert budget.rate(1) == 50 and budget.children == QUICK_CHILDREN, "nothing else tells where time goes"
    budget.alone = False
    assert budget.rate(1) == 20 and budget.children == LEAST_CHILDREN
    budget.alone = True
    budget.spend(CREDIT_SECONDS, 1.0, 1.0 + QUICK_SECONDS, children=8)
    assert budget.rate(1) == 20


def test_a_window_has_as_many_children_as_the_budget_pays_for():
    budget = Budget(0.0)
    budget.alone = False
    assert budget.children < MOST_CHILDREN, "not yet known whether a core is idle"
    budget.found_idle(2.0)
    assert budget.children == MOST_CHILDREN
    for number in range(20):
        budget.spend(0.04 * budget.children, 8.0 * number, 8.0 * number + 2.0, children=budget.children)
    assert budget.children * 0.04 == pytest.approx(CORES * LONGEST_INTERVAL)
    for number in range(20, 40):
        budget.spend(0.2 * budget.children, 8.0 * number, 8.0 * number + 2.0, children=budget.children)
    assert budget.children == LEAST_CHILDREN, "one in turn besides the first, whatever they take"


def asked(watch: GilWatch, windows: int, first: int = 0) -> str:
    """Of each window: - nothing, g the lock, b both."""
    due = [(watch.due(first=number < first), watch.cores) for number in range(windows)]
    return "".join("-" if not wanted else "b" if cores else "g" for wanted, cores in due)


def test_the_lock_and_the_cores_are_asked_in_the_first_windows_and_then_rarely():
    windows = asked(GilWatch(), 22, first=3)
    assert windows == "bbb-----b-----b-----b-"
    assert "-" * FULL_LOOK_EVERY not in windows
    watch = GilWatch()
    assert asked(watch, 3, first=3) == "bbb"
    watch.saw([ThreadSamples("metrics", False, Counter({(0,): 8}))], 24)
    assert asked(watch, 5) == "ggg--", "the lock alone while other threads hold it"


ROLES = {"rank": [10], "loader-worker": [11, 12, 13, 14, 15, 16], "helper": [20]}


def chooser(monkeypatch, working, roles=None):
    some = Chooser([os.getpid()], lambda: working)
    monkeypatch.setattr(some, "_by_role", lambda: roles or ROLES)
    return some


def test_the_rank_comes_first_until_it_is_known_who_works(monkeypatch):
    chosen = chooser(monkeypatch, ()).next(5)
    assert chosen[0] == 10 and len(chosen) == 5 and set(chosen[1:]) <= set(ROLES["loader-worker"])
    assert chooser(monkeypatch, (99,)).next(2)[0] == 10, "who worked has ended"
    assert chooser(monkeypatch, (99, 12)).next(2)[0] == 12


@pytest.mark.parametrize("most", [2, 3, 4, 7])
def test_the_first_that_works_is_in_every_window_and_the_others_take_turns(monkeypatch, most):
    some = chooser(monkeypatch, (13, 11, 14, 15))
    windows = [some.next(most) for _ in range(12)]
    assert all(window[0] == 13 and len(window) == len({*window}) == most for window in windows)
    others = Counter(pid for window in windows for pid in window[1:])
    assert set(others) == {10, *ROLES["loader-worker"]} - {13}, "also the rank that waits"
    for alike in ((11, 14, 15), (10, 12, 16)):
        counts = [others[pid] for pid in alike]
        assert max(counts) - min(counts) <= 1


def test_places_that_one_kind_of_process_does_not_need_are_the_others(monkeypatch):
    assert len(chooser(monkeypatch, (13, 11)).next(6)) == 6
    assert chooser(monkeypatch, tuple(ROLES["loader-worker"]), {"rank": ROLES["loader-worker"]}).next(4) == [
        11, 12, 13, 14
    ]  # fmt: skip
    assert chooser(monkeypatch, (13,), {"rank": [13]}).next(8) == [13]


def test_processes_that_use_cores_come_before_those_that_rest(monkeypatch):
    """Of Ray's dozen processes, the replica that answers is one."""
    resting, busy = [20, 21, 22, 23, 24, 25], [30, 31]
    choice = chooser(monkeypatch, (10,), {"rank": [10], "other": [*resting, *busy]})
    choice._cores = dict.fromkeys(busy, 0.4)
    windows = [choice.next(4) for _ in range(6)]
    assert all(window[:3] == [10, 30, 31] or window[:3] == [10, 31, 30] for window in windows)
    assert [window[3] for window in windows] == resting
    alone = chooser(monkeypatch, (10,), {"rank": [10], "other": [*resting, *busy]})
    alone._cores = dict.fromkeys(busy, 0.4)
    assert [alone.next(2)[1] for _ in range(6)] == [30, 31, 20, 30, 31, 21]


def test_a_launcher_is_looked_at_while_it_uses_a_core(monkeypatch):
    some = chooser(monkeypatch, (11,), {"launcher": [9], "rank": [11]})
    assert some.next(8) == [11]
    some._cores = {9: 0.5}
    assert some.next(8) == [11, 9]


def test_cores_used_are_measured_from_turn_to_turn(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    some = Chooser([os.getpid()])
    some.next(8)
    assert some._cores == {}
    used = time.process_time()
    while time.process_time() < used + 0.05:
        pass
    clock[0] += 0.1
    some.next(8)
    # The kernel counts in hundredths of a second.
    assert some._cores[os.getpid()] == pytest.approx((time.process_time() - used) / 0.1, abs=0.25)


def test_the_first_step_ends_a_pause(monkeypatch):
    stepping: set[int] = set()
    source = StackSource([1], script=None, stepping=lambda: stepping)
    reads: list[bool] = []
    monkeypatch.setattr(source, "_read", lambda: reads.append(True) or [])
    source._due = time.monotonic() + 1000.0
    source.read()
    assert not reads
    stepping.add(1)
    source.read()
    source.read()
    assert len(reads) == 1
    source._due = time.monotonic()
    source.read()
    assert len(reads) == 2


def test_where_no_core_is_idle_sampling_takes_a_quarter():
    free, full = Budget(0.0), Budget(0.0)
    free.found_idle(0.9)
    full.found_idle(0.1)
    assert (free.seldom, full.seldom) == (False, True)
    assert cores_used(0.03, full) == pytest.approx(0.25 * cores_used(0.03, free), rel=0.05)
    full.found_idle(2.0)
    assert not full.seldom
    assert full.spend(0.0, 1e6, 1e6 + 10.0) == 0.0, "what it lacked is made up for as soon as there is idle time"


def test_where_no_core_is_idle_few_processes_are_sampled(monkeypatch):
    source = StackSource([os.getpid()], script=None)
    wanted = []
    monkeypatch.setattr(source._chooser, "next", lambda most: wanted.append(most) or [])
    monkeypatch.setattr(source, "_looks", lambda pids, first: [])
    source.read()
    source._began -= 10.0
    monkeypatch.setattr(source._idle, "last", lambda: 3.0)
    source.read()
    assert source.note is None
    monkeypatch.setattr(source._idle, "last", lambda: 0.0)
    source.read()
    unknown, idle, busy = wanted
    assert LEAST_CHILDREN <= busy <= unknown < idle
    assert "no core is idle" in source.note


def test_idle_cores_are_those_that_we_may_use(monkeypatch):
    seconds = iter([(0.0, 0.0), (2.0, 3.0), (2.0, 3.0), (4.0, 3.5)])
    monkeypatch.setattr(IdleCores, "_read", staticmethod(lambda: next(seconds)))
    idle = IdleCores()
    assert [idle.last(), idle.last(), idle.last()] == [1.5, 0.0, 0.25]
    lines = "cpu  9 9 9 900 90 9\ncpu0 1 0 1 100 10 0 0\ncpu1 1 0 1 200 20 0 0\ncpu10 1 0 1 400 40 0 0\nintr 5 7\n"
    for text, idle_ticks in ((lines, 660), (None, 0)):
        monkeypatch.setattr(procfs, "text", lambda path, text=text: text)
        assert procfs.idle_seconds({1, 10}) == pytest.approx(idle_ticks / procfs.TICKS_PER_SECOND)
