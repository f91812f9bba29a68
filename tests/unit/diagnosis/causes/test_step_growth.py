"""step-time-growth: seen in step times, seen in the share of a line, and left unsaid."""

import random

import msgspec
import pytest
from judgements import fired, level
from snapshot_builder import constant, line, snapshot, step, with_fields

from aitop.diagnosis.causes import step_growth
from aitop.diagnosis.causes.step_growth import rising_share
from aitop.model.serving import Serving
from aitop.model.snapshot import Phases
from aitop.model.steps import HookFacts
from aitop.model.verdict import Abstention


def slowing(per_step, count=400, noise=0.0, cpu=True, **fields):
    """Steps of 20 ms that get longer. `cpu`: seconds on a core, True for all that the step itself needs."""
    random_ = random.Random(3)
    records, end = [], 990.0
    for index in range(count):
        own = 0.02 + per_step * index
        seconds = own * (1 + noise * random_.random())
        end += seconds
        used = own if cpu is True else cpu
        stretch = seconds / 0.02 if cpu is not True else 1.0
        made = step(index, seconds, forward=0.005 * stretch, backward=0.01 * stretch, cpu=used, **fields)
        records.append(msgspec.structs.replace(made, end=end))
    return records


def test_growth_has_to_last():
    answer = step_growth.judge(snapshot(slowing(2e-5, count=200)))
    assert isinstance(answer, Abstention) and "whether it goes on" in answer.reason


@pytest.mark.parametrize("wait", [0.01, 0.1], ids=["short", "long"])
def test_a_wait_that_gets_longer_is_measured_by_the_rest_of_the_step(wait):
    grown = [wait * (1 + n / 600) for n in range(600)]
    records = [step(n, 0.02 + more, data_wait=more, forward=0.02, cpu=0.02) for n, more in enumerate(grown)]
    records = [msgspec.structs.replace(record, end=900.0 + 0.12 * record.index) for record in records]
    finding = step_growth.judge(snapshot(records))
    assert any("the time grows in: the wait for data" in sentence for sentence in fired(finding).evidence)


def test_a_rise_by_the_hooks_clock_is_sure_however_few_samples_its_line_has():
    records = slowing(2e-5, count=800)
    lines = [line("main", 0.6, phase="forward", activity="native", number=12)]
    lines += [line("main", 0.04, activity="native", number=number) for number in (14, 15)]
    verdict = fired(step_growth.judge(snapshot(records, lines=lines)))
    assert verdict.share == pytest.approx(0.4, abs=0.02)
    assert verdict.speedup_range[0] > 1.3, "not that of 4 and 4 samples"


def test_growth_of_an_update_with_denormal_numbers_is_left_to_the_optimizers_verdict():
    records = [
        msgspec.structs.replace(record, forward=0.004, backward=0.006, optimizer=record.seconds - 0.01)
        for record in slowing(4e-5, count=800)
    ]
    facts = HookFacts(way="attach", python="3.11", torch="2", denormals=0.1)
    assert "optimizer" in fired(step_growth.judge(snapshot(records))).evidence[1]
    assert step_growth.judge(snapshot(records, facts=facts)) is None


def slower_machine(forward=1.0):
    """Phases take more and more of a core, as where another guest of the host fills the caches. `forward`: by which
    part of what the others take longer the forward pass does.
    """
    times = [0.02 + 2e-5 * index for index in range(400)]
    records = []
    for index, rising in enumerate(times):
        parts = {"forward": 0.02 + forward * (rising - 0.02), "backward": rising, "optimizer": rising}
        parts = {name: 0.3 * seconds for name, seconds in parts.items()}
        own = 0.1 * rising + sum(parts.values())
        records.append(step(index, own, cpu=own, **parts))
    return [msgspec.structs.replace(record, end=900.0 + sum(times[: record.index])) for record in records]


@pytest.mark.parametrize(
    "records",
    [
        slowing(0.0, noise=0.6),
        slower_machine(),
        slower_machine(forward=0.2),
        slowing(-2e-5),
        slowing(2e-5, cpu=0.02),
        slowing(2e-5, cpu=None),
        slowing(2e-5, count=8),
        [step(index, 0.02 + (0.5 if index % 50 == 0 else 0.0), cpu=0.02) for index in range(400)],
        [step(index, 0.06 if index < 40 else 0.02, cpu=0.02) for index in range(400)],
    ],
    ids=[
        "noise",
        "the machine",
        "the machine unevenly",
        "faster",
        "others take the core",
        "all phases alike",
        "few",
        "bursts",
        "warming up",
    ],
)
def test_other_changes_are_no_growth(records):
    assert level(step_growth.judge(snapshot(records))) < step_growth.judge.leave


