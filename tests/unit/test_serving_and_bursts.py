"""Servers at leisure, workers started anew, and too little to say."""

from __future__ import annotations

import pytest
from judgements import fired, level
from snapshot_builder import WORKER, host, line, loaders, snapshot, step, steps

from aitop.diagnosis.causes import between_steps, computing, preprocessing
from aitop.diagnosis.causes import input_bound as input_bound
from aitop.model.snapshot import Phases

RUNS = line("main", 0.1, phase="forward", activity="native", number=20)


def inference(*lines, **fields):
    records = steps(60, seconds=0.05, kind="forward", forward=0.005, forwards=1, samples=8)
    return snapshot(records, lines=[*lines, RUNS], kind="inference", **fields)


# servers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activity", ["wait-network", "wait-queue", "wait-lock", "wait", "sleep"])
def test_a_server_that_waits_to_be_given_a_request_does_not_wait_for_data(activity):
    seen = inference(line("main", 0.9, activity=activity, number=19, position="before"))
    for judge in (input_bound.judge, between_steps.host_io, preprocessing.judge):
        assert level(judge(seen)) < 0.05


def test_a_server_at_leisure_is_told_that_nothing_holds_it_up():
    finding = computing.compute_bound(inference(line("main", 0.9, activity="wait-network", number=19)))
    assert finding.level >= 0.5 and fired(finding).severity == "info" and finding.verdict.confidence <= 0.5
    assert finding.verdict.title.startswith("90 % of the time is waiting for requests")
    asks = line("main", 0.9, activity="wait-network", work="network", number=19)
    assert computing.compute_bound(inference(asks)).level < 0.2, "who asks for data does not rest"


def test_inference_that_asks_a_service_for_its_input_waits_for_data():
    asks = line("main", 0.8, activity="wait-network", work="network", number=19, position="before")
    verdict = fired(input_bound.judge(inference(asks)))
    assert (verdict.subtype, verdict.where[0].line) == ("storage", 19)


@pytest.mark.parametrize(("position", "feeds"), [("before", True), ("after", False)])
def test_who_asks_a_service_in_training_feeds_the_model_only_before_it(position, feeds):
    asks = line("grab", 0.6, activity="wait-network", work="network", position=position)
    trains = [line("main", 0.2, phase=phase, activity="native", number=30) for phase in ("forward", "backward")]
    seen = snapshot(phases=Phases(forward=0.2, backward=0.2), lines=[asks, *trains])
    judge = input_bound.judge if feeds else between_steps.host_io
    assert fired(judge(seen)).where[0].line == 10
    assert feeds or level(input_bound.judge(seen)) == 0.0


# saving -----------------------------------------------------------------------------------------------------------


def test_opening_and_closing_what_is_saved_into_is_saving():
    dumps = line("keep", 0.2, phase="save", activity="native", work="save", number=12)
    opens = line("keep", 0.1, activity="wait-disk", work="file", number=11)
    other = line("note", 0.1, activity="wait-disk", work="file", number=40)
    seen = snapshot(phases=Phases(forward=0.6), lines=[dumps, opens, other])
    finding = between_steps.checkpoint(seen)
    assert fired(finding).share == pytest.approx(0.3)
    assert {entry.line for entry in finding.claims} == {11, 12}


# too little to say --------------------------------------------------------------------------------------------------


# starting workers anew ----------------------------------------------------------------------------------------------


def test_taking_ready_batches_does_not_hide_that_workers_are_started_anew():
    def one(index):
        begins = index % 25 == 0
        wait = {"loader_start": 0.01, "data_wait": 0.06, "queue_ready": 0} if begins else {"data_wait": 0.0025}
        return step(index, 0.1 if begins else 0.016, **{"queue_ready": 2, "cpu": 0.01, **wait})

    for persistent in (False, True):
        facts = loaders(2, persistent=persistent)
        seen = snapshot([one(index) for index in range(100)], workers=2, facts=facts, host=host(2, worker_cpu=0.1))
        # Workers that stay are asked for the next epoch's batches: that takes time, too, but starts none.
        assert (fired(input_bound.judge(seen)).subtype == "respawn") != persistent


def test_a_gain_that_hangs_on_what_is_hardly_left_of_a_step_has_a_wide_range():
    makes = line("__getitem__", 0.95, pid=WORKER, phase="data_wait")

    def width(wait):
        lines = [line("main", wait / 0.1, phase="data_wait", activity="wait-queue", number=40), makes]
        seen = snapshot(
            steps(60, data_wait=wait, forward=0.09 - wait, queue_ready=0),
            lines=lines,
            workers=1,
            facts=loaders(1),
            host=host(1, worker_cpu=1.0, busy=(0.6, 0.6)),
        )
        finding = input_bound.judge(seen)
        low, high = finding.verdict.speedup_range
        return high / low

    assert width(0.089) > 2 * width(0.05)
