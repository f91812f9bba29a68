"""host-bound: there is always an answer, and the simulated environment of reinforcement learning has one of its own."""

from __future__ import annotations

import pytest
from judgements import fired
from snapshot_builder import line, snapshot, steps

from aitop.diagnosis.causes import host as host_bound
from aitop.diagnosis.causes import input_bound as input_bound
from aitop.diagnosis.judge import CONFIRM_TICKS, Judge
from aitop.model.ledger import ACTIVITIES, Activity
from aitop.model.snapshot import Phases

OUTSIDE = Phases(data_wait=0.0, forward=0.0, backward=0.0, optimizer=0.0, outside=1.0)


def shown(seen):
    """The verdicts on a Snapshot that stays as it is, the primary one first."""
    judge = Judge()
    return [judge.judge(seen) for _ in range(CONFIRM_TICKS)][-1].verdicts


@pytest.mark.parametrize("activity", sorted(set(ACTIVITIES) - {"wait-core"}))
@pytest.mark.parametrize("kind", ["training", "inference", "unknown"])
def test_a_program_that_stands_on_one_line_gets_an_answer_with_that_line(activity: Activity, kind):
    seen = snapshot(phases=OUTSIDE, lines=[line("work", 0.95, activity=activity, number=12)], kind=kind)
    verdicts = shown(seen)
    assert verdicts
    rests = kind == "inference" and activity.startswith(("wait", "sleep"))
    assert rests or verdicts[0].where[0].line == 12


def test_computing_in_a_program_without_steps_is_said_and_not_called_a_loss():
    seen = snapshot(phases=OUTSIDE, lines=[line("fit", 1.0, activity="native", number=12)], kind="unknown")
    verdict = fired(host_bound.judge(seen))
    assert (verdict.severity, verdict.speedup) == ("info", None)
    assert verdict.confidence <= 0.5 and "no phase of a training step" in verdict.evidence[-1]


def test_a_wait_in_a_program_without_steps_is_a_loss():
    seen = snapshot(phases=OUTSIDE, lines=[line("poll", 1.0, activity="sleep", number=12)], kind="unknown")
    verdict = fired(host_bound.judge(seen))
    assert verdict.severity == "warning" and verdict.speedup > 1.0 and "sleeps" in verdict.title


def test_what_nobody_explains_is_told_with_its_next_lines():
    lines = [
        line("spread", 0.5, number=12, position="after", activity="native"),
        line("note", 0.2, number=30, position="after", activity="sleep"),
        line("main", 0.3, phase="forward", activity="native", number=5),
    ]
    finding = host_bound.judge(snapshot(steps(seconds=0.1, forward=0.03), lines=lines))
    verdict = fired(finding)
    assert [place.line for place in verdict.where] == [12, 30] and verdict.severity == "critical"
    assert "then train.py:30" in verdict.evidence[1]
    assert {entry.line for entry in finding.claims} == {12, 30}


# --- environments ---------------------------------------------------------------------------------------------------


def acting(world, policy, learning):
    lines = [
        line("rollout", world, phase="environment", number=30),
        line("rollout", policy, phase="forward", activity="native", number=31),
        line("learn", learning, phase="backward", activity="native", number=60),
    ]
    return snapshot(phases=Phases(forward=policy, backward=learning, outside=world), lines=lines)


def test_an_environment_that_takes_most_of_the_time():
    verdict = fired(input_bound.judge(acting(0.6, 0.3, 0.1)))
    assert (verdict.id, verdict.subtype, verdict.where[0].line) == ("input-bound", "environment", 30)
    assert "the environment takes 60 %, model calls 30 %, backward and update 10 %" in verdict.evidence
    assert any("AsyncVectorEnv" in fix.text for fix in verdict.fixes)
    assert verdict.speedup == pytest.approx(2.5)
