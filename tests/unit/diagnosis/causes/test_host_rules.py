"""Verdicts around the host and its code: they fire, they do not, they say what is missing."""

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
    on_gpu,
    process,
    snapshot,
    stacks,
    step,
    steps,
    with_fields,
)

from aitop.diagnosis.causes import (
    between_steps,
    collector,
    computing,
    gil,
    input_bound,
    optimizer,
    oversubscription,
    python_overhead,
)
from aitop.diagnosis.causes import host as host_bound
from aitop.engine.snapshot.steps import steps_view
from aitop.model.host import HostSample, MachineSample
from aitop.model.ledger import ACTIVITIES, Activity
from aitop.model.serving import Serving
from aitop.model.snapshot import HotLine, Phases, Series, ThreadShare
from aitop.model.stacks import Frame
from aitop.model.verdict import Abstention, Setting

# gil-contention ---------------------------------------------------------------------------------------------------


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


def of_thread(function, share, *, thread="metrics", activity="python", number=50, text=None):
    return HotLine(
        pid=RANK,
        role="rank",
        file="/x/metrics.py",
        line=number,
        function=function,
        phase="outside",
        activity=activity,
        samples=round(share * 100),
        share=share,
        text=text,
        thread=thread,
    )


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
    told = gil.judge(threaded(held=None, ran=0.3))
    assert isinstance(told, Abstention) and "GIL" in told.reason


# cpu-oversubscription ---------------------------------------------------------------------------------------------


def crowded(
    wanting=16, wanted=8.0, cores=2, system=0.22, delay=0.5, busy=None, throttled=None, switches=4000.0, lines=()
):
    rank = process(
        cpu=1.0,
        wanting=wanting,
        wanted=wanted,
        waited=wanted - 1.0,
        voluntary_switches=switches / 2,
    )
    machine = MachineSample(cores=cores, core_busy=busy or (0.5,) * cores)
    return snapshot(
        steps(seconds=0.03, forward=0.01, backward=0.02, cpu=0.005),
        lines=lines,
        host=HostSample(time=1000.0, processes=(rank,), machine=machine, usable_cores=float(cores)),
        series={
            "run_delay": constant(delay),
            "cores_wanted": constant(wanted),
            **({"throttled": constant(throttled)} if throttled else {}),
        },
    )


def test_more_threads_than_cores():
    verdict = fired(oversubscription.judge(crowded()))
    assert verdict.share == pytest.approx(0.5) and verdict.severity == "critical"
    assert verdict.confidence <= 0.5, "what fewer threads gain is an estimate"
    assert "torch.set_num_threads(2)" in verdict.fixes[0].text
    assert verdict.title == "16 threads compete for 2 cores"


def test_waits_of_the_threads_that_compute_for_the_main_thread_count_too():
    parts = (("native", 0.7), ("wait-lock", 0.3))
    lines = [line("main", 1.0, phase="backward", activity="native", number=14, parts=parts)]
    verdict = fired(oversubscription.judge(crowded(delay=0.3, busy=(0.5, 0.5), lines=lines)))
    assert verdict.share == pytest.approx(0.3 + 0.3 * 2 / 3)
    assert any("20 % for the threads that compute with it" in said for said in verdict.evidence)


def test_threads_that_spin_instead_of_switching_are_a_crowd_as_well():
    verdict = fired(oversubscription.judge(crowded(system=0.0, switches=100.0, delay=0.9, busy=(1.0, 1.0))))
    assert verdict.share == pytest.approx(0.9 * 7 / 8)
    assert "torch.set_num_threads(1)" in verdict.fixes[0].text, "others have the second core"


@pytest.mark.parametrize("busy", [(0.9, 0.9), (1.0, 1.0)], ids=["quiet", "others run, too"])
def test_one_process_with_a_thread_too_many_is_its_own_fault(busy):
    seen = msgspec.structs.replace(
        crowded(wanting=3, wanted=2.6, delay=0.3, busy=busy),
        facts=facts(threads=3),
    )
    verdict = fired(oversubscription.judge(seen))
    assert verdict.severity == "warning"
    assert verdict.fixes[0].text.startswith("torch.set_num_threads(") and "instead of 3" in verdict.fixes[0].text
    assert any("torch is set to 3 threads" in told for told in verdict.evidence)


