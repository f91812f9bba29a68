"""python-overhead: Python around small operations."""

from __future__ import annotations

import pytest
from judgements import fired, level
from snapshot_builder import (
    facts,
    line,
    snapshot,
    steps,
)

from aitop.diagnosis.causes import host as host_bound
from aitop.diagnosis.causes import (
    python_overhead,
)
from aitop.model.snapshot import Phases

TINY = (
    line("forward", 0.1, phase="forward", number=22),
    line("forward", 0.3, phase="forward", activity="native", number=22),
    line("main", 0.5, phase="backward", activity="native", number=40),
    line("main", 0.1, activity="native", number=41),
)


def test_a_loop_of_tiny_operations():
    seen = snapshot(steps(seconds=0.1, forward=0.04, backward=0.05), lines=TINY, facts=facts(ops=4000))
    verdict = fired(python_overhead.judge(seen))
    assert verdict.where[0].line == 22
    # A quarter of the samples in forward hold the lock, and torch takes twice to three times as long around it.
    assert 0.3 < verdict.share < 0.9, verdict.share
    assert "around tiny operations" in verdict.title and any(
        "may be larger" in sentence for sentence in verdict.evidence
    )


def test_a_few_large_operations_beside_a_loop_do_not_hide_that_its_are_tiny():
    """3,000 operations in 44 ms are 15 µs each, but those of the loop are 5.5 µs."""
    lines = (
        line("pool", 0.03, phase="forward", number=22),
        line("pool", 0.135, phase="forward", activity="native", number=22),
        line("layers", 0.275, phase="forward", activity="native", number=30),
        line("main", 0.54, phase="backward", activity="native", number=40),
    )
    records = steps(seconds=0.1, forward=0.044, backward=0.054)
    verdict = fired(python_overhead.judge(snapshot(records, lines=lines, facts=facts(ops=3000))))
    assert verdict.where[0].line == 22
    few = snapshot(records, lines=lines, facts=facts(ops=300))
    assert python_overhead.judge(few) is None, "these are not tiny"


def test_a_wait_between_forward_and_backward_is_no_model_written_by_hand():
    """A reward that a child computes comes between them, beside a model of small operations."""
    lines = [
        line("generate", 0.2, phase="forward", number=31),
        line("generate", 0.05, phase="forward", activity="native", number=31),
        line("reward", 0.5, activity="wait-child", number=37, position="within"),
        line("main", 0.25, phase="backward", activity="native", number=46),
    ]
    seen = snapshot(phases=Phases(forward=0.25, backward=0.25, outside=0.5), lines=lines)
    finding = python_overhead.judge(seen)
    assert finding.claims and not any(entry.activity == "wait-child" for entry in finding.claims)
    assert fired(host_bound.judge(seen)).where[0].line == 37


def test_of_operations_that_are_not_tiny_only_what_holds_the_lock_is_surely_gained():
    """10 % of the step hold the lock: of 4,000 operations all the calls may go, of 40 at most that."""
    records = steps(seconds=0.1, forward=0.04, backward=0.05)
    tiny, few = (
        fired(python_overhead.judge(snapshot(records, lines=TINY, facts=facts(ops=ops)))) for ops in (4000, 40)
    )
    assert tiny.speedup_range[0] > 1.5 and few.speedup_range[0] < 1.0 / (1.0 - 0.1)


def test_python_between_the_phases_goes_with_the_small_operations_that_it_calls():
    """One fix ends both: it is one cause, with the gain of all of it. A large operation beside it stays another."""
    parts = [("python", 0.28, 62), ("python", 0.02, 58), ("native", 0.08, 58), ("native", 0.2, 70)]
    lines = [line("note", share, activity=does, number=number, position="after") for does, share, number in parts]
    seen = snapshot(
        steps(seconds=0.1, forward=0.01, backward=0.02),
        lines=[*lines, line("main", 0.2, phase="backward", activity="native", number=40)],
    )
    verdict = python_overhead.judge(seen)
    assert level(verdict) == pytest.approx(0.7 * 0.38 / 0.58, abs=0.01)
    assert {(entry.line, entry.activity) for entry in verdict.claims} == {
        (62, "python"),
        (58, "python"),
        (58, "native"),
    }


def test_the_line_named_runs_python_though_a_native_loop_takes_longer():
    """Of an nn.GRU a small part holds the lock; the Python after it takes more in all, on a line with less time."""
    gru = [
        line("forward", share, phase="forward", activity=does, number=22)
        for does, share in (("python", 0.025), ("native", 0.275))
    ]
    own = line("distance", 0.25, number=31, position="after")
    seen = snapshot(steps(seconds=0.1, forward=0.03, backward=0.03), lines=[*gru, own, TINY[2]], facts=facts(ops=4000))
    verdict = fired(python_overhead.judge(seen))
    assert verdict.where[0].line == 31 and "between its phases" in verdict.title
