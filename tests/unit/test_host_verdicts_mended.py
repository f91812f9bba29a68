"""What the verdicts around the host once got wrong on whole runs, each reduced to a snapshot."""

from __future__ import annotations

import pytest
from snapshot_builder import line, snapshot, steps

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