def test_a_thread_that_makes_batches_is_none_too_many():
    """Its work has to be done; what it takes from the step is the cost of the batches."""
    several = {"wanting": 3, "wanted": 2.6, "delay": 0.44, "busy": (0.6, 0.6)}
    steps_alone = line("train", 1.0, phase="backward", activity="native")
    parses = of_thread("parse", 0.8)
    assert fired(oversubscription.judge(crowded(**several, lines=[steps_alone]))).share > 0.2
    assert oversubscription.judge(crowded(**several, lines=[steps_alone, parses])) is None
    crowd = fired(oversubscription.judge(crowded(wanting=9, delay=0.5, lines=[steps_alone, parses])))
    assert crowd.share == pytest.approx(0.5 * (8.0 - 1.0 - 0.8) / (8.0 - 1.0), abs=1e-3), "the others are"


def loading(worker_cores, threads, count=2, rank_cores=1.0):
    """A rank with a thread that steps, two that hardly do anything, and loader workers."""
    rank = process(cpu=0.7, wanting=3, wanted=rank_cores)
    workers = [
        process(WORKER + number, "loader-worker", cpu=0.6, wanting=threads, wanted=worker_cores)
        for number in range(count)
    ]
    machine = MachineSample(cores=2, core_busy=(1.0, 1.0))
    return snapshot(
        steps(seconds=0.03, data_wait=0.02, forward=0.005, cpu=0.005),
        host=HostSample(time=1000.0, processes=(rank, *workers), machine=machine, usable_cores=2.0),
        series={"run_delay": constant(0.4), "cores_wanted": constant(rank_cores + count * worker_cores)},
    )


def test_workers_that_take_turns_with_the_step_are_none_too_many():
    assert oversubscription.judge(loading(worker_cores=1.0, threads=3)) is None, "the transform is too dear"
    assert "num_workers 6 → 2" in fired(oversubscription.judge(loading(0.7, 1, count=6))).fixes[1].text
    assert fired(oversubscription.judge(loading(0.7, 1, count=6))).fixes[1].setting == Setting(
        name="num_workers", to=2, current=6
    )
    assert "in each worker" in fired(oversubscription.judge(loading(2.4, threads=6))).fixes[1].text


def test_the_load_of_others_is_said_and_is_no_fault_of_the_run():
    verdict = fired(oversubscription.judge(crowded(wanting=2, wanted=1.8, delay=0.5, busy=(1.0, 1.0))))
    assert (verdict.severity, verdict.share, verdict.speedup) == ("info", None, None)
    assert "other programs use 1.0 of 2 cores" in verdict.title
    assert "stray" in verdict.fixes[0].text
    many = fired(oversubscription.judge(crowded(wanting=3, wanted=1.8, delay=0.5, busy=(1.0, 1.0))))
    assert many.severity == "info" and "torch.set_num_threads(1)" in many.fixes[0].text


def test_the_cpu_of_the_monitor_does_not_count_as_other_programs():
    seen = crowded(wanting=2, wanted=1.8, delay=0.5, busy=(1.0, 1.0))
    ours = msgspec.structs.replace(seen.cost, monitor_cpu=0.9)
    assert oversubscription.judge(msgspec.structs.replace(seen, cost=ours)) is None


def test_a_quota_that_runs_out():
    verdict = fired(oversubscription.judge(crowded(throttled=0.6, delay=0.4)))
    assert "quota" in verdict.title and verdict.share == pytest.approx(0.4)


# gc-stall ---------------------------------------------------------------------------------------------------------


def test_a_collector_that_starts_by_itself_has_none():
    verdict = fired(collector.judge(snapshot(steps(seconds=0.1, forward=0.08, gc=0.02))))
    assert verdict.where == () and "gc.freeze()" in verdict.fixes[0].text


