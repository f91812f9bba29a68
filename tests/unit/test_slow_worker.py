"""input-bound where one loader worker holds up the others."""

from __future__ import annotations

import pytest
from judgements import fired
from snapshot_builder import WORKER, host, line, snapshot, stacks, steps

from aitop.diagnosis.causes import input_bound as input_bound
from aitop.diagnosis.causes.producers import slow_worker
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


def test_workers_that_all_rest_have_no_slow_one():
    assert slow_worker(seen(0.2, 0.02, 0.02)) is None


def test_workers_just_started_are_not_told_apart():
    assert slow_worker(seen(0.95, 0.05, 0.05, readings=2)) is None


def test_one_worker_alone_is_not_slower():
    assert slow_worker(seen(0.95)) is None
