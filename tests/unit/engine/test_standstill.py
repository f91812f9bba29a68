"""When a job counts as standing, when all stacks are looked at, and what each of them waits for."""

import msgspec
import pytest
from ranks_maker import (
    BACKWARD,
    BARRIER,
    PIDS,
    ranks_host,
    still,
    user_frame,
)
from snapshot_builder import process

from aitop.engine.history import History
from aitop.engine.snapshot.standstill import standing_for, standstill, waiting_for, wants_look
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import Target
from aitop.model.stacks import Frame, StackDump, ThreadStack
from aitop.model.steps import HookSample, StepRecord


@pytest.mark.parametrize(
    ("channel", "cpu", "stands"),
    [
        ("do_wait", 0.9, False),
        ("do_wait", 0.0, True),
        ("futex_wait", 0.9, True),
        # A loader's worker that imports before it reads what it is to do.
        ("anon_pipe_write", 0.9, False),
        ("anon_pipe_write", 0.0, True),
    ],
)
def test_a_run_that_waits_for_a_child_at_work_does_not_stand(channel, cpu, stands):
    past = History(Target(pid=1, command="x"))
    for second in range(10):
        sample = ranks_host(991.0 + second, channel=channel)
        child = process(77, "other", cpu=cpu)
        child = msgspec.structs.replace(child, ppid=sample.processes[0].pid)
        past.add(msgspec.structs.replace(sample, processes=(*sample.processes, child)))
    assert (standing_for(past, 1000.0) > 5.0) is stands


def test_ranks_of_a_job_that_has_ended_are_not_missed_in_the_next_one():
    """A script starts one job after the other below the same launcher."""
    past = still((user_frame(9), BARRIER), (user_frame(9), BARRIER))
    assert past.rank_numbers == {100: 0, 101: 1}
    for second in range(8):
        later = process(200, rank=0, world_size=1, voluntary_switches=0.0, main_cpu=0.0, state="S")
        past.add(HostSample(time=1001.0 + second, processes=(later,), machine=MachineSample(cores=2)))
    assert past.rank_numbers == {200: 0}
    assert standstill(past, 1008.0) is None or not standstill(past, 1008.0).gone


def test_a_rank_that_had_ended_before_anybody_looked_is_missed_where_nobody_collected_it():
    known = process(100, rank=0, world_size=2, voluntary_switches=0.0, main_cpu=0.0, state="S")
    zombie = process(101, role="other", state="Z")
    for processes, gone in (((known, zombie), (1,)), ((known,), ())):
        past = History(Target(pid=1, command="x"))
        past.add(still((user_frame(9), BARRIER)).dump)
        for second in range(8):
            past.add(HostSample(time=993.0 + second, processes=processes, machine=MachineSample(cores=2)))
        stand = standstill(past, 1000.0)
        assert (stand.gone, stand.elsewhere) == (gone, 1 - len(gone))


def test_a_job_that_moves_or_stands_only_briefly_does_not_hang():
    stacks_of_both = (user_frame(9), BACKWARD), (user_frame(5),)
    for found in (
        still(*stacks_of_both, seconds=3),
        still(*stacks_of_both, voluntary_switches=20.0),
        still(*stacks_of_both, main_cpu=0.9),
        # As on a kernel without schedstat.
        still(*stacks_of_both, main_cpu=None, cpu=0.9),
        still(*stacks_of_both, read_bytes=1e6),
        still(*stacks_of_both, channel="hrtimer_nanosleep"),
    ):
        assert standstill(found, 1000.0) is None


@pytest.mark.parametrize(("kind", "stands"), [("infer", False), ("generate", False), ("train", True)])
def test_what_answers_requests_and_gets_none_does_not_stand(kind, stands):
    past = still((user_frame(9),), (user_frame(5),), seconds=20)
    made = tuple(StepRecord(index=at, end=970.0 + at / 10, seconds=0.1, kind=kind) for at in range(40))
    past.add(HookSample(time=974.0, pid=PIDS[0], steps=made))
    assert (standstill(past, 1000.0) is not None) is stands


