"""Values of drivers that cannot be are None, and names are printable."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop.sources import plausible

ALL_BITS = 4294967295


@pytest.mark.parametrize("percent", [ALL_BITS, 255, -1, math.nan, math.inf, None])
def test_a_share_that_cannot_be_is_none(percent):
    assert plausible.share(percent) is None


@given(st.floats(0, 101))
def test_a_share_stays_between_nothing_and_all(percent):
    share = plausible.share(percent)
    assert 0 <= share <= 1


def test_zero_is_a_measurement():
    assert plausible.share(0) == 0.0
    assert plausible.whole(0, 0, 10) == 0


@given(st.text())
def test_a_clean_name_cannot_move_the_cursor(text):
    cleaned = plausible.clean(text)
    assert cleaned is None or (cleaned.isprintable() and 0 < len(cleaned) <= plausible.LONGEST_NAME)


def test_escape_codes_leave_names():
    assert plausible.clean("NVIDIA\x1b[31m H200\x07\u202e\n") == "NVIDIA·[31m H200··"
