"""The numbers of ranks and their workers, and what cores they keep each other from."""

import pytest
from ranks_maker import (
    PIDS,
    past_of_ranks,
)
from snapshot_builder import process

from aitop.engine.history import History
from aitop.engine.snapshot.aggregate import aggregate
from aitop.engine.snapshot.ranks import OnCores, apart, held, on_cores, own_part
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import Target, Tick
from aitop.model.steps import DdpInfo, HookFacts, HookSample


def spawned(*pids):
    """Ranks that nobody numbers but the order of their start, each with a worker."""
    ranks = [process(pid, rank=rank) for rank, pid in enumerate(pids)]
    workers = [process(pid + 50, "loader-worker", rank=rank) for rank, pid in enumerate(pids)]
    return HostSample(time=1000.0, processes=(*ranks, *workers), machine=MachineSample(cores=2))


def test_ranks_and_their_workers_have_the_number_that_the_rank_gives_itself():
    past = History(Target(pid=100, command="x"))
    past.add(spawned(*PIDS))
    for pid in PIDS:
        facts = HookFacts(way="attach", python="3", torch="2", world_size=16, rank=pid - 92)
        past.add(HookSample(time=1000.0, pid=pid, steps=(), facts=facts))
    seen = aggregate(past, Tick(time=1000.0, wall=0.0))
    assert {process.pid: process.rank for process in seen.processes} == {100: 8, 101: 9, 150: 8, 151: 9}
    assert {view.pid: view.rank for view in seen.ranks.ranks} == {100: 8, 101: 9}


def test_ranks_and_their_workers_keep_their_number_when_another_rank_ends():
    past = History(Target(pid=1, command="x"))
    past.add(spawned(11, 12, 13, 14))
    past.add(spawned(11, 13, 14))
    seen = aggregate(past, Tick(time=1000.0, wall=0.0))
    assert {process.pid: process.rank for process in seen.processes} == {11: 0, 13: 2, 14: 3, 61: 0, 63: 2, 64: 3}
    assert {view.pid: view.rank for view in seen.ranks.ranks} == {11: 0, 13: 2, 14: 3}


def test_phases_and_single_steps_say_the_same_of_what_a_rank_waits_for_in_its_backward_pass():
    ddp = DdpInfo(backward=0.02, backend="gloo", gradient_bytes=10**8, communication=0.05, overlap=0.01)
    seen = aggregate(past_of_ranks((0.0, 0.06, 0.08), (0.0, 0.06, 0.08), ddp=ddp), Tick(time=1000.0, wall=0.0))
    phases, records = seen.steps.phases, seen.steps.recent
    total = sum(step.seconds for step in records)
    assert 0.0 < phases.backward < 0.5 < phases.communication + phases.backward
    assert sum(step.backward for step in records) / total == pytest.approx(phases.backward)
    assert sum(step.communication_apart for step in records) / total == pytest.approx(phases.communication)


ALONE = OnCores(ran=0.1, delay=0.0, wanted=0.1, waited=0.0)


def saved(late, *others, work=0.02, other_work=0.02):
    found = {100: late} | {101 + at: one for at, one in enumerate(others)}
    return held(found, {pid: work if pid == 100 else other_work for pid in found}, 0.1)


def test_waits_of_threads_that_the_main_thread_sleeps_for_count_too():
    assert saved(OnCores(ran=0.1, delay=0.4), ALONE) == (100, pytest.approx(0.04))
    assert saved(OnCores(ran=0.1, delay=0.4, wanted=0.8, waited=0.6), ALONE) == (100, pytest.approx(0.06))
    pool = OnCores(ran=0.1, delay=0.4, wanted=4.0, waited=3.5)
    assert saved(pool, ALONE, other_work=0.0) == (100, pytest.approx(0.09)), "no longer than the sleep"
    assert saved(pool, ALONE, work=0.06, other_work=0.0) == (100, pytest.approx(0.08))
    same = OnCores(ran=0.2, delay=0.3, wanted=0.5, waited=0.3)
    assert saved(same, same, same)[1] == 0, "ranks that share too few cores are not told from each other"
    assert 0 < saved(OnCores(ran=0.2, delay=0.33, wanted=0.53, waited=0.33), same)[1] < 0.1 * 0.1


def test_a_step_gets_no_shorter_than_the_others_need():
    late = OnCores(ran=0.1, delay=0.6, wanted=0.7, waited=0.6)
    assert saved(late, ALONE, OnCores(ran=0.1, delay=0.1, wanted=0.75, waited=0.1))[1] == pytest.approx(0.015)
    own_threads = OnCores(ran=0.1, delay=0.0, wanted=0.6, waited=0.4)
    assert saved(late, ALONE, own_threads)[1] == pytest.approx(0.06), "they wait for each other"
    asleep = saved(late, ALONE, other_work=0.07)
    assert asleep[1] == pytest.approx(0.03), "asleep in its own work, as for a device"


def test_without_an_exchange_its_threads_take_no_cores():
    slow = OnCores(ran=0.3, delay=0.2, wanted=0.9, waited=0.4)
    work = {100: 0.06, 101: 0.05}
    assert apart({100: slow, 101: slow}, work, 0.1, own=1.0, at_hand=2.0) == pytest.approx(0.04)
    assert apart({100: slow, 101: slow}, work, 0.1, own=0.5, at_hand=2.0) == pytest.approx(0.05)
    assert apart({100: slow, 101: slow}, work, 0.1, own=1.0, at_hand=0.5) == pytest.approx(0.12), "half a core"
    assert apart({}, work, 0.1, own=1.0, at_hand=2.0) == 0.06, "the kernel tells nothing"


def test_the_part_of_the_cores_that_the_job_uses_itself():
    past = History(Target(pid=100, command="x"))
    assert own_part(past) == 0
    for busy in ((1.0, 0.6), None, (0.1, 0.1)):
        machine = MachineSample(cores=2, core_busy=busy)
        past.add(HostSample(time=1.0, processes=(process(100, cpu=0.4), process(101, cpu=0.4)), machine=machine))
    assert own_part(past) == pytest.approx(1.6 / 2.4), "what is read of a process may be more than of all cores"


def test_ranks_without_figures_of_the_kernel_are_not_compared():
    assert held({100: ALONE}, {100: 0.1, 101: 0.1}, 0.1) == (None, 0.0)
    past = History(Target(pid=100, command="x"))
    ranks = (process(100, rank=0, main_cpu=0.2, run_delay=0.1), process(101, rank=1, main_cpu=0.2), process(9, "other"))
    past.add(HostSample(time=1.0, processes=ranks, machine=MachineSample(cores=2)))
    assert on_cores(past) == {100: OnCores(ran=0.2, delay=0.1)}
