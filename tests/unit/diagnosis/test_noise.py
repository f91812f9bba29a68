"""How far a mean may be off, where each value resembles the last one."""

import pytest
from past_maker import noise_of

from aitop.diagnosis.noise import half_width, student, student_chance, warm_up

SEEDS = 200


def test_the_expansion_and_the_chance_of_a_value_agree_with_the_tables():
    assert student(10) == pytest.approx(2.228, rel=0.004)
    assert student(30) == pytest.approx(2.042, rel=0.002)
    for freedom, value in {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228}.items():
        assert student_chance(value, freedom) == pytest.approx(0.05, rel=0.002)
    assert (student_chance(9.0, 0), student_chance(0.0, 3)) == (1.0, 1.0)


@pytest.mark.parametrize("like", [0.0, 0.6, 0.9])
def test_the_interval_holds_the_mean(like):
    held = 0
    for seed in range(SEEDS):
        values = noise_of(384, seed, like=like)
        stretches = [sum(values[at : at + 8]) / 8 for at in range(0, len(values), 8)]
        held += abs(sum(values) / len(values) - 1) <= half_width(stretches)
    assert held >= 0.92 * SEEDS


def test_warm_up_is_left_out():
    slow_start = [5.0, 4.0, 1.5, *noise_of(60, 1)]
    assert warm_up(slow_start) == 3
    assert warm_up([1.0] * 100) == warm_up([]) == 0
    # A long step in the middle, such as an evaluation, is none; nor is a run that gets faster all the time.
    assert warm_up([1.0, 1.0, 5.0, 1.0]) == 0
    assert warm_up([4.0, 3.0, 2.0, 1.0]) == 2
