"""recompile: code that is compiled or traced again and again."""

import pytest
from judgements import fired, unjudged
from msgspec.structs import replace
from snapshot_builder import RANK, facts, line, snapshot, steps

from aitop.diagnosis.causes import recompile
from aitop.model.snapshot import Phases, ProcessStacks, Series, Stacks

COMPILES = line("train", 0.6, phase="forward", activity="compile", number=44, text="loss = step(batch)")


def counted(*values):
    return Series(times=tuple(1000.0 - 3 * (len(values) - index) for index in range(len(values))), values=values)


def test_recompiling_in_steady_state():
    known = facts(
        recompiles=30,
        graph_breaks=2,
        recompile_reasons=("train.py:44 size mismatch at index 0", "train.py:9 an older one"),
    )
    seen = snapshot(
        steps(samples=16, forward=0.06),
        lines=[COMPILES],
        facts=known,
        series={"recompiles": counted(10.0, 16.0, 24.0, 30.0)},
    )
    verdict = fired(recompile.judge(seen))
    assert (verdict.severity, verdict.where[0].line) == ("critical", 44)
    assert verdict.evidence[1:] == (
        "20 recompilations in the last 9 s",
        "the newest: train.py:44 size mismatch at index 0",
        "2 graph breaks since the start",
    )
    assert any("mark_dynamic" in fix.text for fix in verdict.fixes)


def test_compiling_again_for_evaluation_and_a_last_batch_is_warming_up():
    seen = snapshot(
        steps(60), lines=[COMPILES], facts=facts(recompiles=2), series={"recompiles": counted(0.0, 1.0, 2.0, 2.0)}
    )
    assert "after warm-up" in unjudged(recompile.judge(seen))


def in_windows(*parts, other=100, kind="unknown"):
    """A line that compiles in these parts of windows of a hundred samples."""
    counts = tuple(round(part * other) for part in parts)
    share = sum(parts) / len(parts)
    compiles = line("main", share, activity="compile", number=44, by_window=counts)
    runs = line("main", 1.0 - share, activity="native", number=45)
    sampled = ProcessStacks(
        pid=RANK, role="rank", samples=100, phases=Phases(outside=1.0), by_window=(other,) * len(parts)
    )
    taken = Stacks(seconds=10.0, samples=100, processes=(sampled,), lines=(compiles, runs))
    return snapshot(phases=Phases(outside=1.0), lines=[compiles, runs], kind=kind, stacks=taken)


@pytest.mark.parametrize("kind", ["unknown", "training"])
def test_a_line_that_compiles_in_every_window_beside_other_work_compiles_again(kind):
    verdict = fired(recompile.judge(in_windows(0.7, 0.6, 0.8, 0.7, 0.6, kind=kind)))
    assert (verdict.severity, verdict.where[0].line) == ("warning", 44)
    assert verdict.speedup == pytest.approx(3.1, rel=0.05)
    assert not any("torch" in fix.text for fix in verdict.fixes)


def test_a_line_that_compiles_now_and_then_goes_on_for_as_long_as_it_usually_pauses():
    now_and_then = (0.5, 0.0, 0.6, 0.0, 0.0, 0.5, 0.0, 0.6, 0.0, 0.0)
    assert fired(recompile.judge(in_windows(*now_and_then))).where[0].line == 44
    assert "after warm-up" in unjudged(recompile.judge(in_windows(*now_and_then, 0.0, 0.0)))


@pytest.mark.parametrize("parts", [(0.7, 0.6, 0.8, 0.0, 0.0), (0.7, 0.7, 0.7, 0.7, 0.0, 0.0)])
def test_what_is_compiled_at_the_start_is_not_compiled_again(parts):
    assert "after warm-up" in unjudged(recompile.judge(in_windows(*parts)))


def test_compiling_that_takes_most_of_the_time_is_said_before_it_is_known_to_go_on():
    verdict = fired(recompile.judge(in_windows(1.0, 1.0, 1.0, 1.0, 0.3)))
    assert (verdict.severity, verdict.where[0].line) == ("info", 44)
    assert verdict.speedup is None and "whether that goes on" in verdict.title


def tracing(*parts, traced=0.1, other=100):
    """A line that compiles in all of every window, and traces the user's function in these parts of them."""
    found = in_windows(*(1.0 for _ in parts), other=other)
    whole = next(line for line in found.stacks.lines if line.activity == "compile")
    counts = tuple(round(part * other) for part in parts)
    rest = replace(whole, by_window=tuple(other - count for count in counts), share=1.0 - traced)
    anew = replace(whole, by_window=counts, share=traced, work="trace")
    return snapshot(
        phases=Phases(outside=1.0),
        lines=[rest, anew],
        kind="unknown",
        stacks=replace(found.stacks, lines=(rest, anew)),
    )


def test_a_function_that_is_traced_again_and_again_is_compiled_again_though_nothing_else_is_seen():
    verdict = fired(recompile.judge(tracing(0.02, 0.1, 0.3, 0.01, 0.2)))
    assert (verdict.id, verdict.where[0].line) == ("recompile", 44)


@pytest.mark.parametrize(
    "parts", [(1.0, 1.0, 0.5, 0.0, 0.0), (0.3, 0.1, 0.0, 0.0, 0.0), (0.2, 0.2, 0.2, 0.2, 0.0, 0.0)]
)
def test_a_function_that_is_traced_once_may_be_compiled_at_the_start(parts):
    verdict = fired(recompile.judge(tracing(*parts)))
    assert verdict.severity == "info" and "after warm-up" in verdict.title
