"""A wait for data that was only how the run began is no warning; one that comes and goes is."""

import msgspec
import pytest
from snapshot_builder import WORKER, constant, host, line, snapshot, step

from aitop.diagnosis.causes import input_bound as input_bound
from aitop.diagnosis.causes.transient import FEW_SECONDS, FIRST_TIME, PASSED, STARVED, why_transient
from aitop.diagnosis.rule import Finding
from aitop.model.snapshot import Phases, Series

WORKERS = [line("__getitem__", 0.9, pid=pid) for pid in (WORKER, WORKER + 1)]
LOADS = line("__getitem__", 0.4, phase="data_wait")


def windows(*shares):
    """The share beside the steps of each window of stacks, two seconds apart."""
    return {"beside": Series(times=tuple(980.0 + 2 * i for i in range(len(shares))), values=shares)}


def without_hook(*shares, wait=0.4, **fields):
    phases = Phases(data_wait=wait, forward=1.0 - wait)
    fields.setdefault("lines", [msgspec.structs.replace(LOADS, share=wait)])
    return snapshot(phases=phases, series=windows(*shares), **fields)


def judged(seen):
    finding = input_bound.judge(seen)
    assert isinstance(finding, Finding)
    return finding.verdict


def past(seen, share, *, in_loader):
    return why_transient(seen, share, in_loader=in_loader, by_others=False) == PASSED


def test_a_wait_that_ended_and_did_not_come_back_is_told_as_past():
    verdict = judged(without_hook(0.8, 0.7, 0.8, 0.05, 0.03))
    assert verdict.severity == "info"
    assert PASSED in verdict.evidence


def test_a_wait_that_came_back_after_a_rest_is_a_warning():
    assert judged(without_hook(0.8, 0.02, 0.03, 0.8, 0.9, 0.02, 0.03)).severity == "critical"


def test_a_steady_wait_is_a_warning():
    assert judged(without_hook(0.4, 0.5, 0.4, 0.45)).severity == "critical"


@pytest.mark.parametrize("shares", [(0.4, 0.5), (0.4, 0.5, 0.3), (0.6, 0.5, 0.5, 0.05)])
def test_a_wait_seen_in_few_windows_is_too_little_to_tell_it_from_a_start(shares):
    verdict = judged(without_hook(*shares))
    assert verdict.severity == "info"
    assert FIRST_TIME in verdict.evidence


def test_waiting_for_loader_workers_is_told_at_once():
    seen = without_hook(0.4, 0.5, workers=2, host=host(2, worker_cpu=1.0), lines=[LOADS, *WORKERS])
    assert judged(seen).severity != "info"


@pytest.mark.parametrize(("late", "expected"), [(0.06, False), (0.0, True)])
def test_measured_steps_tell_the_same(late, expected):
    records = [step(i, 0.1, forward=0.03, backward=0.01, data_wait=0.06) for i in range(40)]
    records += [step(i, 0.1, forward=0.09, backward=0.01, data_wait=late) for i in range(40, 80)]
    assert (past(snapshot(records), 0.3, in_loader=True)) is expected


def test_nothing_is_said_to_be_over_where_no_window_was_kept():
    seen = snapshot(phases=Phases(data_wait=0.5, forward=0.5), lines=[LOADS])
    assert why_transient(seen, 0.5, in_loader=False, by_others=False) is None


def test_what_else_is_beside_the_phases_does_not_keep_a_loaders_wait_alive():
    records = [step(i, 0.1, forward=0.05, backward=0.02, data_wait=0.02) for i in range(20)]
    records += [step(i, 0.1, forward=0.07, backward=0.02) for i in range(20, 80)]
    assert past(snapshot(records), 0.05, in_loader=True)
    assert not past(snapshot(records), 0.05, in_loader=False)


def test_a_sample_or_two_in_a_window_do_not_keep_a_wait_alive():
    verdict = judged(without_hook(0.5, 0.08, 0.05, 0.1, wait=0.12))
    assert verdict.severity == "info"
    assert judged(without_hook(0.2, 0.08, 0.15, 0.1, wait=0.12)).severity == "warning"


def test_a_wait_seen_for_a_second_is_information():
    brief = [step(i, 0.05, data_wait=0.03, forward=0.02) for i in range(20)]
    judged_soon = judged(snapshot(brief, lines=WORKERS, workers=2, host=host(2, worker_cpu=1.0)))
    assert judged_soon.severity == "info" and FEW_SECONDS in judged_soon.evidence
    longer = [step(i, 0.05, data_wait=0.03, forward=0.02) for i in range(80)]
    assert judged(snapshot(longer, lines=WORKERS, workers=2, host=host(2, worker_cpu=1.0))).severity != "info"


@pytest.mark.parametrize(
    ("share", "delay", "severity"), [(0.2, 0.4, "info"), (0.2, 0.1, "warning"), (0.6, 0.4, "warning")]
)
def test_workers_that_others_starve_may_keep_up_when_left_alone(share, delay, severity):
    """A core and a half of two are used by others."""
    records = [step(i, 0.1, data_wait=0.1 * share, forward=0.1 - 0.1 * share, queue_ready=0) for i in range(40)]
    seen = snapshot(
        records,
        lines=[LOADS],
        workers=1,
        host=host(1, worker_cpu=0.2, main_cpu=0.3, busy=(1.0, 1.0)),
        series={"run_delay": constant(delay), "cores_wanted": constant(1.5)},
    )
    verdict = judged(seen)
    assert verdict.severity == severity
    assert (STARVED in verdict.evidence) == (severity == "info")
