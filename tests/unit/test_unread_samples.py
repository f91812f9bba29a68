"""Samples that could not be read are those of stacks that change: shares are corrected for them."""

import pytest
from stack_maker import stack, window

from aitop.stacks.view import StackView

RANK = 100
TOP = ("user/train.py:90 <module> | main()",)
BACK = stack(*TOP, "user/train.py:15 main | loss.backward()", "torch/_tensor.py Tensor.backward")
PYTHON = stack(*TOP, "user/train.py:30 main | row = build(i)", "user/rows.py:7 build | total += value")


def seen(*counts, seconds=5.0):
    samples = [(RANK, "MainThread", True, frames, count) for frames, count in counts]
    found = StackView().view([window(5.0, *samples, seconds=seconds)], {RANK: "rank"}, 0.0)
    assert found is not None
    return found.processes[0], {line.line: line for line in found.lines}


def test_what_is_missing_is_pythons():
    """Asked for 100, 40 of a backward pass and 20 of Python came: the other 36 were Python, too."""
    process, lines = seen((BACK, 40), (PYTHON, 20))
    assert process.phases.backward == pytest.approx(40 / 96) and process.phases.outside == pytest.approx(56 / 96)
    assert lines[7].share == pytest.approx(56 / 96) and lines[15].share == pytest.approx(40 / 96)
    assert (process.samples, lines[7].samples) == (60, 20), "counted are those that came"


@pytest.mark.parametrize("counts", [((BACK, 60), (PYTHON, 30)), ((BACK, 60),)])
def test_a_few_too_little_or_nothing_that_moves_change_nothing(counts):
    process, lines = seen(*counts)
    whole = sum(count for _, count in counts)
    assert process.phases.backward == pytest.approx(60 / whole) and lines[15].share == pytest.approx(60 / whole)


def test_few_samples_tell_only_so_much_of_those_that_are_missing():
    process, _ = seen((BACK, 40), (PYTHON, 2))
    assert process.phases.outside == pytest.approx(6 / 46)
