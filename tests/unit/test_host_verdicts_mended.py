"""What the verdicts around the host once got wrong on whole runs, each reduced to a snapshot."""

from __future__ import annotations

import pytest
from snapshot_builder import host, line, snapshot, step, steps

from aitop.diagnosis import between_steps, input_bound
from aitop.diagnosis.rule import Finding
from aitop.model.snapshot import Phases


def fired(judgement):
    assert isinstance(judgement, Finding), judgement
    return judgement.verdict


def level(judgement):
    return judgement.level if isinstance(judgement, Finding) else 0.0


# results sent away, below the model -------------------------------------------------------------------------------

MODEL = line("main", 0.2, phase="forward", activity="compute", number=80, text="scores = net(ids)")


def sending(text, number=83, function="tell"):
    above = (("main", number, text),)
    return line(function, 0.7, activity="io-network", number=70, text="urlopen(url, data=body)", via=above)


@pytest.mark.parametrize(
    "known", [{"records": steps(seconds=0.1, forward=0.02)}, {"phases": Phases(forward=0.2, outside=0.8)}]
)
def test_sending_results_is_no_input_of_an_inference_loop(known):
    seen = snapshot(lines=[sending("tell(url, data=told)"), MODEL], kind="inference", **known)
    assert level(input_bound.judge(seen)) < input_bound.RULE.band.leave
    assert fired(between_steps.host_io(seen)).where[0].line == 70


def test_fetching_the_next_input_below_the_model_feeds_it():
    seen = snapshot(
        steps(seconds=0.1, forward=0.02),
        lines=[sending("batch = fetch(url)", function="fetch"), MODEL],
        kind="inference",
    )
    assert fired(input_bound.judge(seen)).subtype == "storage"


# predictions ------------------------------------------------------------------------------------------------------


def respawning():
    records = [step(i, 0.1, data_wait=0.001, loader_start=0.07 if i % 5 == 0 else 0.0, cpu=0.05) for i in range(40)]
    return snapshot(records)


def test_the_gain_of_keeping_workers_is_not_sure():
    verdict = fired(input_bound.judge(respawning()))
    assert verdict.subtype == "respawn" and verdict.confidence <= 0.5
    assert any("the gain may be larger" in one for one in verdict.evidence)


def test_one_who_computes_batches_by_hand_is_surer_than_one_who_waits_for_them():
    loop = (("main", 80, "for x in batches():"), ("batches", 40, "yield load(path)"))
    model = line("main", 0.2, phase="forward", activity="compute")
    waits = line("load", 0.7, activity="io-file", number=31, via=loop)
    computes = line("load", 0.7, number=31, via=loop)
    slept = fired(input_bound.judge(snapshot(steps(forward=0.02, cpu=0.03), lines=[waits, model])))
    worked = fired(input_bound.judge(snapshot(steps(forward=0.02, cpu=0.1), lines=[computes, model])))
    assert (slept.subtype, worked.subtype) == ("storage", "transform")
    assert slept.confidence <= 0.5 < worked.confidence


# collating --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [(0.2, 0.2), (1.0, 1.0)])
def test_work_below_a_collator_stays_collate_however_many_cores_idle(busy):
    pieces = line("Letters.pieces", 0.4, phase="data_wait", via=(("LetterCollator.__call__", 44, "self.pieces(t)"),))
    seen = snapshot(steps(data_wait=0.04, forward=0.05, cpu=0.1), lines=[pieces], host=host(0, busy=busy))
    assert fired(input_bound.judge(seen)).subtype == "collate"
