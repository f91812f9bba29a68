"""gil-contention: a thread that holds the interpreter's lock while another wants it."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired, level, shown
from snapshot_builder import (
    RANK,
    WORKER,
    constant,
    facts,
    line,
    of_thread,
    process,
    snapshot,
    stacks,
    steps,
    with_fields,
)

from aitop.diagnosis.causes import (
    gil,
    input_bound,
    optimizer,
)
from aitop.diagnosis.causes import host as host_bound
from aitop.engine.snapshot.steps import steps_view
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import Phases, ThreadShare
from aitop.model.verdict import Abstention


@pytest.mark.parametrize(
    ("places", "usable", "busy", "used", "others", "idle"),
    [
        (None, None, (1.0, 0.5), 0.5, 1.0, 0.5),
        (None, 2.0, (1.0, 0.5), 0.5, 1.0, 0.5),
        # A set of two cores that it fills itself, of eight that others use.
        ((0, 1), 2.0, (1.0,) * 8, 2.0, 0.0, 0.0),
        ((0, 1), 2.0, (1.0, 1.0, *(0.0,) * 6), 1.5, 0.5, 0.0),
        # A quota of two cores where six idle: nobody takes them away.
        (None, 2.0, (1.0, 1.0, *(0.0,) * 6), 1.0, 0.0, 6.0),
        ((0, 9), 2.0, (1.0, 1.0), 1.0, 1.0, 0.0),
    ],
)
def test_only_cores_that_the_run_may_use_count_as_taken_or_idle(places, usable, busy, used, others, idle):
    machine = MachineSample(cores=len(busy), core_busy=busy)
    seen = HostSample(time=1.0, processes=(process(cpu=used),), machine=machine, usable_cores=usable, places=places)
    assert (seen.cores_taken, seen.idle_cores) == (pytest.approx(others), pytest.approx(idle))


def computes(ran, waits="wait-gil"):
    """Lines of the main thread, which runs for `ran` of the time and waits for the interpreter's lock else."""
    parts = (("native", ran), (waits, 1.0 - ran))
    phases = (("forward", 0.4, 20), ("backward", 0.4, 21), ("optimizer", 0.2, 22))
    lines = (line("main", share, phase=phase, activity="native", number=number) for phase, share, number in phases)
    return tuple(msgspec.structs.replace(one, parts=parts) for one in lines)


def threaded(held, ran, records=True):
    """A run whose main thread gets on for `ran` of the time while `metrics` holds the lock for `held`."""
    phases = Phases(forward=0.4, backward=0.4, optimizer=0.2)
    found = stacks((*computes(ran), of_thread("publish", 1.0)), phases=phases)
    threads = (
        ThreadShare(pid=RANK, thread="MainThread", samples=100, active=1.0, gil=0.1),
        ThreadShare(pid=RANK, thread="metrics", samples=100, active=1.0, gil=held),
    )
    found = msgspec.structs.replace(found, threads=threads if held is not None else ())
    return snapshot(
        steps(seconds=0.1, forward=0.04, backward=0.04, optimizer=0.02) if records else None,
        phases=None if records else phases,
        stacks=found,
        series={"run_delay": constant(0.0)},
    )


@pytest.mark.parametrize("records", [True, False], ids=["hook", "stacks"])
def test_a_thread_that_holds_the_lock(records):
    verdict = fired(gil.judge(threaded(held=0.8, ran=0.3, records=records)))
    assert verdict.severity == "critical"
    assert verdict.share == pytest.approx(0.7, abs=0.01) and verdict.speedup == pytest.approx(3.3, rel=0.02)
    assert (verdict.where[0].line, "metrics" in verdict.title) == (50, True)


def test_an_update_that_waits_for_the_lock_is_not_warned_of_as_well():
    """Half of each step is the update, most of it a wait for the lock: no other update would end that."""
    seen = threaded(held=0.8, ran=0.2)
    records = steps_view(RANK, steps(seconds=0.001, forward=0.0002, backward=0.0003, optimizer=0.0005), 1000)
    waits = with_fields(seen, steps=records, facts=facts(parameters=100_000, parameter_tensors=6))
    assert level(optimizer.judge(waits)) > optimizer.judge.enter
    assert [verdict.id for verdict in shown(waits) if verdict.severity != "info"] == ["gil-contention"]


@pytest.mark.parametrize(("held", "ran", "share"), [(0.45, 0.2, 0.45), (0.2, 0.2, 0.2), (0.6, 0.9, 0.1)])
def test_the_smaller_of_holding_and_waiting_counts(held, ran, share):
    assert fired(gil.judge(threaded(held, ran))).share == pytest.approx(share, abs=0.01)


