"""Steps that a hook only counted, and those that ended the counting."""

from __future__ import annotations

from itertools import pairwise

import pytest
from event_log import EventLog

from aitop.protocol import events as at
from aitop.sources.ring import counted as counted_module

US = 1000
LONGEST = 5000 * US


class Run(EventLog):
    """A run with steps of 0.7 ms of which the hook only counts some."""

    unit = US

    def train(self, times=1):
        for _ in range(times):
            self.phase(at.NEXT, 100, 5, -1)
            self.phase(at.FORWARD, 200, 8, 40)
            self.phase(at.BACKWARD, 300, 1)
            self.phase(at.OPTIMIZER_ENDS, 100, 1, -1)

    def count(self, steps, length=700):
        self.phase(at.COUNTING_BEGINS, 0, LONGEST)
        self.phase(at.COUNTED, steps * length, steps)


@pytest.fixture
def run():
    return Run()


def test_counted_steps_are_told_and_nothing_is_lost_or_doubled(run):
    run.train(11)
    began = run.now
    run.count(100, length=770)
    ended = run.now
    run.train(3)
    steps = run.steps()
    assert [step.index for step in steps] == list(range(1, 114))
    counted = [step for step in steps if step.estimated]
    assert [step.index for step in counted] == list(range(11, 111))
    assert sum(step.seconds for step in counted) == pytest.approx((ended - began) * 1e-9)
    assert counted[-1].end == pytest.approx(ended * 1e-9, abs=1e-9)
    assert all(one.end == pytest.approx(two.end - two.seconds, abs=1e-9) for one, two in pairwise(steps))
    whole = sum(step.seconds for step in counted)
    assert sum(step.forward for step in counted) / whole == pytest.approx(2 / 7, rel=1e-4)
    assert {step.samples for step in counted} == {8} and {step.tokens for step in counted} == {40}
    assert {step.cpu for step in counted} == {None} == {step.device_forward for step in counted}
    assert not steps[-1].estimated and steps[-1].seconds == pytest.approx(700e-6)


def test_counted_steps_vary_as_the_timed_ones_did(run):
    for _ in range(20):
        run.train(3)
        run.phase(at.BLOCKING, 0)
        run.phase(at.NEXT, 1400, 5, -1)
        run.train()
    run.count(400, length=1050)
    lengths = sorted(step.seconds for step in run.steps() if step.estimated)
    assert lengths[100] == pytest.approx(700e-6, rel=1e-3) and lengths[-50] == pytest.approx(2100e-6, rel=1e-3)


@pytest.mark.parametrize("kind", [at.SAVE, at.LOADER])
def test_saves_and_loader_starts_are_in_no_counted_step(run, kind):
    run.train(9)
    run.phase(kind, 300)
    run.train(1)
    run.phase(at.NEXT, 50_000, 5, -1)
    run.train(1)
    run.count(50)
    counted = [step for step in run.steps() if step.estimated]
    assert len(counted) == 50
    assert all(step.save == step.loader_start == 0 and step.seconds < 0.001 for step in counted)


def test_a_long_step_while_counting_has_its_length_and_the_phases_that_were_seen(run):
    run.train(10)
    run.count(50)
    began = run.now
    run.now += 400 * US
    run.phase(at.UNSEEN, 200_000)
    run.phase(at.OPTIMIZER_ENDS, 0, 1, -1)
    run.train()
    *_, long, after = run.steps()
    assert (long.index, long.estimated, after.index, after.estimated) == (60, True, 61, False)
    assert long.seconds == pytest.approx(0.2004) and long.end == pytest.approx((began + 200_400 * US) * 1e-9)
    assert long.outside == pytest.approx(0.0004, abs=1e-8), "from the step's start to its forward"
    assert long.forward + long.backward + long.optimizer == pytest.approx(0.2, rel=1e-3)
    assert long.forward / long.backward == pytest.approx(2 / 3, rel=1e-3)
    assert (long.forwards, long.backwards, long.samples, long.tokens) == (1, 1, 8, 40)


def test_a_slow_batch_while_counting_is_the_wait_that_it_was(run):
    run.train(10)
    run.count(50)
    run.phase(at.NEXT, 80_000, 5, -1)
    run.phase(at.FORWARD, 200, 8, -1)
    run.phase(at.BACKWARD, 300, 1)
    run.phase(at.OPTIMIZER_ENDS, 100, 1, -1)
    slow = run.steps()[-1]
    assert not slow.estimated and slow.data_wait == pytest.approx(0.08) and slow.seconds == pytest.approx(0.0806)


def test_events_during_counting_belong_to_the_next_timed_step_or_to_none(run):
    run.train(10)
    began = run.now
    run.phase(at.COUNTING_BEGINS, 0, LONGEST)
    run.events += [(at.COLLECT, began + 5, began + 400 * US, 0, 0)]
    ended = began + 7000 * US
    run.events += [(at.COLLECT, ended + 100, ended + 200 * US, 0, 0), (at.COUNTED, began, ended, 10, 0)]
    run.now = ended
    run.train()
    steps = run.steps()
    assert len(steps) == 20
    assert [step.gc for step in steps if step.gc] == [pytest.approx(200e-6, rel=1e-2)]


def test_a_count_whose_beginning_was_lost_only_counts(run):
    run.train(5)
    run.steps()
    run.maker.gap()
    run.phase(at.COUNTED, 70_000, 100)
    run.train(2)
    steps = run.steps()
    assert [step.index for step in steps] == [105, 106] and not any(step.estimated for step in steps)


def test_steps_that_nothing_is_known_of_are_only_counted(run):
    run.phase(at.OPTIMIZER_ENDS, 100, 1, -1)
    run.count(100)
    run.train(2)
    assert [step.index for step in run.steps()] == [101, 102]


def test_no_count_makes_more_steps_than_there_is_room_for(run, monkeypatch):
    monkeypatch.setattr("aitop.sources.ring.steps.MOST_AT_ONCE", 1000)
    run.train(5)
    for _ in range(5):
        run.count(300)
        run.train()
    run.phase(at.COUNTING_BEGINS, 0, LONGEST)
    run.events.append((at.COUNTED, run.now, run.now + 2**62, 2**62, 0))
    steps = run.steps()
    assert len([step for step in steps if step.estimated]) == 900 <= counted_module.MOST_AT_ONCE
    assert [step.index for step in steps][-1] == 4 + 5 * 301


@pytest.mark.parametrize("again", [True, False])
def test_a_count_whose_end_was_never_noted_holds_up_nothing(run, again):
    run.train(11)
    run.phase(at.COUNTING_BEGINS, 0, LONGEST)
    run.now += 300_000_000
    if again:
        run.train(1)
        run.count(10)
    run.train(5)
    steps = run.steps()
    assert len(steps) == (10 + 10 + 5 if again else 10 + 4)
    assert max(step.seconds for step in steps) < 0.01