@pytest.mark.parametrize("since", [150, 200, 240, 300])
def test_a_change_from_one_level_to_another_is_no_growth(since):
    """The machine is shared from one moment on, or a queue that was full at the start has run empty."""
    for count, noise in ((400, 0.0), (400, 0.3)):
        random_ = random.Random(since)
        times = [(0.02 if n < since else 0.04) * (1 + noise * random_.random()) for n in range(count)]
        records = [step(n, seconds, forward=seconds, cpu=seconds) for n, seconds in enumerate(times)]
        assert level(step_growth.judge(snapshot(records))) < step_growth.judge.leave
        waits = [step(n, 0.02 + own, forward=0.02, data_wait=own, cpu=0.02) for n, own in enumerate(times)]
        waits = [msgspec.structs.replace(record, end=900.0 + 0.1 * record.index) for record in waits]
        assert level(step_growth.judge(snapshot(waits))) < step_growth.judge.leave


def test_a_wait_is_measured_by_the_clock_and_not_by_the_time_on_a_core():
    grown = [0.02 + 1e-4 * n for n in range(600)]
    records = [step(n, 0.02 + own, data_wait=own, forward=0.02, cpu=0.005) for n, own in enumerate(grown)]
    records = [msgspec.structs.replace(record, end=900.0 + 0.12 * record.index) for record in records]
    growth = step_growth.growth_of(records, device=False, calm=True)
    assert growth.first == pytest.approx(0.04, rel=0.2) and growth.last == pytest.approx(0.1, rel=0.1)


def test_longer_batches_take_longer():
    records = [step(index, 0.02 + 2e-5 * index, cpu=0.02 + 2e-5 * index, samples=32 + index) for index in range(400)]
    assert level(step_growth.judge(snapshot(records))) == 0.0


def test_more_calls_of_the_model_take_longer():
    """Episodes that get longer as the policy gets better: a forward pass each step of the environment."""
    records = [
        msgspec.structs.replace(record, forwards=20 + record.index // 8, samples=1)
        for record in slowing(5e-5, count=400)
    ]
    assert level(step_growth.judge(snapshot(records))) == 0.0


def sampled(*counts, beside=()):
    """Twelve seconds of stacks without the hook; `counts` of 40 samples a window stand on one line beside the model,
    and those `beside` it on another one of its function.
    """
    share, other = sum(counts) / (40 * len(counts)), sum(beside) / (40 * len(counts))
    grows = line("main", share, number=41, by_window=counts)
    model = line("main", 1.0 - share - other, phase="forward", activity="native", number=20)
    others = [line("main", other, number=40, by_window=beside)] if beside else []
    seen = snapshot(phases=Phases(forward=1.0 - share - other, outside=share + other), lines=[grows, *others, model])
    process = msgspec.structs.replace(seen.stacks.processes[0], by_window=(40,) * len(counts))
    return with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, seconds=12.0, processes=(process,)))


def test_a_line_that_waits_in_two_ways_is_counted_whole():
    grows = sampled(2, 6, 11, 16, 21, 26)
    (ledger,) = grows.ledgers
    heavy = next(entry for entry in ledger.entries if entry.line == 41)
    light = msgspec.structs.replace(heavy, activity="wait-lock", share=0.01, by_window=(1, 0, 0, 1, 0, 0))
    both = msgspec.structs.replace(ledger, entries=(*ledger.entries, light))
    assert fired(step_growth.judge(msgspec.structs.replace(grows, ledgers=(both,)))).where[0].line == 41


def test_lines_drift_apart_where_others_take_the_cores():
    assert fired(step_growth.judge(sampled(2, 6, 11, 16, 21, 26))).share == pytest.approx(82 / 240, abs=0.01)
    crowded = {"run_delay": constant(0.3)}
    for counts, grows in (((2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 9), False), ((2, 6, 11, 16, 21, 26), True)):
        calm = sampled(*counts)
        assert level(step_growth.judge(calm)) >= step_growth.judge.enter
        assert (level(step_growth.judge(with_fields(calm, series=crowded))) >= step_growth.judge.enter) is grows


def test_samples_that_move_from_line_to_line_of_a_function_are_no_growth():
    grows = (2, 6, 10, 14, 18, 22)
    assert level(step_growth.judge(sampled(*grows, beside=(24, 20, 16, 12, 8, 4)))) < step_growth.judge.leave
    assert fired(step_growth.judge(sampled(*grows, beside=(12, 11, 10, 9, 8, 7)))).where[0].line == 41


@pytest.mark.parametrize(
    "counts",
    [(12,) * 6, (18, 15, 12, 8, 5, 2), (2, 18, 3, 17, 2, 19), (2, 2, 3, 2, 3, 3)],
    ids=["steady", "falling", "up and down", "hardly"],
)
def test_other_shares_are_no_growth(counts):
    assert level(step_growth.judge(sampled(*counts))) < step_growth.judge.leave


def test_few_samples_show_no_trend():
    assert rising_share([1, 2, 3], [3, 3, 3]) is None, "fewer windows than parts"
    assert rising_share([0, 1, 0, 1, 1, 2], [4] * 6) is None
    assert rising_share([2, 5, 8, 12, 15, 18], [40] * 6) is not None


def test_growing_requests_of_a_server_are_no_trend():
    records = slowing(1e-4, count=400)
    assert fired(step_growth.judge(snapshot(records)))
    served = snapshot(records, kind="inference", serving=Serving(basis="hook"))
    assert isinstance(step_growth.judge(served), Abstention)