def test_a_collection_that_another_thread_asks_for_has_its_line():
    asking = line("count", 0.1, activity="collect", number=43, thread="loop")
    verdict = fired(collector.judge(snapshot(steps(seconds=0.1, forward=0.08, gc=0.02), lines=[asking])))
    assert verdict.where[0].line == 43 and "leave out the collection" in verdict.fixes[0].text
    assert not any("starts by itself" in why for why in verdict.evidence)


def test_collections_that_another_cause_explains_are_none_of_its_own():
    seen = snapshot(steps(seconds=0.1, forward=0.08, gc=0.02))
    (ledger,) = seen.ledgers
    left = tuple(entry for entry in ledger.entries if entry.activity != "collect")
    compiled = msgspec.structs.replace(seen, ledgers=(msgspec.structs.replace(ledger, entries=left),))
    assert collector.judge(compiled) is None


def test_a_collector_that_starts_by_itself_is_not_seen_from_outside():
    told = collector.judge(snapshot(phases=Phases(forward=0.4, backward=0.5)))
    assert isinstance(told, Abstention) and "only the hook" in told.reason


# programs without steps, and code of the host ----------------------------------------------------------------------

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


def test_what_computes_and_what_passes_between_the_phases_are_no_more_than_all_of_it():
    """The phases of stacks may count as outside what the ledger knows to be the model."""
    lines = [
        line("decode", 0.56, phase="forward", activity="native", work="tensor", number=12),
        line("pick", 0.44, activity="python", number=13),
    ]
    seen = snapshot(phases=Phases(outside=0.56), lines=lines, kind="inference", serving=Serving(basis="stacks"))
    assert fired(computing.compute_bound(seen)).title == "56 % of the time computes, 44 % passes between the phases"


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


# --- environments ---------------------------------------------------------------------------------------------------


def acting(world, policy, learning):
    lines = [
        line("rollout", world, phase="environment", number=30),
        line("rollout", policy, phase="forward", activity="native", number=31),
        line("learn", learning, phase="backward", activity="native", number=60),
    ]
    return snapshot(phases=Phases(forward=policy, backward=learning, outside=world), lines=lines)


def test_an_environment_that_takes_most_of_the_time():
    verdict = fired(input_bound.judge(acting(0.6, 0.3, 0.1)))
    assert (verdict.id, verdict.subtype, verdict.where[0].line) == ("input-bound", "environment", 30)
    assert "the environment takes 60 %, model calls 30 %, backward and update 10 %" in verdict.evidence
    assert any("AsyncVectorEnv" in fix.text for fix in verdict.fixes)
    assert verdict.speedup == pytest.approx(2.5)


def in_turns(*work, share=0.8, activity="wait-queue"):
    """A stepping thread that waits for processes, each of which steps its environment for a part of the time."""
    lines = [line("ask", share, phase="environment", activity=activity, number=30)]
    for index, works in enumerate(work):
        lines.append(line("serve", 1.0 - works, pid=WORKER + index, activity="wait-queue", number=5))
        lines.append(line("step", works, pid=WORKER + index, activity="sleep", number=6))
    seen = stacks(lines, workers=len(work))
    return fired(input_bound.judge(snapshot(phases=Phases(outside=share), stacks=seen))).fixes[0]


def test_environments_in_processes_that_work_in_turns_are_to_be_asked_at_once():
    fix = in_turns(0.18, 0.2, 0.19, 0.19)
    assert "before waiting for the first answer" in fix.text and fix.speedup == pytest.approx(2.5)
    for others in ((0.75, 0.01, 0.01), (0.7, 0.7, 0.7), (0.05, 0.05, 0.05)):
        assert "first answer" not in in_turns(*others).text, "one is long, all work at once, nearly none works"
    by_itself = in_turns(0.18, 0.2, 0.19, 0.19, activity="python")
    assert "first answer" not in by_itself.text, "the thread steps its environment itself, beside other processes"


def adam(parameters, tensors, **fields):
    return facts(parameters=parameters, parameter_tensors=tensors, optimizers=("AdamW",), **fields)