def test_waits_for_a_core_end_with_those_for_the_lock_as_far_as_cores_are_left():
    """Others use one of two cores: the main thread alone has one, beside a process for the other thread it has not."""
    host = HostSample(
        time=1000.0,
        processes=(process(cpu=1.0, wanting=2, wanted=1.8),),
        machine=MachineSample(cores=2, core_busy=(1.0, 1.0)),
        usable_cores=2.0,
    )
    series = {"run_delay": constant(0.1), "cores_wanted": constant(1.8)}
    verdict = fired(gil.judge(with_fields(threaded(held=0.8, ran=0.3), host=host, series=series)))
    rarely, apart = verdict.fixes
    assert verdict.share == pytest.approx(0.7, abs=0.01)
    assert (verdict.speedup, rarely.speedup) == (pytest.approx(5.0, rel=0.02), pytest.approx(5.0, rel=0.02))
    assert apart.speedup == pytest.approx(1 / 0.3, rel=0.02)


@pytest.mark.parametrize(("rests", "most"), [("wait-queue", 1 / 0.9), ("sleep", 1 / 0.3)])
def test_a_thread_that_makes_something_for_each_step_sets_the_pace_in_a_process_as_well(rests, most):
    seen = threaded(held=0.8, ran=0.3)
    lines = (*computes(0.3), of_thread("fill", 0.9), of_thread("fill", 0.1, activity=rests, number=51))
    verdict = fired(gil.judge(with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, lines=lines))))
    assert verdict.speedup == pytest.approx(1 / 0.3, rel=0.02)
    [apart] = [fix for fix in verdict.fixes if "process" in fix.text]
    assert apart.speedup == pytest.approx(most, rel=0.02)


def test_native_code_of_the_thread_is_not_where_it_holds_the_lock():
    seen = threaded(held=0.8, ran=0.3)
    lines = (*computes(0.3), of_thread("publish", 0.2), of_thread("pause", 0.6, activity="native", number=51))
    verdict = fired(gil.judge(with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, lines=lines))))
    assert [where.line for where in verdict.where] == [50]


def test_many_threads_that_hold_the_lock_alike_are_counted():
    seen = threaded(held=0.8, ran=0.3)
    names = [f"client-{number}" for number in range(8)]
    held = [ThreadShare(pid=RANK, thread=name, samples=100, active=1.0, gil=0.1) for name in names]
    lines = (*computes(0.3), *(of_thread("publish", 0.1, thread=name) for name in names))
    found = msgspec.structs.replace(seen.stacks, threads=(seen.stacks.threads[0], *held), lines=lines)
    verdict = fired(gil.judge(with_fields(seen, stacks=found)))
    assert verdict.title.endswith("held by 8 threads") and verdict.where[0].line == 50


@pytest.mark.parametrize(("held", "ran"), [(0.8, 0.97), (0.03, 0.4), (0.0, 0.2)])
def test_a_lock_that_nobody_waits_for_is_no_contention(held, ran):
    assert level(gil.judge(threaded(held, ran))) < gil.judge.leave


def test_a_main_thread_that_waits_for_data_does_not_want_the_lock():
    lines = [
        line("main", 0.6, activity="wait-queue"),
        line("main", 0.4, phase="forward", activity="native", number=20),
        of_thread("publish", 1.0),
    ]
    seen = threaded(held=0.8, ran=0.38)
    seen = with_fields(seen, steps=steps_view(RANK, steps(seconds=0.1, forward=0.04), 1000))
    waiting = with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, lines=tuple(lines)))
    assert level(gil.judge(waiting)) < gil.judge.leave < level(gil.judge(seen))


def test_waiting_for_another_lock_is_no_gil_contention():
    seen = threaded(held=0.8, ran=0.3)
    lines = (*computes(0.3, waits="wait-lock"), of_thread("publish", 1.0))
    seen = with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, lines=lines))
    assert level(gil.judge(seen)) < gil.judge.leave


def test_without_samples_of_the_gil_contention_is_not_judged():
    answer = gil.judge(threaded(held=None, ran=0.3))
    assert isinstance(answer, Abstention) and "GIL" in answer.reason


def test_a_lock_that_another_thread_keeps_is_no_wait_for_data():
    lines = [
        line("fit", 0.45, activity="wait-lock", position="before", number=39),
        line("fit", 0.55, phase="forward", activity="native", number=40),
        line("publish", 0.5, activity="wait-queue", number=35, thread="preview"),
        line("_panel", 0.5, activity="sleep", number=12, pid=WORKER),
    ]
    seen = snapshot(phases=Phases(forward=0.55, outside=0.45), lines=lines, workers=1)
    assert not level(input_bound.judge(seen))
    verdict = fired(host_bound.judge(seen))
    assert verdict.where[0].line == 39 and "let go sooner of the lock" in verdict.fixes[0].text
