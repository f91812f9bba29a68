"""Numbers as people read them: the unit fits the number as it is written."""

from datetime import datetime, timedelta

import pytest

from aitop.model.units import duration, moment, operations, size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.00085, "850 µs"), (0.0009996, "1.0 ms"), (0.00996, "10 ms"), (0.021, "21 ms"), (0.9994, "999 ms"),
        (0.9996, "1.00 s"), (9.994, "9.99 s"), (9.996, "10 s"), (59.4, "59 s"), (59.7, "1 m 00 s"), (250.0, "4 m 10 s"),
        (3599.7, "1 h 00 m"), (11520.0, "3 h 12 m"), (None, "–"),
    ],
)  # fmt: skip
def test_durations_are_rounded_before_their_unit_is_chosen(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (size(812), "812 B"), (size(1010), "1.0 KB"), (size(4.1 * 1024**3), "4.1 GB"), (size(9.97 * 1024), "10 KB"),
        (size(1023.97 * 1024), "1.0 MB"), (size(float("inf")), "inf PB"), (operations(999.6e6), "1.0 GFLOP/s"),
    ],
)  # fmt: skip
def test_sizes_have_three_digits_at_most(written, words):
    assert written == words


def test_moments_are_said_as_people_say_them():
    now = datetime(2026, 11, 23, 9, 30)
    said = {days: moment((now - timedelta(days=days, hours=1)).timestamp(), now.timestamp()) for days in (0, 1, 2, 20)}
    assert said == {0: "08:30", 1: "yesterday 08:30", 2: "Sat 08:30", 20: "3 Nov 08:30"}
