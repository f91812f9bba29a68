"""The arithmetic of predictions, against cases worked out by hand."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_builder import RANK, host, line, snapshot, steps

from aitop.diagnosis.what_if import Loading, gain_range, together, without
from aitop.model.snapshot import Phases
from aitop.model.verdict import Fix, Verdict, Where


def test_amdahl():
    assert without(0.0) == 1.0
    assert without(0.5) == pytest.approx(2.0)
    assert without(1.0) == pytest.approx(100.0)


def test_saturated_sleeping_workers_scale_until_loading_is_hidden():
    # A step of 100 ms waits 80; two workers, so one batch takes one worker 200 ms and computing takes 20 ms.
    loading = Loading(step=0.1, wait=0.08, workers=2, cores_per_worker=0.0, free_cores=1.0)
    assert loading.load == pytest.approx(0.2)
    assert loading.speedup_with(4) == pytest.approx(2.0)
    assert loading.best_workers() == 12
    assert loading.speedup_with(12) == pytest.approx(5.0)


def test_computing_workers_are_capped_by_the_cores():
    loading = Loading(step=0.1, wait=0.08, workers=2, cores_per_worker=1.0, free_cores=0.1)
    assert loading.best_workers() == 2
    assert loading.speedup_with(2) == pytest.approx(1.0)


def test_loading_in_the_main_process_can_only_be_overlapped():
    loading = Loading(step=0.1, wait=0.05, workers=0, cores_per_worker=1.0, free_cores=1.0)
    assert loading.speedup_with(1) == pytest.approx(2.0)
    no_core = Loading(step=0.1, wait=0.05, workers=0, cores_per_worker=1.0, free_cores=0.0)
    assert no_core.speedup_with(1) == pytest.approx(1.0)
    slow = Loading(step=0.1, wait=0.09, workers=0, cores_per_worker=1.0, free_cores=1.0)
    assert slow.best_workers() == 1
    assert slow.speedup_with(1) == pytest.approx(1 / 0.9)


# the range of a gain ----------------------------------------------------------------------------------------------


def said(id_, share, *, speedup=2.0, severity="warning", at=1, **fields):
    where = (Where(pid=RANK, file="/x/train.py", line=at, function="f"),)
    return Verdict(
        id=id_, severity=severity, title="t", confidence=0.8, share=share, speedup=speedup, where=where, **fields
    )


def sampled(share, samples):
    """A Snapshot of so many samples, of which that share is a line of the host's, and the entries of that line."""
    lines = [
        line("log", share, position="after"),
        line("main", 1.0 - share, phase="forward", activity="native", number=12),
    ]
    seen = snapshot(phases=Phases(forward=1.0 - share, outside=share), lines=lines, main_samples=samples)
    return seen, [entry for entry in seen.ledgers[0].entries if entry.phase == "host"]


@settings(max_examples=100, deadline=None)
@given(st.floats(0.02, 0.98), st.integers(15, 5000))
def test_the_range_contains_the_gain_and_is_narrower_with_more_samples(share, samples):
    verdict = said("host-bound", share, speedup=without(share))
    few, many = (gain_range(verdict, claims, seen) for seen, claims in (sampled(share, samples), sampled(share, 9000)))
    assert 1.0 <= few[0] <= verdict.speedup <= few[1] <= 100.0
    # Figures are rounded to thousandths.
    assert few[0] <= many[0] + 0.002 and many[1] <= few[1] + 0.002


def test_few_samples_of_a_large_share_promise_little():
    verdict = said("host-bound", 0.75, speedup=4.0)
    ranges = [gain_range(verdict, claims, seen) for seen, claims in map(partial(sampled, 0.75), (20, 200, 2000))]
    widths = [high / low for low, high in ranges]
    assert widths == sorted(widths, reverse=True) and widths[0] > 1.4 * widths[-1]


def test_a_share_that_no_sample_divides_has_a_range_as_well():
    low, high = gain_range(said("gc-stall", 0.5), (), snapshot(steps()))
    assert low < 2.0 < high < 4.0


# several at once --------------------------------------------------------------------------------------------------


def test_the_next_limit_is_told():
    first, second = together([said("checkpoint-stall", 0.5), said("eval-stall", 0.25)], snapshot(steps()))
    assert first.evidence[-1] == "next limit: eval-stall, 50 % of the step that is left (both gone: 4.0×)"
    assert second.evidence == ()
    alone = said("comm-bound", 0.3, speedup=2.3)
    assert together([alone, said("eval-stall", 0.1)], snapshot(steps()))[0].evidence == (), "it gains more alone"


def test_what_slows_every_phase_alike_leaves_their_proportions():
    first, _ = together([said("precision", 0.5), said("eval-stall", 0.3)], snapshot(steps()))
    assert first.evidence[-1] == "next limit: eval-stall, 30 % of the step that is left (both gone: 2.9×)"


@pytest.mark.parametrize("id_", ["memory-bandwidth-bound", "underbatched"])
def test_how_busy_a_part_of_the_device_is_leaves_no_rest_of_a_step(id_):
    assert together([said(id_, 0.8), said("sync-stall", 0.2)], snapshot(steps()))[0].evidence == ()


def test_information_is_no_next_limit():
    told = together([said("eval-stall", 0.5), said("host-bound", 0.3, severity="info")], snapshot(steps()))
    assert told[0].evidence == ()


def test_a_shorter_step_gains_nothing_while_loading_cannot_keep_up():
    seen = snapshot(steps(data_wait=0.02, queue_ready=0), workers=2, host=host(2, worker_cpu=0.9))
    loading = said("input-bound", 0.2, subtype="workers")
    fixes = (Fix(text="one batched operation", speedup=2.0), Fix(text="torch.compile"))
    first, second = together([said("python-overhead", 0.5, fixes=fixes), loading], seen)
    assert (first.id, second.id, second.speedup) == ("input-bound", "python-overhead", 1.0)
    assert second.speedup_range[0] == 1.0 and [fix.speedup for fix in second.fixes] == [1.0, None]
    hidden = snapshot(steps(data_wait=0.02, queue_ready=2), workers=2, host=host(2, worker_cpu=0.9))
    assert together([said("python-overhead", 0.5), loading], hidden)[0].id == "python-overhead"
