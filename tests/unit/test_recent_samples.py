"""Samples of some minutes, however often they come."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest

from aitop.engine.history import APART_SECONDS, DENSE_SECONDS, KEEP_SECONDS, RecentSamples


class Seen(NamedTuple):
    time: float


def taken(times, kept=None):
    kept = RecentSamples() if kept is None else kept
    for time in times:
        kept.append(Seen(time))
        kept.forget(time)
    return kept


@pytest.mark.parametrize("interval", [1.0, 2.5, 0.51])
def test_at_the_usual_pace_all_of_them_stay_until_they_are_old(interval):
    times = [1000.3 + interval * number for number in range(int(400 / interval))]
    kept = taken(times)
    assert [one.time for one in kept] == [time for time in times if time >= times[-1] - KEEP_SECONDS]


def test_older_ones_that_came_fast_are_thinned_out():
    times = [7.0 + number / 10 for number in range(10_000)]
    kept = taken(times)
    dense = [one.time for one in kept if one.time >= times[-1] - DENSE_SECONDS]
    assert dense == [time for time in times if time >= times[-1] - DENSE_SECONDS]
    older = [one.time for one in kept][: len(kept) - len(dense)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(older)]
    assert min(gaps) == pytest.approx(APART_SECONDS, abs=0.11) and max(gaps) == pytest.approx(APART_SECONDS, abs=0.11)
    assert older[0] == pytest.approx(times[-1] - KEEP_SECONDS, abs=APART_SECONDS)
    assert len(kept) < KEEP_SECONDS / APART_SECONDS + DENSE_SECONDS * 10 + 2


def test_what_is_kept_does_not_depend_on_where_reading_began():
    times = [7.0 + number * 0.083 for number in range(12_000)]
    last = times[-1] - KEEP_SECONDS
    late = taken([time for time in times if time >= last - 1.0])
    assert [one.time for one in late] == [one.time for one in taken(times)]


def test_looked_at_from_both_ends():
    kept = RecentSamples()
    assert kept.last is None and not kept and list(kept) == []
    taken([float(number) for number in range(100)], kept)
    assert kept.last == Seen(99.0) and len(kept) == 100
    assert list(reversed(kept)) == list(kept)[::-1]
    kept.forget(150.0)
    assert kept.last == Seen(99.0)
