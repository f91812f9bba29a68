"""What the history keeps of minutes, however often samples come."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from aitop.engine.history import (
    APART_SECONDS,
    CHART_SECONDS,
    DENSE_SECONDS,
    KEEP_SECONDS,
    RecentSamples,
    StepSeconds,
)
from aitop.engine.snapshot.series import LANE_SAMPLES, MOST_LANES, worker_lanes
from aitop.model.host import HostSample, MachineSample, ProcessSample
from aitop.model.steps import StepRecord
from aitop.stacks.view import StackView


class Seen(NamedTuple):
    time: float


def taken(times, recent=None):
    recent = RecentSamples() if recent is None else recent
    for time in times:
        recent.append(Seen(time))
        recent.forget(time)
    return recent


@pytest.mark.parametrize("interval", [1.0, 2.5, 0.51])
def test_at_the_usual_pace_all_of_them_stay_until_they_are_old(interval):
    times = [1000.3 + interval * number for number in range(int(400 / interval))]
    recent = taken(times)
    assert [sample.time for sample in recent] == [time for time in times if time >= times[-1] - KEEP_SECONDS]


def test_older_ones_that_came_fast_are_thinned_out():
    times = [7.0 + number / 10 for number in range(10_000)]
    recent = taken(times)
    dense = [sample.time for sample in recent if sample.time >= times[-1] - DENSE_SECONDS]
    assert dense == [time for time in times if time >= times[-1] - DENSE_SECONDS]
    older = [sample.time for sample in recent][: len(recent) - len(dense)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(older)]
    assert min(gaps) == pytest.approx(APART_SECONDS, abs=0.11) and max(gaps) == pytest.approx(APART_SECONDS, abs=0.11)
    assert older[0] == pytest.approx(times[-1] - KEEP_SECONDS, abs=APART_SECONDS)
    assert len(recent) < KEEP_SECONDS / APART_SECONDS + DENSE_SECONDS * 10 + 2


def test_the_samples_kept_do_not_depend_on_where_reading_began():
    times = [7.0 + number * 0.083 for number in range(12_000)]
    last = times[-1] - KEEP_SECONDS
    late = taken([time for time in times if time >= last - 1.0])
    assert [sample.time for sample in late] == [sample.time for sample in taken(times)]


def test_samples_are_read_from_both_ends():
    recent = RecentSamples()
    assert recent.last is None and not recent and list(recent) == []
    taken([float(number) for number in range(100)], recent)
    assert recent.last == Seen(99.0) and len(recent) == 100
    assert list(reversed(recent)) == list(recent)[::-1]
    recent.forget(150.0)
    assert recent.last == Seen(99.0)


def step(index, end, seconds=0.1, **more):
    return StepRecord(index=index, end=end, seconds=seconds, **more)


def test_steps_are_put_together_by_the_second_in_which_they_end():
    seconds = StepSeconds()
    seconds.add([step(n, 10.0 + n * 0.01, 0.001 * (n + 1)) for n in range(100)])
    assert seconds.series() == {}
    seconds.add([step(100, 11.5, 0.5, save=0.4, evaluation=0.05), step(101, 14.2)])
    series = seconds.series()
    assert series["step_p50"].times == (11.0, 12.0)
    assert [round(value) for value in series["step_p50"].values] == [51, 500]
    assert [round(value) for value in series["step_p95"].values] == [96, 500]
    assert series["step_save"].values == (0.0, 0.4)
    assert series["step_evaluation"].values == (0.0, 0.05)


def test_the_chart_of_steps_is_bounded():
    seconds = StepSeconds()
    seconds.add(step(n, float(n)) for n in range(2000))
    assert len(seconds.series()["step_p50"].times) == CHART_SECONDS
    assert seconds.series()["step_p50"].times[-1] == 1999.0


def test_each_worker_has_a_lane():
    def host(time, pids):
        workers = tuple(
            ProcessSample(pid=pid, ppid=1, started=0.0, role="loader-worker", name="p", command="p", cpu=0.5)
            for pid in pids
        )
        return HostSample(time=time, processes=workers, machine=MachineSample(cores=2))

    lanes = worker_lanes([host(1.0, [7]), host(2.0, [7, 8])], [], StackView())
    assert lanes["worker7.cpu"].values == (0.5, 0.5)
    assert lanes["worker8.cpu"].values == (None, 0.5)
    assert "worker7.idle" not in lanes
    many = worker_lanes([host(float(n), range(100)) for n in range(300)], [], StackView())
    assert len(many) == MOST_LANES
    assert len(many["worker0.cpu"].times) == LANE_SAMPLES
    assert worker_lanes([], [], StackView()) == {}
