"""input-bound: one slow worker, what a gain is measured against, and waits that come and go."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired
from snapshot_builder import WORKER, constant, host, line, snapshot, stacks, step, steps

from aitop.diagnosis.causes import input_bound as input_bound
from aitop.diagnosis.causes.input_bound import FIRST_TIME, PASSED, STARVED, why_transient
from aitop.diagnosis.causes.producers import slow_worker
from aitop.diagnosis.rule import Finding
from aitop.model.snapshot import Phases, Series

READINGS = 8


def workers_using(*cores, readings=READINGS):
    times = tuple(1000.0 - readings + second for second in range(1, readings + 1))
    return {
        f"worker{WORKER + index}.cpu": Series(times=times, values=(used,) * readings)
        for index, used in enumerate(cores)
    }


def seen(*cores, readings=READINGS):
    """A step that waits for more than half of its time, while two of three batches lie ready."""
    records = [
        record
        for _ in range(15)
        for record in (
            *steps(1, 0.1, data_wait=0.08, forward=0.01, backward=0.01, queue_ready=2),
            *steps(2, 0.03, data_wait=0.001, forward=0.015, backward=0.014, queue_ready=4),
        )
    ]
    slow = line("read_csv", 0.9, pid=WORKER, phase="data_wait", number=41, file="/x/data.py")
    return snapshot(
        records=records,
        phases=Phases(data_wait=0.51, forward=0.24, backward=0.25, optimizer=0.0, outside=0.0),
        host=host(workers=len(cores), worker_cpu=sum(cores) / len(cores)),
        lines=[slow],
        stacks=stacks([slow], workers=len(cores)),
        series=workers_using(*cores, readings=readings),
    )


def test_the_line_of_the_worker_that_all_wait_for_is_named():
    verdict = fired(input_bound.judge(seen(0.95, 0.06, 0.05)))
    assert (verdict.id, verdict.subtype) == ("input-bound", "transform")
    assert (verdict.where[0].file, verdict.where[0].line) == ("/x/data.py", 41)
    assert f"worker {WORKER} is at work 95 % of the time, the other 2 6 % at most" in " ".join(verdict.evidence)
    assert verdict.fixes[0].speedup == pytest.approx(1 / 0.49, abs=0.05)
    assert 1.4 < verdict.fixes[1].speedup < verdict.fixes[0].speedup


def test_workers_that_work_alike_have_no_slow_one():
    assert slow_worker(seen(0.9, 0.8, 0.85)) is None


def test_workers_just_started_are_not_told_apart():
    assert slow_worker(seen(0.95, 0.05, 0.05, readings=2)) is None


def test_what_starting_workers_computes_ends_with_it():
    records = [
        step(index, 0.1, data_wait=0.001, loader_start=0.5 if index % 5 == 0 else 0.0, cpu=0.09) for index in range(40)
    ]
    started = [msgspec.structs.replace(one, seconds=0.6, cpu=0.55) if one.loader_start else one for one in records]
    spawning = [line("main", 0.5, phase="data_wait", activity="spawn")]
    crowd = host(2, worker_cpu=0.1, main_cpu=0.9, busy=(1.0, 0.3))
    seen = snapshot(started, workers=2, lines=spawning, host=crowd)
    verdict = fired(input_bound.judge(seen))
    assert verdict.subtype == "respawn" and verdict.speedup == pytest.approx(2.0, rel=0.02)


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
