"""The environment in which an agent acts, where it takes the time of a step."""

from __future__ import annotations

import pytest
from judgements import fired
from snapshot_builder import (
    WORKER,
    line,
    snapshot,
    stacks,
)

from aitop.diagnosis.causes import (
    input_bound,
)
from aitop.model.snapshot import Phases


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


def in_turns(*work, share=0.8, activity="wait-queue"):
    """A stepping thread that waits for processes, each of which steps its environment for a part of the time."""
    lines = [line("ask", share, phase="environment", activity=activity, number=30)]
    for index, works in enumerate(work):
        lines.append(line("serve", 1.0 - works, pid=WORKER + index, activity="wait-queue", number=5))
        lines.append(line("step", works, pid=WORKER + index, activity="sleep", number=6))
    seen = stacks(lines, workers=len(work))
    return fired(input_bound.judge(snapshot(phases=Phases(outside=share), stacks=seen))).fixes[0]


def test_environments_in_processes_that_work_in_turns_are_to_be_asked_at_once():
    fix = in_turns(0.18, 0.2, 0.19, 0.19)
    assert "before waiting for the first answer" in fix.text and fix.speedup == pytest.approx(2.5)
    for others in ((0.75, 0.01, 0.01), (0.7, 0.7, 0.7), (0.05, 0.05, 0.05)):
        assert "first answer" not in in_turns(*others).text, "one is long, all work at once, nearly none works"
    by_itself = in_turns(0.18, 0.2, 0.19, 0.19, activity="python")
    assert "first answer" not in by_itself.text, "the thread steps its environment itself, beside other processes"
