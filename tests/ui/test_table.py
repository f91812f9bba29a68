"""Tables: which columns have room, and in which order rows come."""

import pytest

from aitop.ui.screens.fleet import JOBS, RANKS
from aitop.ui.widgets.table import Column, Order, fit, in_order, next_order


@pytest.mark.parametrize("table", [JOBS, RANKS], ids=["jobs", "ranks"])
def test_columns_fill_the_width_and_never_more(table):
    before = 0
    for width in range(20, 240):
        shape = fit(table, width)
        cells = 2 + sum(room + 2 for _, room in shape) - 2
        assert cells <= max(width, 22)
        assert len(shape) >= before
        before = len(shape)
    assert before == len(table)


def test_a_column_that_just_fits_is_shown():
    table = [Column("a", 5, 0, str), Column("b", 7, 1, str)]
    assert [room for _, room in fit(table, 2 + 5 + 2 + 7)] == [5, 7]
    assert [room for _, room in fit(table, 2 + 5 + 2 + 6)] == [5]
    assert [room for _, room in fit(table, 2 + 5 + 1 + 7, gap=1)] == [5, 7]


def test_what_is_not_measured_comes_last_in_either_order():
    table = (Column("a", 3, 0, lambda row: row[0]), Column("b", 3, 0, lambda row: row[1]))
    rows = [(2, "x"), (None, "y"), (9, None)]
    assert [row[0] for row in in_order(rows, table, Order("a"))] == [9, 2, None]
    assert [row[0] for row in in_order(rows, table, Order("a", inverted=True))] == [2, 9, None]
    assert [row[1] for row in in_order(rows, table, Order("b"))] == ["x", "y", None]
    assert next_order(["a", "b"], Order(), 1) == Order("a")
    assert next_order(["a", "b"], Order("b"), 1) == Order("b")
    assert next_order(["a", "b"], Order("a"), -5) == Order()
