"""When a request reached a busy event loop or pool: learnt from the kernel's ticks, which are coarse."""

from __future__ import annotations

import random
import statistics

import pytest

from aitop.hook.measures.serving import arrival
from aitop.hook.measures.serving.arrival import LEARNT_FROM, Loop, Threads, Ticks

MS = 1_000_000
TICK = 4 * MS


def waits(came_before, handler=2_900_000, count=1200, between=60_000):
    """Real and estimated waits (ms) of requests; the handler of each runs for so long right before the next is taken.

    `came_before(chance)` is how long before it was taken up each arrived.
    """
    chance, loop, now, found = random.Random(1), Loop(TICK), 50 * MS, []
    for _ in range(count):
        now += between // 2
        wait = came_before(chance)
        arrived = now - wait
        ticks = (now // TICK - arrived // TICK) * TICK
        found.append((wait / MS, (now - loop.arrival(now, ticks, now % TICK)) / MS))
        now += int(handler * chance.uniform(0.9, 1.1))
        loop.ran = now
        now += between // 2
    return [list(each) for each in zip(*found[LEARNT_FROM:], strict=True)]


@pytest.mark.parametrize(
    "came_before",
    [lambda chance: 2_500_000, lambda chance: chance.randint(0, 2_500_000), lambda chance: chance.randint(0, 100_000)],
    ids=["as soon as the last handler began", "at any time", "when it was about to end"],
)
def test_waits_shorter_than_a_tick_are_right_in_the_middle(came_before):
    real, estimated = waits(came_before)
    assert statistics.median(estimated) == pytest.approx(statistics.median(real), abs=0.25)
    assert statistics.fmean(estimated) == pytest.approx(statistics.fmean(real), abs=0.25)


def test_a_wait_of_several_ticks_is_known_but_for_one():
    real, estimated = waits(lambda chance: chance.randint(0, 48 * MS), handler=50 * MS)
    assert max(abs(a - b) for a, b in zip(real, estimated, strict=True)) <= TICK / MS
    assert statistics.median(estimated) == pytest.approx(statistics.median(real), rel=0.1)


def test_a_request_that_comes_to_a_loop_at_rest_has_not_waited():
    _, estimated = waits(lambda chance: 20_000, between=10 * MS)
    assert set(estimated) == {0.0}


def test_a_loop_that_something_else_blocked_is_seen_by_the_ticks():
    loop = Loop(TICK)
    assert 1000 * MS - loop.arrival(1000 * MS, 5 * TICK, MS) == 5 * TICK
    assert 2000 * MS - loop.arrival(2000 * MS, TICK, MS) == 0


def test_a_request_comes_after_the_answer_before_it_on_its_connection():
    loop, now = Loop(TICK), 1000 * MS
    for _ in range(500):
        # Two clients that wait for their answers: one has just got it, the other has waited for the whole handler.
        loop.ran = now
        for connection, wait in ((1, 50_000), (2, 3 * MS)):
            taken = now + 40_000
            ticks = (taken // TICK - (taken - wait) // TICK) * TICK
            waited = taken - loop.arrival(taken, ticks, taken % TICK, connection)
        now += 6_100_000
        loop.answered(now - 3 * MS, 2)
        loop.answered(now, 1)
    assert loop.waited / loop.held > 0.8 and waited == pytest.approx(3 * MS, rel=0.15)


@pytest.mark.parametrize("usual", [0.1, 1.5, 6.0, 40.0])
def test_waits_for_a_thread_are_right_in_the_mean_and_near_it_in_the_middle(usual):
    chance, threads, now, found = random.Random(2), Threads(TICK), 1000 * MS, []
    for _ in range(6000):
        now += int(chance.uniform(5, 15) * MS)
        wait = int(chance.expovariate(1 / usual) * MS)
        ticks = (now // TICK - (now - wait) // TICK) * TICK
        found.append((wait / MS, (now - threads.arrival(now, ticks, now % TICK)) / MS))
    real, estimated = (list(each) for each in zip(*found[LEARNT_FROM:], strict=True))
    assert statistics.fmean(estimated) == pytest.approx(statistics.fmean(real), rel=0.1, abs=0.03)
    assert max(abs(a - b) for a, b in zip(real, estimated, strict=True)) <= TICK / MS
    assert statistics.median(estimated) == pytest.approx(statistics.median(real), rel=0.15, abs=0.3)


def test_a_pause_now_and_then_is_not_taken_for_the_usual_wait():
    chance, threads, now, errors = random.Random(4), Threads(TICK), 1000 * MS, []
    for number in range(6000):
        now += int(chance.uniform(5, 15) * MS)
        in_a_pause = number % 100 < 3
        wait = int((chance.uniform(20, 300) if in_a_pause else 0.06) * MS)
        ticks = (now // TICK - (now - wait) // TICK) * TICK
        errors.append((now - threads.arrival(now, ticks, now % TICK) - wait) / MS)
    assert abs(statistics.median(errors[LEARNT_FROM:])) < 0.05
    assert abs(statistics.fmean(errors[LEARNT_FROM:])) < 0.05


def test_without_a_tick_in_between_the_wait_is_zero():
    threads = Threads(TICK)
    assert all(threads.arrival(number * MS, 0, number % TICK) == number * MS for number in range(1000, 1100))


@pytest.mark.parametrize("drift", [0.0, 50e-6], ids=["steady", "a clock that is corrected"])
@pytest.mark.parametrize("behind", [0, 3_650_000])
def test_the_last_tick_is_known_though_the_coarse_clock_lags_it(monkeypatch, behind, drift):
    chance, ticks, now, errors = random.Random(3), Ticks(), 1000 * MS, []
    ticks.length = TICK
    for _ in range(4000):
        now += chance.randint(1, 20 * MS)
        lag = int((behind + drift * now) % TICK)
        shown = now - now % TICK - lag
        monkeypatch.setattr(arrival, "coarse_ns", lambda clock, shown=shown: shown)
        errors.append(abs(ticks.since(now) - now % TICK))
    # The lag that drifts goes from a whole tick to none at once.
    assert statistics.quantiles(errors[200:], n=20)[-1] < 0.2 * MS
