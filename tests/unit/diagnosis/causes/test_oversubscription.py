"""cpu-oversubscription: more threads want a core than there are."""

from __future__ import annotations

import msgspec
import pytest
from judgements import fired
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
)

from aitop.diagnosis.causes import (
    oversubscription,
)
from aitop.model.host import HostSample, MachineSample
from aitop.model.serving import Serving
from aitop.model.snapshot import ThreadShare
from aitop.model.verdict import Setting


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
    assert any("torch is set to 3 threads" in sentence for sentence in verdict.evidence)


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
    assert (verdict.severity, verdict.share, verdict.speedup) == ("info", 0.5, None)
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


def test_what_a_server_at_leisure_loses_is_a_part_of_its_requests():
    """Four processes with eight threads each rest 70 % of the time; a request takes 1.67 times as long as it need."""
    crowd = crowded(wanting=32, wanted=4.0, delay=0.12)
    lines = [
        line("worker", 0.7, number=34, activity="wait-queue", text="jobs.get()"),
        line("worker", 0.3, number=39, phase="forward", activity="native"),
    ]
    seen = snapshot(lines=lines, kind="inference", host=crowd.host, series=crowd.series)
    verdict = fired(oversubscription.judge(seen))
    assert verdict.share == pytest.approx(0.12)
    assert verdict.speedup == pytest.approx(1.0 / (1.0 - 0.12 / 0.3), rel=0.05)
    assert verdict.severity != "info" and "they get faster, not more" in verdict.evidence[-1]


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