def test_an_optimizer_with_many_parameters_may_take_long():
    many = adam(10_000_000, 40)
    assert level(optimizer.judge(snapshot(steps(seconds=0.1, optimizer=0.02), facts=many))) < 0.14
    fused = adam(10_000_000, 40, fused=True)
    assert level(optimizer.judge(snapshot(steps(seconds=0.1, optimizer=0.05), facts=fused))) == 0


def test_many_small_tensors_cost_something_even_when_batched():
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=adam(65_000, 1000))))
    assert verdict.speedup == pytest.approx(1.4, rel=0.07), "foreach takes 0.57 of the time of a loop, as measured"
    batched = fired(
        optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=adam(65_000, 1000, foreach=True)))
    )
    assert "fused=True" in batched.fixes[0].text


def test_where_an_optimizer_can_fuse_its_update_that_is_recommended():
    offers = adam(65_000, 1000, foreach=False, fused=False)
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=offers)))
    fused, foreach = verdict.fixes
    assert "fused=True" in fused.text and fused.speedup == pytest.approx(2.2, rel=0.05)
    assert "foreach=True" in foreach.text and foreach.speedup == pytest.approx(1.4, rel=0.05)


def test_an_algorithm_of_torchs_that_cannot_be_batched_is_no_loss():
    for cuda in (False, True):
        lbfgs = adam(40_000, 6, own_optimizer=False, cuda=cuda)
        assert level(optimizer.judge(snapshot(steps(seconds=0.005, optimizer=0.0015), facts=lbfgs))) == 0


def test_in_how_many_operations_an_optimizer_of_the_users_own_updates_is_not_claimed():
    own = adam(60_000, 400, own_optimizer=True)
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=own)))
    assert "one by one" not in verdict.title
    assert "foreach=True" not in verdict.fixes[0].text and "_foreach_" in verdict.fixes[0].text


def update_seen(function, python):
    """Samples of the optimizer's line that end in this function of torch, a part of them in Python."""
    below = ((Frame(function=function, file="/x/site-packages/torch/optim/adam.py", line=544), 0.9),)
    lines = [
        line("main", 0.5 * part, phase="optimizer", activity=activity, below=below)
        for activity, part in (("python", python), ("native", 1.0 - python))
    ]
    return snapshot(phases=Phases(forward=0.2, backward=0.3, optimizer=0.5), lines=lines)


def test_without_the_hook_stacks_tell_how_an_update_is_made_and_what_a_fused_one_saves():
    small = fired(optimizer.judge(update_seen("_single_tensor_adam", 0.37)))
    large = fired(optimizer.judge(update_seen("_single_tensor_adam", 0.01)))
    assert 0.2 < large.share < 0.35 < small.share < 0.5, "where calls of operations are all of its time, most is lost"
    assert small.speedup_range[0] == pytest.approx(large.speedup_range[0], rel=0.1)
    fused, foreach = small.fixes
    assert "fused=True" in fused.text and fused.speedup > foreach.speedup and "foreach=True" in foreach.text
    batched = fired(optimizer.judge(update_seen("_multi_tensor_sgd", 0.2)))
    assert "many operations" in batched.title and "foreach=True" not in batched.fixes[1].text


def test_without_the_hook_a_fused_update_is_no_loss():
    assert level(optimizer.judge(update_seen("_fused_adam", 0.1))) == 0


def test_without_the_hook_an_update_that_cannot_be_fused_saves_what_foreach_does():
    batched = fired(optimizer.judge(update_seen("_single_tensor_rmsprop", 0.37)))
    fused = fired(optimizer.judge(update_seen("_single_tensor_adam", 0.37)))
    assert 0.1 < batched.share < fused.share and "foreach=True" in batched.fixes[0].text


