"""The arithmetic of predictions, against cases worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_builder import RANK, host, line, on_gpu, snapshot, steps

from aitop.diagnosis.rules import RULES
from aitop.diagnosis.what_if import Loading, estimated, together, waits_for_core, with_batch, without
from aitop.model.snapshot import Phases
from aitop.model.verdict import Fix, Verdict, Where

SCOPES = {rule.id: rule.scope for rule in RULES}


def test_amdahl():
    assert without(0.0).speedup == 1.0
    assert without(0.5).speedup == pytest.approx(2.0)
    assert without(1.0).speedup == pytest.approx(100.0)


def test_a_bound_above_all_of_the_time_still_leaves_a_range():
    low, high = estimated(0.9, 1.0, 1.2).speedup_range
    assert 1.0 < low <= high


def test_workers_scale_until_loading_is_hidden_or_the_cores_are_full():
    # A step waits for 80 % of its time; two workers, so one batch takes one worker two steps and computing a fifth.
    loading = Loading(wait=0.8, makers=2, cores_each=0.0, free_cores=1.0)
    assert loading.with_workers(4).speedup == pytest.approx(2.0)
    assert (loading.best_workers(), loading.with_workers(12).speedup) == (12, pytest.approx(5.0))
    computing = Loading(wait=0.8, makers=2, cores_each=1.0, free_cores=0.1)
    assert (computing.best_workers(), computing.with_workers(2).speedup) == (2, pytest.approx(1.0))


def test_loading_in_the_main_process_can_only_be_overlapped():
    assert Loading(wait=0.5, free_cores=1.0).with_workers(1).speedup == pytest.approx(2.0)
    assert Loading(wait=0.5, free_cores=0.0).with_workers(1).speedup == pytest.approx(1.0)
    slow = Loading(wait=0.9, free_cores=1.0)
    assert slow.best_workers() == 1
    assert slow.with_workers(1).speedup == pytest.approx(1 / 0.9)


def test_loading_takes_longer_than_a_device_waits_for_it():
    """Of a step 0.9 is loading, for 0.4 of which the device idles: with one worker a step lasts as long as loading."""
    loading = Loading(wait=0.4, free_cores=4.0, making=0.9)
    assert loading.with_workers(1).speedup == pytest.approx(1 / 0.9)
    assert loading.best_workers() == 2 and loading.with_workers(2).speedup == pytest.approx(1 / 0.6)


def test_threads_that_want_more_cores_than_there_are_share_them():
    assert waits_for_core(now=0.5, running=0.4, wanted=3.0, cores=2.0) == pytest.approx(0.2)
    assert waits_for_core(now=0.1, running=0.4, wanted=3.0, cores=2.0) == 0.1, "no more than now"
    assert waits_for_core(now=0.5, running=0.4, wanted=2.0, cores=2.0) == 0.0


def test_a_batch_shares_what_is_fixed():
    # Of a step of one sample 90 % is the same for any number: with 9 of them each takes a tenth and a tenth.
    assert with_batch(9, 1, 0.9, 0.1, surely=True).speedup == pytest.approx(5.0)
    sure, guess = (with_batch(9, 1, 0.9, 0.1, surely=surely).speedup_range for surely in (True, False))
    assert guess[0] < sure[0] < 5.0 < sure[1] < guess[1]


# the range of a gain ----------------------------------------------------------------------------------------------


def said(id_, share, *, speedup=None, severity="warning", at=1, **fields):
    where = (Where(pid=RANK, file="/x/train.py", line=at, function="f"),)
    gain = speedup or 1.0 / (1.0 - share)
    return Verdict(
        id=id_, severity=severity, title="t", confidence=0.8, share=share, speedup=gain, where=where, **fields
    )


def sampled(share, samples):
    """The entries of a line of the host's that has that share of so many samples."""
    lines = [
        line("log", share, position="after"),
        line("main", 1.0 - share, phase="forward", activity="native", number=12),
    ]
    seen = snapshot(phases=Phases(forward=1.0 - share, outside=share), lines=lines, main_samples=samples)
    return [entry for entry in seen.ledgers[0].entries if entry.phase == "host"]