def test_a_run_that_was_never_seen_to_update_stands_if_it_waits_for_its_loader():
    loading = Frame("_try_get_data", "/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 9)
    found = still((user_frame(9), loading), (user_frame(5), loading), seconds=20)
    found.stepped[PIDS[0]] = 980.0
    assert {rank.doing for rank in standstill(found, 1000.0).ranks} == {"loading"}


@pytest.mark.parametrize(("frames", "stands"), [((user_frame(9),), False), ((user_frame(9), BARRIER), True)])
def test_a_worker_of_a_server_that_went_is_missed_only_where_others_meet_it(frames, stands):
    past = still(frames, frames, seconds=20)
    sample = past.hosts.last
    past.add(msgspec.structs.replace(sample, processes=sample.processes[:1], engine="torchserve 0.12"))
    assert (standstill(past, 1000.0) is not None) is stands


def test_a_server_without_requests_does_not_stand_though_its_ranks_wait_in_a_collective():
    past = still((BARRIER,), (BARRIER,), seconds=20)
    assert standstill(past, 1000.0) is not None
    last = past.hosts.last
    past.add(msgspec.structs.replace(last, engine="sglang 0.5"))
    assert standstill(past, 1000.0) is None


def test_a_sample_tells_of_the_time_since_the_one_before_it():
    past = History(Target(pid=PIDS[0], command="x"))
    for second, switches in enumerate((50.0, 50.0, 0.0, 0.0)):
        past.add(ranks_host(1000.0 + second, voluntary_switches=switches))
    assert standing_for(past, 1003.0) == 2.0
    assert standing_for(History(Target(pid=1, command="x")), 1.0) == 0.0


def test_a_standstill_is_not_explained_by_stacks_from_before_it():
    past = still((user_frame(12, "if log:"), BARRIER), (user_frame(9), BACKWARD), dumped=900.0, seconds=6)
    assert standstill(past, 1000.0) is None, "without stacks it may still be a pause"
    past.add(ranks_host(1003.0))
    assert {rank.doing for rank in standstill(past, 1003.0).ranks} == {None}


def test_a_pause_that_is_usual_for_the_run_is_no_hang():
    past = still((user_frame(9), BACKWARD), (user_frame(5),), steps=True)
    assert standstill(past, 1000.0) is not None
    slow = StepRecord(index=41, end=992.0, seconds=30.0)
    past.add(HookSample(time=992.0, pid=PIDS[0], steps=(slow,)))
    assert standing_for(past, 1000.0) > 4 and standstill(past, 1000.0) is None


def test_looks_are_asked_for_only_while_nothing_moves():
    assert wants_look(still(), 1000.0, 900.0)
    assert not wants_look(still(voluntary_switches=20.0), 1000.0, 900.0)
    assert not wants_look(still((user_frame(9), BACKWARD)), 1000.0, 900.0), "there is one of this standstill"


@pytest.mark.parametrize(("frames", "looks"), [((), range(3, 9)), ((user_frame(9), BACKWARD), range(16, 30))])
def test_looks_that_cannot_read_any_stack_become_rare(frames, looks):
    past, looked, begun = History(Target(pid=1, command="x")), 0.0, 0
    for second in range(200):
        now = 1000.0 + second
        past.add(ranks_host(now))
        if wants_look(past, now, looked):
            looked, begun = now, begun + 1
            thread = ThreadStack(pid=PIDS[0], thread="MainThread", main=True, frames=tuple(range(len(frames))))
            for dump in (StackDump(time=now + 0.1, frames=frames, threads=(thread,)),) if frames else ():
                past.add(dump)
    assert begun in looks


def test_what_a_stack_waits_for():
    loader = Frame("_try_get_data", "/site-packages/torch/utils/data/dataloader.py", 3)
    worker = Frame("_worker_loop", "/site-packages/torch/utils/data/_utils/worker.py", 3)
    queue = Frame("Queue.get", "/lib/python3.11/multiprocessing/queues.py", 3)
    poll = Frame("Connection._poll", "/lib/python3.11/multiprocessing/connection.py", 3)
    assert waiting_for([user_frame(1), loader, queue]) == ("loading", "DataLoader")
    assert waiting_for([worker, queue, poll])[0] == "unused"
    assert waiting_for([worker, user_frame(3)])[0] == "fetching"
    assert waiting_for([user_frame(3), queue]) == ("own", "Queue.get")


@pytest.mark.parametrize(
    ("function", "file"), [("call", "/home/ada/grpc/rows.py"), ("backward", "/home/ada/lightning_1/x.py")]
)
def test_no_file_of_the_users_says_what_a_stack_waits_for(function, file):
    assert waiting_for([Frame(function, file, 3, True)]) == ("own", None)
