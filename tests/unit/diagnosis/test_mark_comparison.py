"""Steps before and since: a change is found, chance is not taken for one, and too little is said to be too little."""

import random

import pytest

from aitop.diagnosis.mark_comparison import compare
from aitop.diagnosis.noise import LEAST_VALUES, chance
from aitop.model.steps import StepRecord


def steps(count, mean=0.1, *, seed=1, burst=0, rare=0.0, save=0.0):
    """Noisy steps; every `burst`-th waits for a loader; a share `rare` takes eight times as long."""
    noise = random.Random(seed)
    made = []
    for index in range(count):
        seconds = mean * (1 + 0.1 * noise.gauss(0, 1))
        seconds *= 2.5 if burst and index % burst == 0 else 1.0
        seconds *= 8.0 if noise.random() < rare else 1.0
        saved = save if index % 10 == 9 else 0.0
        made.append(StepRecord(index=index, end=index * mean, seconds=max(1e-4, seconds) + saved, save=saved))
    return made


@pytest.mark.parametrize("manner", [{}, {"burst": 4}, {"rare": 0.02}], ids=["plain", "bursty", "outliers"])
def test_a_real_change_is_found_with_its_size(manner):
    change = compare(steps(200, 0.13, **manner), steps(200, 0.10, seed=2, **manner))
    assert change.outcome == "faster"
    assert abs(change.factor - 1.3) <= 2 * change.margin
    assert "× faster (±" in change.words
    back = compare(steps(200, 0.10, seed=2, **manner), steps(200, 0.13, **manner))
    assert back.outcome == "slower"
    assert back.words.startswith("1.")


@pytest.mark.parametrize("manner", [{}, {"burst": 4}, {"rare": 0.02}], ids=["plain", "bursty", "outliers"])
def test_chance_is_not_taken_for_a_change(manner):
    changes = [compare(steps(80, seed=2 * n, **manner), steps(80, seed=2 * n + 1, **manner)) for n in range(60)]
    assert sum(change.outcome != "same" for change in changes) <= 3
    assert changes[0].words.startswith("no change beyond noise (±")


def test_too_few_steps_are_said():
    change = compare(steps(200), steps(LEAST_VALUES - 1))
    assert (change.outcome, change.factor) == ("unknown", None)
    assert change.words == f"not enough steps yet ({LEAST_VALUES - 1} of {LEAST_VALUES})"
    assert compare([], []).outcome == "unknown"


def test_a_checkpoint_is_no_change():
    assert compare(steps(100), steps(100, seed=3, save=2.0)).outcome == "same"


def test_identical_steps_differ_in_nothing():
    same = [StepRecord(index=n, end=n, seconds=0.5) for n in range(30)]
    assert compare(same, same).words == "no change beyond noise (±1 %)"
    assert chance([1.0] * 5, [1.0] * 5) == 1.0


def test_chance_agrees_with_the_tables():
    # Mann-Whitney for complete separation of ten and ten: two-sided p = 0.00018 by the normal approximation.
    assert chance(range(10), range(10, 20)) == pytest.approx(0.000183, rel=0.02)