@settings(max_examples=100, deadline=None)
@given(st.floats(0.02, 0.98), st.integers(15, 5000))
def test_the_range_contains_the_gain_and_is_narrower_with_more_samples(share, samples):
    few, many = (without(share, sampled(share, number)) for number in (samples, 9000))
    assert 0.999 <= few.speedup_range[0] <= few.speedup <= few.speedup_range[1] + 0.001 <= 100.1
    # Figures are rounded to thousandths.
    assert few.speedup_range[0] <= many.speedup_range[0] + 0.002
    assert many.speedup_range[1] <= few.speedup_range[1] + 0.002


def test_few_samples_of_a_large_share_promise_little():
    ranges = [without(0.75, sampled(0.75, samples)).speedup_range for samples in (20, 200, 2000)]
    widths = [high / low for low, high in ranges]
    assert widths == sorted(widths, reverse=True) and widths[0] > 1.4 * widths[-1]


def test_a_share_that_no_sample_divides_has_a_range_as_well():
    low, high = without(0.5).speedup_range
    assert low < 2.0 < high < 4.0


# several at once --------------------------------------------------------------------------------------------------


def test_the_next_limit_is_told():
    first, second = together([said("checkpoint-stall", 0.5), said("eval-stall", 0.25)], SCOPES, snapshot(steps()))
    assert first.evidence[-1] == "next limit: eval-stall, with 50 % of the time that then remains (without both: 4.0×)"
    assert second.evidence == ()
    slows_more = said("gil-contention", 0.3, speedup=2.3)
    (first, _) = together([slows_more, said("eval-stall", 0.1)], SCOPES, snapshot(steps()))
    assert first.evidence == ("next limit: eval-stall, with 23 % of the time that then remains (without both: 3.0×)",)


def test_what_costs_the_same_idle_time_of_a_device_is_not_saved_twice():
    seen = on_gpu(steps(), busy=0.55)
    (first, _) = together([said("sync-stall", 0.45), said("python-overhead", 0.45)], SCOPES, seen)
    assert first.evidence == ()
    (first, _) = together([said("sync-stall", 0.3), said("host-bound", 0.3)], SCOPES, seen)
    assert first.evidence == ("next limit: host-bound, with 21 % of the time that then remains (without both: 1.8×)",)
    (first, _) = together([said("sync-stall", 0.45), said("precision", 0.45)], SCOPES, seen)
    assert "without both: 3.3×" in first.evidence[0], "that the device computes for less long is another matter"


@pytest.mark.parametrize(
    ("first", "second", "limit"),
    [
        # What slows every phase alike leaves their proportions.
        (("precision", 0.5), ("eval-stall", 0.3),
         ("next limit: eval-stall, with 30 % of the time that then remains (without both: 2.9×)",)),
        # How busy a part of the device is leaves no rest of a step.
        (("memory-bandwidth-bound", 0.8), ("sync-stall", 0.2), ()),
        (("underbatched", 0.8), ("sync-stall", 0.2), ()),
    ],
)  # fmt: skip
def test_the_next_limit_is_a_part_of_what_is_left_of_the_step(first, second, limit):
    gains = together([said(*first), said(*second)], SCOPES, snapshot(steps()))
    assert gains[0].evidence == limit
    information = together([said(*first), said("host-bound", 0.3, severity="info")], SCOPES, snapshot(steps()))
    assert information[0].evidence == ()


def test_a_shorter_step_gains_nothing_while_loading_cannot_keep_up():
    seen = snapshot(steps(data_wait=0.02, queue_ready=0), workers=2, host=host(2, worker_cpu=0.9))
    loading = said("input-bound", 0.2, subtype="workers")
    fixes = (Fix(text="one batched operation", speedup=2.0), Fix(text="torch.compile"))
    first, second = together([said("python-overhead", 0.5, fixes=fixes), loading], SCOPES, seen)
    assert (first.id, second.id, second.speedup) == ("input-bound", "python-overhead", 1.0)
    assert second.speedup_range[0] == 1.0 and [fix.speedup for fix in second.fixes] == [1.0, None]
    hidden = snapshot(steps(data_wait=0.02, queue_ready=2), workers=2, host=host(2, worker_cpu=0.9))
    assert together([said("python-overhead", 0.5), loading], SCOPES, hidden)[0].id == "python-overhead"
