"""Events to steps, without any hook: what makes a step, what waits for the device, and what nonsense cannot do."""

from __future__ import annotations

import pytest
from event_log import START, EventLog
from hypothesis import given, settings
from hypothesis import strategies as st

from aitop.protocol import events as at
from aitop.protocol.training import TRAINING_ENDS_AFTER_NS
from aitop.sources.ring import step_maker as maker_module
from aitop.sources.ring.step_maker import StepMaker

MS = 1_000_000
WATCHES = ("transfer", "blocking", "collective")


class Run(EventLog):
    def train(self, times=1, optimizer=1):
        for _ in range(times):
            self.phase(at.NEXT, MS, 5, -1)
            self.phase(at.FORWARD, 2 * MS, 8, -1)
            self.phase(at.BACKWARD, 3 * MS, 1)
            self.phase(at.OPTIMIZER_ENDS, MS, optimizer, -1)


@pytest.fixture
def run():
    return Run()


def test_a_step_and_its_parts(run):
    run.train(3)
    steps = run.steps()
    assert [step.index for step in steps] == [1, 2], "where the first began is not known"
    step = steps[-1]
    assert (step.seconds, step.data_wait, step.forward) == pytest.approx((0.007, 0.001, 0.002))
    assert (step.backward, step.optimizer, step.samples, step.kind) == (
        pytest.approx(0.003),
        pytest.approx(0.001),
        8,
        "train",
    )
    assert step.transfer is step.blocking is step.communication is step.transfer_bytes is step.collectives is None


@pytest.mark.parametrize("watches", [(), WATCHES])
def test_passes_of_which_nothing_else_is_known_are_made_quickly_and_alike(run, monkeypatch, watches):
    for number in range(5):
        run.phase(at.FORWARD_ALONE, 2 * MS, 8 + number, 50 - number)
        run.phase(at.ASIDE, MS, 3, -1)
    run.phase(at.TRANSFER, MS, 4096)
    run.phase(at.FORWARD_ALONE, 2 * MS, 8, -1)
    quick = StepMaker().read(run.events, watches)
    monkeypatch.setattr(maker_module, "_plain_pass", lambda made, before, model: record(made, before, unknown, watches))
    record, unknown = maker_module._record, maker_module._UNKNOWN
    assert quick == StepMaker().read(run.events, watches)
    assert len(quick) == 10 and quick[-1].transfer == (pytest.approx(0.001) if watches else None)


def test_events_split_between_reads_make_the_same_steps(run):
    run.train(20)
    events = list(run.events)
    whole = run.steps()
    other, pieces = StepMaker(), []
    for position in range(0, len(events), 3):
        pieces += other.read(events[position : position + 3])
    assert pieces == whole


def test_copies_waits_and_collectives_within_a_phase_are_summed(run):
    run.train()
    run.phase(at.NEXT, MS, 5, -1)
    for _ in range(2):
        run.phase(at.TRANSFER, MS, 1000, 3)
    run.phase(at.BLOCKING, 2 * MS, 7)
    run.phase(at.FORWARD, MS, 8, 40)
    run.phase(at.BACKWARD, MS, 1)
    run.phase(at.COLLECTIVE, MS, 500, 1)
    run.phase(at.OPTIMIZER_ENDS, MS, 1, -1)
    (step,) = run.steps(WATCHES)
    assert (step.transfer, step.transfer_bytes) == (pytest.approx(0.002), 2000)
    assert (step.blocking, step.blockings) == (pytest.approx(0.002), 1)
    assert (step.communication, step.collectives, step.tokens) == (pytest.approx(0.001), 1, 40)
    run.train()
    (step,) = run.steps(WATCHES)
    assert (step.transfer, step.transfer_bytes, step.blockings) == (0.0, 0, 0)