def test_a_closure_counts_once_in_what_computes():
    lines = [
        line("main", 0.4, phase="optimizer", activity="native", number=10),
        line("physics", 0.35, activity="native", number=20, position="within", work="tensor", closure=True),
        line("main", 0.2, phase="forward", activity="native", number=30),
        line("log", 0.05, activity="wait-disk", number=40),
    ]
    seen = snapshot(steps(seconds=0.1, forward=0.02, optimizer=0.075), lines=lines)
    verdict = fired(computing.compute_bound(seen))
    assert verdict.share == pytest.approx(0.95, abs=0.02)
    assert verdict.evidence[0] == "forward 20 %, optimizer 40 %, between them 35 %"


def test_rows_of_embeddings_that_no_step_uses_need_no_update():
    slow = steps(seconds=0.02, optimizer=0.0106)
    told = adam(1_700_000, 11, foreach=False, fused=False, looked_up_parameters=1_680_000)
    first, *_ = fired(optimizer.judge(snapshot(slow, facts=told))).fixes
    assert "sparse=True" in first.text and first.speedup == pytest.approx(2.1, abs=0.05)
    for fields in ({"optimizers": ("SparseAdam", "Adam")}, {"looked_up_parameters": 400_000}):
        other = msgspec.structs.replace(told, **fields)
        fixes = fired(optimizer.judge(snapshot(slow, facts=other))).fixes
        assert not any("sparse" in fix.text for fix in fixes)


def test_denormal_numbers_are_why_an_update_takes_too_long():
    slow = steps(seconds=0.0078, optimizer=0.0046)
    verdict = fired(optimizer.judge(snapshot(slow, facts=adam(431_425, 6, foreach=False, fused=False, denormals=0.55))))
    assert verdict.subtype == "denormal" and "55 %" in " ".join(verdict.evidence)
    [flush] = verdict.fixes
    assert "set_flush_denormal" in flush.text
    assert flush.speedup == pytest.approx(1.71, rel=0.05), "measured by running fingerprints with it"


def test_denormal_numbers_slow_nothing_down_on_a_processor_that_takes_them_well():
    facts = adam(431_425, 6, foreach=False, fused=False, denormals=0.55)
    seen = snapshot(steps(seconds=0.0078, optimizer=0.0046), facts=facts)
    for slow, subtype in ((None, "denormal"), (True, "denormal"), (False, None)):
        machine = MachineSample(cores=2, slow_denormals=slow)
        host = HostSample(time=1.0, processes=(), machine=machine)
        assert fired(optimizer.judge(msgspec.structs.replace(seen, host=host))).subtype == subtype


def test_a_quick_update_is_not_slowed_by_the_denormal_numbers_in_its_state():
    quick = steps(seconds=0.0078, optimizer=0.0012)
    facts = adam(431_425, 6, foreach=False, fused=False, denormals=0.3)
    assert level(optimizer.judge(snapshot(quick, facts=facts))) < optimizer.judge.leave


def test_an_uncounted_optimizer_may_take_a_usual_share():
    usual = Phases(data_wait=0.0, forward=0.3, backward=0.4, optimizer=0.28, outside=0.02)
    assert level(optimizer.judge(snapshot(phases=usual))) < optimizer.judge.leave


def test_without_a_count_of_parameters_nothing_is_said_of_their_need():
    verdict = fired(optimizer.judge(snapshot(phases=Phases(forward=0.3, backward=0.3, optimizer=0.4))))
    assert "need" not in verdict.title


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
    assert not any("once" in told or "measured" in told for told in verdict.evidence)


def test_what_a_computing_step_achieves_is_told_where_it_is_known():
    seen = snapshot(steps(seconds=0.1, forward=0.04, backward=0.05))
    assert not any("FLOP" in told for told in fired(computing.compute_bound(seen)).evidence)
    assert fired(computing.compute_bound(seen)).evidence[0] == "forward 40 %, backward 50 %", "there is no optimizer"
    achieving = msgspec.structs.replace(
        seen,
        steps=msgspec.structs.replace(seen.steps, flops_per_second=41e9, mfu=0.43),
        facts=facts(flops_dtype="bfloat16"),
    )
    verdict = fired(computing.compute_bound(achieving))
    assert verdict.evidence[-1] == "41 GFLOP/s achieved in bfloat16: 43 % of what the GPU can do (MFU)"
    assert verdict.fixes == ()


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
    assert "around tiny operations" in verdict.title and any("may be larger" in told for told in verdict.evidence)


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
    found = python_overhead.judge(seen)
    assert found.claims and not any(entry.activity == "wait-child" for entry in found.claims)
    assert fired(host_bound.judge(seen)).where[0].line == 37


