"""What runs between steps: saving, evaluation, and waits for files and services."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired
from snapshot_builder import (
    line,
    snapshot,
    step,
    steps,
)

from aitop.diagnosis.causes import between_steps
from aitop.model.snapshot import Phases, Series


def test_one_checkpoint_does_not_tell_how_often_it_comes():
    records = [step(0, 6.0, save=5.9), *steps(20)]
    saving = line("save_checkpoint", 0.7, phase="save", activity="native", work="save")
    verdict = fired(between_steps.checkpoint(snapshot(records, lines=[saving])))
    assert (verdict.severity, verdict.confidence <= 0.5) == ("info", True)
    assert verdict.evidence[0].startswith("once in 21 steps so far, 5.90 s")


def test_evaluations_that_are_rarer_than_the_window_are_known_from_the_minutes_before():
    records = [step(index, 0.1) for index in range(240)]
    records.append(step(240, 10.0, evaluation=10.0))
    minutes = [0.0] * 200
    minutes[60] = minutes[130] = minutes[199] = 10.0
    lines = [line("evaluate", 0.3, phase="evaluation", activity="native")]
    by_second = Series(times=tuple(range(801, 1001)), values=tuple(minutes))
    seen = snapshot(records, lines=lines, series={"step_evaluation": by_second})
    verdict = fired(between_steps.evaluation(seen))
    assert verdict.severity != "info" and verdict.share == pytest.approx(30 / 200)
    assert verdict.evidence[0] == "3 times in 200 s, 10 s each"


def test_files_that_a_function_uses_beside_its_steps_are_not_all_for_its_checkpoints():
    """A flat script, of which every line is in one function."""
    records = [step(index, 0.1, forward=0.04, save=0.3 if index == 20 else 0.0) for index in range(40)]
    lines = [
        line("<module>", 0.5, phase="forward", activity="native", work="tensor", number=20, by_window=(10, 10, 5, 10)),
        line("<module>", 0.35, activity="wait-disk", work="file", number=12, by_window=(9, 9, 4, 9)),
        line("<module>", 0.05, activity="wait-disk", work="file", number=31, by_window=(0, 0, 6, 0)),
        line("<module>", 0.07, phase="save", activity="native", work="save", number=30, by_window=(0, 0, 7, 0)),
    ]
    saving = fired(between_steps.checkpoint(snapshot(records, lines=lines)))
    assert {where.line for where in saving.where} == {30, 31}, "what comes with it belongs to it"
    alone = [msgspec.structs.replace(lines[0], function="train"), *lines[1:]]
    assert len(fired(between_steps.checkpoint(snapshot(records, lines=alone))).where) == 3


def test_evaluation_is_seen_only_in_training():
    records = [step(index, 1.0, evaluation=0.8) if index % 5 == 0 else step(index, 0.1) for index in range(40)]
    seen = snapshot(records, lines=[line("evaluate", 0.5, phase="evaluation", activity="native")])
    assert fired(between_steps.evaluation(seen)).where[0].function == "evaluate"
    assert between_steps.evaluation(snapshot(records, kind="inference")) is None
    assert between_steps.evaluation(snapshot(steps())) is None


def test_an_evaluation_of_which_hardly_anything_was_timed_is_told_by_its_samples():
    records = [step(0, 0.1, evaluation=0.009), *steps(seconds=0.1)]
    evaluates = line("score", 0.3, phase="evaluation", activity="native", by_window=(5, 6, 5, 6, 5, 6))
    verdict = fired(between_steps.evaluation(snapshot(records, lines=[evaluates])))
    assert not any("once" in sentence or "measured" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize(("activity", "severity"), [("wait-network", "critical"), ("native", "warning")])
def test_sampled_io_is_critical_only_where_the_kernel_says_that_it_waits(activity, severity):
    writing = line("log_metrics", 0.4, activity=activity, work="database")
    seen = snapshot(phases=Phases(forward=0.3, backward=0.3, outside=0.4), lines=[writing])
    assert fired(between_steps.host_io(seen)).severity == severity


def test_an_evaluation_is_named_by_the_line_that_calls_the_model():
    inside = line("net", 0.3, number=17, phase="evaluation", activity="native", via=[("score", 31, "net(part)")])
    train = line("net", 0.2, number=17, phase="forward", activity="native", via=[("fit", 39, "loss = net(x)")])
    records = steps(seconds=0.1, evaluation=0.03, forward=0.03)
    finding = between_steps.evaluation(snapshot(records, lines=[inside, train]))
    [first] = fired(finding).where
    assert (first.function, first.line, first.text) == ("score", 31, "net(part)")
    assert [entry.line for entry in finding.claims] == [17], "what it claims is what was sampled"
    [alone] = fired(between_steps.evaluation(snapshot(records, lines=[inside]))).where
    assert (alone.function, alone.line) == ("net", 17), "a function of its own"


def test_a_few_samples_of_printing_are_chance():
    def printing(share):
        prints = line("main", share, activity="native", work="log", text="print(step, loss)")
        return between_steps.host_io(snapshot(phases=Phases(forward=0.4, backward=0.5, outside=0.1), lines=[prints]))

    assert printing(0.03) is None and printing(0.06).level >= 0.05
