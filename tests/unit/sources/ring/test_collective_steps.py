"""Collectives in the steps, and rounds of several optimizers that were joined in the middle."""

import pytest

from aitop.engine.snapshot.steps import steps_view
from aitop.protocol import events as at
from aitop.sources.ring.step_maker import StepMaker

MS = 1_000_000


def train(*parts, start=1000):
    """Events of one step each 20 ms, `parts` being (kind, begin, end, a) in milliseconds from its start."""
    return [(kind, (start + begin) * MS, (start + end) * MS, a, -1) for kind, begin, end, a in parts]


def step(start):
    return train(
        (at.NEXT, 0, 1, 7),
        (at.COLLECTIVE, 2, 3, 64),
        (at.COLLECTIVE, 3, 4, -1),
        (at.FORWARD, 1, 5, 4),
        (at.COLLECTIVE, 9, 10, 64),
        (at.BACKWARD, 5, 10, 1),
        (at.COLLECTIVE, 11, 13, 8),
        (at.COLLECTIVE, 13, 15, -1),
        (at.OPTIMIZER_ENDS, 15, 18, 99),
        (at.COLLECTIVE, 18, 19, 4),
        start=start,
    )


def records(*, watches):
    maker = StepMaker()
    return maker.read([event for number in range(5) for event in step(1000 + 20 * number)], watches)


def test_collectives_within_phases_are_told_from_those_beside_them():
    for record in records(watches=("collective",)):
        assert record.communication == pytest.approx(0.008)
        # A wait is no call of its own.
        assert record.collectives == len(record.collective_calls) == 4
        assert sum(record.collective_calls) == pytest.approx(record.communication)
        # After the last step's optimizer 1 ms, before this one's 4 ms.
        assert record.communication_apart == pytest.approx(0.005)
        assert record.outside == pytest.approx(0.020 - 0.001 - 0.004 - 0.005 - 0.003 - 0.005)


def test_phases_count_nothing_twice():
    phases = steps_view(1, records(watches=("collective",)), 5).phases
    assert phases.communication == pytest.approx(0.25)
    assert phases.backward == pytest.approx(0.25)
    shares = (phases.data_wait, phases.forward, phases.backward, phases.optimizer, phases.communication, phases.outside)
    assert sum(shares) == pytest.approx(1.0)


def test_without_a_process_group_communication_is_not_measured():
    records_read = records(watches=())
    assert {(record.communication, record.communication_apart, record.collectives) for record in records_read} == {
        (None, None, None)
    }
    assert steps_view(1, records_read, 5).phases.communication is None


def copying_step(start):
    """A copy beside the phases, one within the forward, then the rest of a step of 20 ms."""
    return train(
        (at.NEXT, 1, 2, 5),
        (at.TRANSFER, 2, 5, 1000),
        (at.TRANSFER, 6, 8, 500),
        (at.FORWARD, 5, 10, 4),
        (at.BACKWARD, 10, 14, 1),
        (at.OPTIMIZER_ENDS, 14, 18, 99),
        start=start,
    )


def test_copies_within_phases_are_told_from_those_beside_them():
    maker = StepMaker()
    events = [event for number in range(5) for event in copying_step(1000 + 20 * number)]
    records_read = maker.read(events, ("transfer",))
    assert records_read
    for record in records_read:
        assert record.transfer == pytest.approx(0.005)
        assert record.transfer_apart == pytest.approx(0.003)
        assert record.transfer_bytes == 1500
    phases = steps_view(1, records_read, 5).phases
    assert phases.transfer == pytest.approx(0.15)
    shares = (phases.data_wait, phases.forward, phases.backward, phases.optimizer, phases.transfer, phases.outside)
    assert sum(shares) == pytest.approx(1.0)


def test_many_collectives_between_two_phases_need_no_room():
    maker = StepMaker()
    maker.read([(at.COLLECTIVE, number, number + 1, 1, -1) for number in range(1, 100_000)], ("collective",))
    assert len(maker._steps.recent) < 10_000


def two_optimizers(start):
    return train(
        (at.NEXT, 0, 1, 7),
        (at.FORWARD, 2, 3, 4),
        (at.BACKWARD, 3, 4, 1),
        (at.OPTIMIZER_ENDS, 4, 5, 100),
        (at.FORWARD, 6, 7, 4),
        (at.BACKWARD, 7, 8, 1),
        (at.OPTIMIZER_ENDS, 8, 9, 200),
        start=start,
    )


@pytest.mark.parametrize("seen_from", range(7))
def test_a_round_of_two_optimizers_ends_with_the_second_wherever_the_hook_came_in(seen_from):
    events = [event for number in range(8) for event in two_optimizers(1000 + 10 * number)]
    made = StepMaker().read(events[seen_from:])
    assert len(made) >= 5
    for record in made[2:]:
        assert round(record.end * 1000) % 10 == 9
        assert record.seconds == pytest.approx(0.010)
        assert (record.forwards, record.backwards) == (2, 2)
