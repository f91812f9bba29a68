"""What a step would save if the rank that gets no core got one."""

from __future__ import annotations

import pytest
from snapshot_builder import process

from aitop.engine.history import History
from aitop.engine.snapshot.rank_cores import OnCores, apart, held, on_cores, own_part
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import Target

ALONE = OnCores(ran=0.1, delay=0.0, wanted=0.1, waited=0.0)


def saved(late, *others, work=0.02, other_work=0.02):
    found = {100: late} | {101 + at: one for at, one in enumerate(others)}
    return held(found, {pid: work if pid == 100 else other_work for pid in found}, 0.1)


def test_waits_of_threads_that_the_main_thread_sleeps_for_count_too():
    assert saved(OnCores(ran=0.1, delay=0.4), ALONE) == (100, pytest.approx(0.04))
    assert saved(OnCores(ran=0.1, delay=0.4, wanted=0.8, waited=0.6), ALONE) == (100, pytest.approx(0.06))


def test_waits_at_the_same_time_take_no_longer_than_the_sleep():
    pool = OnCores(ran=0.1, delay=0.4, wanted=4.0, waited=3.5)
    assert saved(pool, ALONE, other_work=0.0) == (100, pytest.approx(0.09))
    assert saved(pool, ALONE, work=0.06, other_work=0.0) == (100, pytest.approx(0.08))


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
    found = History(Target(pid=100, command="x"))
    assert own_part(found) == 0
    for busy in ((1.0, 0.6), None, (0.1, 0.1)):
        machine = MachineSample(cores=2, core_busy=busy)
        found.add(HostSample(time=1.0, processes=(process(100, cpu=0.4), process(101, cpu=0.4)), machine=machine))
    assert own_part(found) == pytest.approx(1.6 / 2.4), "what is read of a process may be more than of all cores"


def test_ranks_that_share_too_few_cores_are_not_told_from_each_other():
    same = OnCores(ran=0.2, delay=0.3, wanted=0.5, waited=0.3)
    assert saved(same, same, same)[1] == 0
    slightly = saved(OnCores(ran=0.2, delay=0.33, wanted=0.53, waited=0.33), same)[1]
    assert 0 < slightly < 0.1 * 0.1


def test_what_the_kernel_does_not_tell_is_not_counted():
    assert held({100: ALONE}, {100: 0.1, 101: 0.1}, 0.1) == (None, 0.0)
    found = History(Target(pid=100, command="x"))
    ranks = (process(100, rank=0, main_cpu=0.2, run_delay=0.1), process(101, rank=1, main_cpu=0.2), process(9, "other"))
    found.add(HostSample(time=1.0, processes=ranks, machine=MachineSample(cores=2)))
    assert on_cores(found) == {100: OnCores(ran=0.2, delay=0.1)}
