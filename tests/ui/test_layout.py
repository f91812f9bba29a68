"""Where each pane stands at which size: pure arithmetic, without a screen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aitop.ui.layout import plan

SIZES = [(80, 24), (120, 36), (200, 50)]


def assert_no_overlap(boxes, width, height):
    """Every pane has cells of its own, all of them on the screen."""
    taken = set()
    for name, box in boxes.items():
        cells = {(x, y) for x in range(box.x, box.x + box.width) for y in range(box.y, box.y + box.height)}
        assert cells, name
        assert not cells & taken, name
        assert all(0 <= x < width and 0 <= y < height for x, y in cells), name
        taken |= cells


@given(
    width=st.integers(1, 320), height=st.integers(1, 120), gpus=st.integers(0, 16), ranks=st.sampled_from([1, 2, 64]),
    banner=st.booleans(), serving=st.booleans(), ledger=st.booleans(),
    zoom=st.sampled_from([None, None, "code", "gpu", "verdict"]),
)  # fmt: skip
def test_no_two_panes_overlap_at_any_size(width, height, gpus, ranks, banner, serving, ledger, zoom):
    boxes = plan(width, height, gpus=gpus, ranks=ranks, banner=banner, serving=serving, ledger=ledger, zoom=zoom)
    assert "verdict" in boxes or zoom in boxes
    assert_no_overlap(boxes, width, height)


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_ranks_have_room_and_leave_the_code_its_place(ranks, gpus):
    for width, height in SIZES:
        boxes = plan(width, height, ranks=ranks, gpus=gpus)
        assert boxes["ranks"].height >= (min(ranks + 3, 6) if gpus == 1 else 4), (width, height)
        assert boxes["code"].height >= 3, (width, height)
    assert plan(120, 36, ranks=ranks)["code"].height >= 8


def test_one_rank_has_no_matrix_and_many_have_most_of_a_large_screen():
    assert all("ranks" not in plan(*size, ranks=1) for size in SIZES)
    many, few = plan(300, 70, ranks=64), plan(300, 70, ranks=4)
    assert many["ranks"].height > 2 * many["code"].height > 2 * few["ranks"].height


def test_panes_have_the_rows_they_can_use():
    few, more, many = (plan(200, 50, processes=number)["processes"].height for number in (3, 5, 64))
    assert (few, more) == (8, 8)
    assert many == plan(200, 50)["processes"].height > few
    assert plan(200, 50, processes=3)["code"].height > plan(200, 50, processes=64)["code"].height
    assert plan(120, 36, timed=False)["step"].height < plan(120, 36)["step"].height
    assert plan(120, 36, timed=False, gpus=1) == plan(120, 36, gpus=1)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_the_code_keeps_its_place_beside_a_server(size, gpus):
    boxes = plan(*size, gpus=gpus, serving=True, ledger=True)
    assert boxes["serving"].height >= 6 and boxes["code"].height >= 3
    assert "step" not in boxes
    assert ("ledger" in boxes and "data" not in boxes) is (size != (80, 24))
    trained = plan(*size, gpus=gpus, ledger=True)
    assert boxes["serving"].height >= trained["step"].height
