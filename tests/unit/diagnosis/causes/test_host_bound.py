"""host-bound: code of the host that nothing else explains, and programs without steps."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired, level, shown
from snapshot_builder import (
    RANK,
    WORKER,
    line,
    of_thread,
    on_gpu,
    snapshot,
    steps,
    with_fields,
)

from aitop.diagnosis.causes import host as host_bound
from aitop.diagnosis.causes import (
    input_bound,
    python_overhead,
)
from aitop.model.ledger import ACTIVITIES, Activity
from aitop.model.snapshot import Phases

OUTSIDE = Phases(data_wait=0.0, forward=0.0, backward=0.0, optimizer=0.0, outside=1.0)


def on_one_line(activity, kind):
    """The first verdict on a program of this kind that does this on line 12 nearly all of the time."""
    seen = snapshot(phases=OUTSIDE, lines=[line("work", 0.95, activity=activity, number=12)], kind=kind)
    return shown(seen)[0]


# What a server does while no request is there.
RESTS = ("sleep", "wait", "wait-child", "wait-lock", "wait-network", "wait-queue")


@pytest.mark.parametrize("activity", sorted(set(ACTIVITIES) - {"wait-core"}))
@pytest.mark.parametrize("kind", ["training", "unknown"])
def test_a_program_that_stands_on_one_line_gets_an_answer_with_that_line(activity: Activity, kind):
    assert on_one_line(activity, kind).where[0].line == 12


@pytest.mark.parametrize("activity", sorted(set(ACTIVITIES) - {*RESTS, "wait-core"}))
def test_a_server_that_is_busy_on_one_line_gets_an_answer_with_that_line(activity: Activity):
    assert on_one_line(activity, "inference").where[0].line == 12


@pytest.mark.parametrize("activity", RESTS)
def test_a_server_that_waits_on_one_line_waits_for_requests(activity: Activity):
    verdict = on_one_line(activity, "inference")
    assert "waiting for requests" in verdict.title and verdict.where == ()


@pytest.mark.parametrize(
    ("activity", "work"), [("native", None), ("native", "tensor"), ("wait-lock", "tensor"), ("sleep", "tensor")]
)
def test_computing_in_a_program_without_steps_is_said_and_not_called_a_loss(activity, work):
    """A library for arrays that waits below the user's line waits for its own threads."""
    seen = snapshot(phases=OUTSIDE, lines=[line("fit", 1.0, activity=activity, work=work, number=12)], kind="unknown")
    [verdict] = shown(seen)
    assert (verdict.id, verdict.severity, verdict.speedup) == ("compute-bound", "info", None)
    assert verdict.where[0].line == 12
    assert verdict.confidence <= 0.5 and "no phase of a training step" in verdict.evidence[-1]


@pytest.mark.parametrize("activity", ["python", "wait-lock", "wait-queue", "wait", "wait-device", "compile"])
def test_nothing_shows_that_python_or_a_wait_for_ones_own_could_be_left_out(activity):
    seen = snapshot(phases=OUTSIDE, lines=[line("run", 1.0, activity=activity, number=12)], kind="unknown")
    [verdict] = shown(seen)
    assert (verdict.id, verdict.severity, verdict.speedup) == ("host-bound", "info", None)
    assert verdict.where[0].line == 12 and not any(fix.speedup for fix in verdict.fixes)


@pytest.mark.parametrize("kind", ["training", "inference"])
def test_whoever_takes_from_a_full_queue_is_named_before_the_line_that_waits(kind):
    put = line("main", 0.9, activity="wait-room", number=98, position="after")
    model = line("Net.forward", 0.1, phase="forward", activity="native", number=70)
    takes = line("suppress", 0.8, pid=WORKER, number=41)
    waits = line("suppress", 0.2, pid=WORKER, number=51, activity="wait-queue")
    phases = Phases(data_wait=0.0, forward=0.1, backward=0.0, optimizer=0.0, outside=0.9)
    seen = snapshot(phases=phases, lines=[put, model, takes, waits], workers=1, kind=kind)
    processes = tuple(msgspec.structs.replace(each, role="rank" if each.pid == RANK else "other")
                      for each in seen.stacks.processes)  # fmt: skip
    lines = tuple(
        msgspec.structs.replace(each, role="rank" if each.pid == RANK else "other") for each in seen.stacks.lines
    )
    seen = with_fields(seen, stacks=msgspec.structs.replace(seen.stacks, processes=processes, lines=lines))
    verdict = shown(seen)[0]
    assert (verdict.id, verdict.severity in ("warning", "critical")) == ("host-bound", True)
    assert [where.line for where in verdict.where] == [41, 98]
    assert "1 process cannot keep up" in verdict.title and "suppress" in verdict.fixes[0].text


def arrays(busy):
    """A program of which no step is seen: it computes arrays on the host, and has a GPU."""
    made = line("augmented", 0.95, activity="native", work="array", number=23, file="/x/feed.py")
    return on_gpu(phases=Phases(outside=1.0), kind="unknown", lines=[made], facts=None, busy=busy)