def test_a_step_that_was_left_out_ends_there(run):
    run.train(2)
    run.phase(at.NEXT, MS, 5, -1)
    run.phase(at.FORWARD, MS, 8, -1)
    run.phase(at.BACKWARD, MS, 1)
    run.phase(at.SKIPPED, MS // 2, 1)
    run.train()
    assert len(run.steps()) == 3


def test_texts_that_are_generated(run):
    for _ in range(3):
        run.phase(at.NEXT, MS, 5, -1)
        run.phase(at.GENERATE, 10 * MS, 32)
    steps = run.steps()
    assert [(step.kind, step.tokens) for step in steps] == [("generate", 32)] * 2
    assert [step.data_wait for step in steps] == pytest.approx([0.001] * 2)


def test_serving_after_training_is_inference(run):
    run.train(3)
    run.now += TRAINING_ENDS_AFTER_NS
    for _ in range(5):
        run.phase(at.NEXT, MS, 5, -1)
        run.phase(at.FORWARD_ALONE, 4 * MS, 8, -1)
    infers = [step for step in run.steps() if step.kind == "infer"]
    assert len(infers) == 4
    assert all(step.data_wait == pytest.approx(0.001) and step.seconds == pytest.approx(0.005) for step in infers)


def test_training_goes_on_after_a_very_long_evaluation(run):
    run.train(3)
    run.steps()
    for _ in range(4):
        run.phase(at.FORWARD_ALONE, TRAINING_ENDS_AFTER_NS // 2, 8, -1)
    run.train(2)
    long, last = [step for step in run.steps() if step.kind == "train"]
    assert long.evaluation == pytest.approx(2 * TRAINING_ENDS_AFTER_NS * 1e-9, rel=0.3)
    assert last.evaluation == 0.0 and last.seconds == pytest.approx(0.007)


def test_another_thread_and_a_gap_leave_the_broken_step_out(run):
    run.train(2)
    run.phase(at.OWNER, 0)
    run.train(2)
    assert len(run.steps()) == 2
    run.maker.gap()
    run.train(3)
    assert len(run.steps()) == 2


def test_a_reader_that_joins_late_continues_the_count(run):
    run.maker.join_late(1000, True)
    run.train(4)
    assert [step.index for step in run.steps()] == [998, 999, 1000]
    run.train()
    assert [step.index for step in run.steps()] == [1001]


class TestDevice:
    def timed(self, run, number: int) -> None:
        run.phase(at.NEXT, MS, 5, -1)
        run.phase(at.FORWARD, 2 * MS, 8, -1)
        run.phase(at.TIMED, 0, number)
        run.phase(at.OPTIMIZER_ENDS, MS, 1, -1)

    def times(self, run, number: int, forward: int, idle: int) -> None:
        run.events += [(at.DEVICE, number, forward, 0, 0), (at.DEVICE_REST, number, idle, 0, 0)]

    def test_a_step_waits_for_its_times(self, run):
        run.train()
        self.timed(run, 1)
        run.train()
        assert run.steps() == []
        self.times(run, 1, 5 * MS, MS)
        first, second = run.steps()
        assert (first.device_forward, first.device_idle) == pytest.approx((0.005, 0.001))
        assert second.device_forward is None

    def test_times_that_nobody_knows(self, run):
        run.train()
        self.timed(run, 1)
        self.times(run, 1, -1, -1)
        (step,) = run.steps()
        assert step.device_forward is None

    def test_times_that_never_come_hold_nothing_back_for_ever(self, run):
        run.train()
        self.timed(run, 1)
        assert run.steps() == []
        run.now += maker_module.LONGEST_WAIT_NS
        run.train()
        assert len(run.steps()) == 2

    def test_only_a_bounded_number_of_steps_waits_for_device_times(self, run):
        run.train()
        for number in range(1, maker_module.MOST_WAITING + 11):
            self.timed(run, number)
        assert len(run.steps()) == 10

    def test_times_of_no_step_do_not_pile_up(self, run):
        for number in range(5 * maker_module.MOST_DEVICE_TIMES):
            self.times(run, number, 1, 1)
            run.events.append((at.DEVICE, -number, 1, 1, 1))
        run.steps()
        assert len(run.maker._device) <= maker_module.MOST_DEVICE_TIMES
        assert len(run.maker._begun) <= maker_module.MOST_DEVICE_TIMES


word = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 20)
moment = st.integers(1, 2**62) | st.integers(START, START + 10**10)


@settings(max_examples=100, deadline=None)
@given(events=st.lists(st.tuples(st.integers(0, at.KINDS), moment, moment, word, word), max_size=60))
def test_steps_made_of_any_events_hold_their_phases(events):
    maker = StepMaker()
    for step in maker.read(events, WATCHES):
        assert 0 <= step.forward <= step.seconds
        assert step.cpu is None or step.cpu <= step.seconds


def test_an_optimizer_for_each_of_many_parameters_makes_one_step(run):
    for _ in range(5):
        run.phase(at.FORWARD, 20 * MS, 8, -1)
        run.phase(at.BACKWARD, 30 * MS, 1)
        for number in range(150):
            run.phase(at.OPTIMIZER_ENDS, MS, number, -1)
    steps = run.steps()
    whole = [(step.seconds, step.forward, step.backward, step.optimizer) for step in steps[-3:]]
    assert whole == [pytest.approx((0.2, 0.02, 0.03, 0.15))] * 3, "once the first round has told which there are"


def test_loaders_and_optimizers_that_never_return_are_forgotten(run):
    for number in range(3000):
        run.phase(at.NEXT, 1, number, -1)
        run.phase(at.OPTIMIZER_ENDS, 1, number, -1)
    run.steps()
    steps = run.maker._steps
    assert max(len(steps.feeds), len(steps.closed_feeds), len(steps.stepped), len(steps.optimizers)) <= 128