def test_of_operations_that_are_not_tiny_only_what_holds_the_lock_is_surely_gained():
    """10 % of the step hold the lock: of 4,000 operations all the calls may go, of 40 at most that."""
    records = steps(seconds=0.1, forward=0.04, backward=0.05)
    tiny, few = (
        fired(python_overhead.judge(snapshot(records, lines=TINY, facts=facts(ops=ops)))) for ops in (4000, 40)
    )
    assert tiny.speedup_range[0] > 1.5 and few.speedup_range[0] < 1.0 / (1.0 - 0.1)


@pytest.mark.parametrize(("activity", "severity"), [("wait-network", "critical"), ("native", "warning")])
def test_sampled_io_is_critical_only_where_the_kernel_says_that_it_waits(activity, severity):
    writing = line("log_metrics", 0.4, activity=activity, work="database")
    seen = snapshot(phases=Phases(forward=0.3, backward=0.3, outside=0.4), lines=[writing])
    assert fired(between_steps.host_io(seen)).severity == severity


@pytest.mark.parametrize(
    ("wanting", "handler", "crowds"),
    [(11, "thread", False), (21, "thread", True), (11, "event-loop", True)],
    ids=["a thread for each request", "each with threads of its own beside it", "one thread for all requests"],
)
def test_requests_that_wait_for_a_core_in_threads_of_their_own_are_a_queue(wanting, handler, crowds):
    crowd = crowded(wanting=wanting, wanted=3.2, delay=0.2)
    works = line("serve", 0.8, activity="native", number=12, handler=handler)
    pool = msgspec.structs.replace(works, thread="pool", share=8.0, samples=800)
    threads = tuple(
        ThreadShare(pid=RANK, thread=name, samples=samples) for name, samples in (("MainThread", 100), ("pool", 1000))
    )
    seen = snapshot(
        stacks=msgspec.structs.replace(stacks([works, pool]), threads=threads),
        kind="inference",
        serving=Serving(basis="stacks", pid=RANK),
        host=crowd.host,
        series=crowd.series,
    )
    assert (oversubscription.judge(seen) is not None) == crowds


def test_what_a_crowded_machine_adds_to_an_update_is_not_the_optimizers():
    stock = adam(1_100_000, 6, foreach=False)
    assert level(optimizer.judge(snapshot(steps(seconds=0.7, optimizer=0.2), facts=stock))) < optimizer.judge.enter
    own = adam(1_100_000, 6)
    assert level(optimizer.judge(snapshot(steps(seconds=0.7, optimizer=0.2), facts=own))) > optimizer.judge.enter


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


def test_anomaly_detection_is_named_with_the_lines_whose_operations_it_writes_down():
    """Reading source lines waits for the disk, too, and the operations themselves are no loss."""
    lines = [
        line("forward", 0.4, phase="forward", activity="native", number=22, work="anomaly"),
        line("forward", 0.1, phase="forward", activity="python", number=22, work="anomaly"),
        line("forward", 0.2, phase="forward", activity="native", number=22, work="tensor"),
        line("main", 0.3, phase="backward", activity="native", number=40, work="tensor"),
    ]
    seen = snapshot(steps(seconds=0.1, forward=0.07, backward=0.03), lines=lines)
    found = python_overhead.judge(seen)
    verdict = fired(found)
    assert (verdict.where[0].line, verdict.severity) == (22, "critical")
    assert level(found) == pytest.approx(0.5, abs=0.01)
    assert verdict.speedup == pytest.approx(2.0, abs=0.05)
    assert verdict.speedup_range[1] == pytest.approx(5.0, abs=0.1), "it may also take most of the backward"
    assert "set_detect_anomaly" in verdict.fixes[0].text


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