@pytest.mark.parametrize(("busy", "severity"), [(0.05, "warning"), (0.0, None), (0.9, None)])
def test_arrays_of_the_host_are_in_the_way_where_a_device_waits_for_them(busy, severity):
    finding = host_bound.judge(arrays(busy))
    assert (fired(finding).severity if level(finding) >= host_bound.judge.enter else None) == severity


def test_a_model_by_hand_in_small_operations_is_host_code():
    """Who holds the lock for a fifth of a line's time calls small operations there: that could be less."""
    lines = [
        line("net", 0.32, number=12, position="within", activity="native"),
        line("net", 0.08, number=12, position="within"),
        line("main", 0.55, phase="backward", activity="native", number=5),
    ]
    [verdict] = shown(snapshot(steps(seconds=0.1, backward=0.055), lines=lines))
    assert (verdict.id, verdict.where[0].line) == ("host-bound", 12) and verdict.speedup > 1.4


@pytest.mark.parametrize(("activity", "severity"), [("native", "info"), ("python", "critical")])
def test_threads_that_compute_for_a_program_without_steps_are_not_its_loss(activity, severity):
    waits = line("main", 0.8, number=60, activity="wait-queue")
    adds = line("main", 0.2, number=61, activity="native")
    seen = snapshot(phases=OUTSIDE, lines=[waits, adds, of_thread("crunch", 0.9, activity=activity)], kind="unknown")
    verdict = fired(input_bound.judge(seen))
    assert (verdict.where[0].function, verdict.severity) == ("crunch", severity)


def test_a_wait_in_a_program_without_steps_is_a_loss():
    seen = snapshot(phases=OUTSIDE, lines=[line("poll", 1.0, activity="sleep", number=12)], kind="unknown")
    verdict = fired(host_bound.judge(seen))
    assert verdict.severity == "warning" and verdict.speedup > 1.0 and "sleeps" in verdict.title


def test_a_gradient_that_is_a_loop_in_python_is_told_with_its_line():
    own = line("backward", 0.4, phase="backward", number=36, text="out[rows, index[:, t]] += g[:, t]")
    calls = line("main", 0.5, phase="backward", activity="native", work="tensor", number=86, text="loss.backward()")
    seen = snapshot(steps(seconds=0.05, forward=0.005, backward=0.045), lines=[own, calls])
    verdict = shown(seen)[0]
    assert (verdict.id, verdict.where[0].line) == ("python-overhead", 36)
    assert verdict.title == "40 % of each step is Python in gradients of its own"
    assert shown(snapshot(steps(seconds=0.05, forward=0.005, backward=0.045), lines=[calls]))[0].id == "compute-bound"


def test_requests_that_only_stand_in_line_get_an_answer_with_their_line():
    """Each waits for a lock whose holder waits as well."""
    waits = line(
        "do_GET", 0.95, number=57, activity="wait-lock", handler="thread", position="before", text="with LOCK:"
    )
    verdict = shown(snapshot(lines=[waits], kind="inference"))[0]
    assert (verdict.id, verdict.severity, verdict.where[0].line) == ("host-bound", "info", 57)


def test_host_time_without_a_cause_is_named_with_its_next_lines():
    lines = [
        line("spread", 0.5, number=12, position="after", activity="native"),
        line("note", 0.2, number=30, position="after", activity="sleep"),
        line("main", 0.3, phase="forward", activity="native", number=5),
    ]
    finding = host_bound.judge(snapshot(steps(seconds=0.1, forward=0.02, optimizer=0.01), lines=lines))
    verdict = fired(finding)
    assert [place.line for place in verdict.where] == [12, 30] and verdict.severity == "critical"
    assert "then train.py:30" in verdict.evidence[1]
    assert {entry.line for entry in finding.claims} == {12, 30}


def test_anomaly_detection_is_named_with_the_lines_whose_operations_it_writes_down():
    """Reading source lines waits for the disk, too, and the operations themselves are no loss."""
    lines = [
        line("forward", 0.4, phase="forward", activity="native", number=22, work="anomaly"),
        line("forward", 0.1, phase="forward", activity="python", number=22, work="anomaly"),
        line("forward", 0.2, phase="forward", activity="native", number=22, work="tensor"),
        line("main", 0.3, phase="backward", activity="native", number=40, work="tensor"),
    ]
    seen = snapshot(steps(seconds=0.1, forward=0.07, backward=0.03), lines=lines)
    finding = python_overhead.judge(seen)
    verdict = fired(finding)
    assert (verdict.where[0].line, verdict.severity) == (22, "critical")
    assert level(finding) == pytest.approx(0.5, abs=0.01)
    assert verdict.speedup == pytest.approx(2.0, abs=0.05)
    assert verdict.speedup_range[1] == pytest.approx(5.0, abs=0.1), "it may also take most of the backward"
    assert "set_detect_anomaly" in verdict.fixes[0].text
