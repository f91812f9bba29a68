"""Panes never overlap, and the room of a folded one goes to its column."""

from __future__ import annotations

import pytest

from aitop.ui.layout import plan, refit


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 36), (200, 50), (300, 70)])
@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_folded_panes_are_a_row_and_the_rest_never_overlaps(size: tuple[int, int], gpus: int) -> None:
    boxes = plan(*size, gpus=gpus)
    framed = [name for name, box in boxes.items() if box.framed]
    for folded in [{name} for name in framed] + [set(framed), {"step", "data"}, {"data", "memory"}]:
        fitted = refit(boxes, folded)
        taken: set[tuple[int, int]] = set()
        for name, box in fitted.items():
            cells = {(x, y) for x in range(box.x, box.x + box.width) for y in range(box.y, box.y + box.height)}
            assert len(cells) == box.width * box.height > 0
            assert taken.isdisjoint(cells), name
            assert max(y for _, y in cells) < size[1]
            taken |= cells
            assert box.height == 1 or name not in folded
            assert (box.x, box.width) == (boxes[name].x, boxes[name].width)
    assert refit(boxes, ()) == boxes


def test_the_room_of_a_folded_pane_goes_to_its_column() -> None:
    boxes = plan(120, 36, gpus=1)
    fitted = refit(boxes, {"step"})
    assert fitted["data"].height == boxes["data"].height + boxes["step"].height - 1
    assert fitted["memory"] == boxes["memory"]
    both = refit(boxes, {"step", "data", "gpu", "memory"})
    assert both["code"].height > boxes["code"].height
