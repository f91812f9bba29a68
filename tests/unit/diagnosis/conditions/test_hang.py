"""hang: who keeps all the others waiting while nothing moves."""

import msgspec
import pytest
from judgements import fired
from ranks_maker import (
    BACKWARD,
    BARRIER,
    PIDS,
    ranks_host,
    still,
    user_frame,
)
from snapshot_builder import line, process, snapshot
from stack_maker import window

from aitop.diagnosis.conditions.hang import hang, odd_one
from aitop.engine.history import History
from aitop.engine.snapshot.standstill import standstill
from aitop.model.host import HostSample, MachineSample
from aitop.model.ranks import ExchangeNotes, Standing, Standstill
from aitop.model.snapshot import Target
from aitop.model.stacks import Frame, StackDump, ThreadStack


def test_a_rank_in_a_lock_is_the_odd_one():
    stand = standstill(still((user_frame(9), BACKWARD), (user_frame(5),)), 1000.0)
    odd = odd_one(stand)
    assert (odd.subtype, odd.ranks) == ("rank-blocked", (1,))
    assert hang(snapshot([], standstill=stand)).verdict.where[0].line == 5


@pytest.mark.parametrize(
    ("first", "second", "subtype"),
    [
        ((user_frame(12, "if log:"), BARRIER), (user_frame(9), BACKWARD), "skipped-collective"),
        ((user_frame(12, "if a:"), BARRIER), (user_frame(14, "else of if a:"), BACKWARD), "mismatched-collectives"),
    ],
)
def test_ranks_under_conditions(first, second, subtype):
    odd = odd_one(standstill(still(first, second), 1000.0))
    assert odd.subtype == subtype and (subtype != "skipped-collective" or odd.ranks == (1,))


def test_while_a_run_stands_no_other_rule_claims_its_time():
    stand = standstill(still((user_frame(9), BACKWARD), (user_frame(5),)), 1000.0)
    lines = [line("train", 0.9, activity="sleep", number=5)]
    judged = hang(snapshot([], standstill=stand, lines=lines))
    assert sum(entry.share for entry in judged.claims) == pytest.approx(1.0)


def test_the_condition_may_stand_further_out_but_not_above_all_ranks():
    main = Frame("<module>", "/x/train.py", 99, True, None, "if __name__ == '__main__':")
    save = Frame("save", "/x/train.py", 3, True)
    odd = odd_one(
        standstill(
            still((main, user_frame(12, "if rank == 0:"), save, BARRIER), (main, user_frame(9), BACKWARD)), 1000.0
        )
    )
    assert (odd.subtype, odd.ranks) == ("skipped-collective", (1,))
    verdict = hang(
        snapshot([], standstill=standstill(still((user_frame(12, "if rank == 0:"), save, BARRIER)), 1000.0))
    ).verdict
    assert "under `if rank == 0:`" in " ".join(verdict.evidence)
    assert odd_one(
        standstill(still((main, user_frame(12), save, BARRIER), (main, user_frame(9), BACKWARD)), 1000.0)
    ).ranks == (1,)


def test_a_rank_that_is_gone_is_missed_by_what_the_launcher_said():
    sample = ranks_host(1000.0)
    alone = HostSample(time=1000.0, processes=sample.processes[:1], machine=sample.machine)
    past = still((user_frame(9), BARRIER))
    past.hosts.append(alone)
    stand = standstill(past, 1000.0)
    assert stand.gone == (1,)
    assert (odd_one(stand).subtype, odd_one(stand).ranks) == ("rank-gone", (1,))


def test_a_rank_that_nobody_saw_is_gone_where_all_ranks_meet_on_this_machine():
    past = History(Target(pid=100, command="x"))
    for second in range(7):
        alone = process(100, rank=0, world_size=2, voluntary_switches=0.0, main_cpu=0.0, state="S")
        past.add(HostSample(time=993.0 + second, processes=(alone,), machine=MachineSample(cores=2)))
    threads = (ThreadStack(pid=100, thread="MainThread", main=True, frames=(0, 1)),)
    past.add(StackDump(time=999.0, frames=(user_frame(9), BARRIER), threads=threads))
    assert odd_one(standstill(past, 1000.0)).subtype == "rank-elsewhere"
    past.add(ExchangeNotes(time=999.0, local=True))
    assert standstill(past, 1000.0).elsewhere == 0
    odd = odd_one(standstill(past, 1000.0))
    assert (odd.subtype, odd.ranks) == ("rank-gone", (1,))
    assert odd.title.startswith("rank 1 has ended")
    meets = Standing(pid=100, rank=0, role="rank", doing="collective", call="init_process_group")
    assert "has not come, or has ended" in odd_one(Standstill(seconds=9.0, ranks=(meets,), gone=(1,))).title
    title = odd_one(Standstill(seconds=9.0, ranks=(meets,), gone=(1, 2))).title
    assert title.startswith("ranks 1 and 2 have not come, or have ended, and the others wait for them")


def test_several_ranks_that_stand_elsewhere_stand():
    waits = Standing(pid=100, rank=0, role="rank", doing="collective", call="all_reduce", where=user_frame(9))
    one, other = (Standing(pid=100 + rank, rank=rank, role="rank", doing="own", where=user_frame(4)) for rank in (1, 2))
    assert odd_one(Standstill(seconds=9.0, ranks=(waits, one))).title.startswith("rank 1 stands in its own code at")
    both = odd_one(Standstill(seconds=9.0, ranks=(waits, one, other))).title
    assert both.startswith("ranks 1 and 2 stand in their own code at")
    assert odd_one(Standstill(seconds=9.0, ranks=(waits,), elsewhere=3)).title.startswith("rank 0 waits in all_reduce")


def test_the_only_rank_that_is_left_of_nobody_knows_how_many():
    waits = Standing(pid=100, rank=0, role="rank", doing="collective", call="new_group", where=user_frame(9))
    odd = odd_one(Standstill(seconds=9.0, ranks=(waits,)))
    assert (odd.subtype, odd.ranks) == ("rank-elsewhere", ())
    alone = msgspec.structs.replace(waits, call="synchronize")
    assert odd_one(Standstill(seconds=9.0, ranks=(alone,))).subtype == "rank-blocked"


def test_a_loader_worker_in_a_lock():
    loading = Standing(pid=100, rank=0, role="rank", doing="loading", call="DataLoader")
    worker = Standing(
        pid=200, rank=0, role="loader-worker", doing="fetching", where=user_frame(65), frames=(user_frame(65),)
    )
    odd = odd_one(Standstill(seconds=9.0, ranks=(loading,), workers=(worker,)))
    assert (odd.subtype, odd.ranks, odd.standing) == ("loader-worker", (0,), (worker,))


@pytest.mark.parametrize(
    ("ranks", "whose"),
    [((0, 0), " of rank 0"), ((0, 1), " of ranks 0 and 1"), ((None, None), "")],
)
def test_the_ranks_of_all_loader_workers_in_a_lock_are_named(ranks, whose):
    loading = [Standing(pid=100 + at, rank=number, role="rank", doing="loading") for at, number in enumerate(ranks)]
    workers = [
        Standing(
            pid=200 + at,
            rank=number,
            role="loader-worker",
            doing="fetching",
            where=user_frame(65),
            frames=(user_frame(65),),
        )
        for at, number in enumerate(ranks)
    ]
    stand = Standstill(seconds=9.0, ranks=tuple(loading), workers=tuple(workers))
    verdict = fired(hang(snapshot([], standstill=stand)))
    assert verdict.title == f"2 loader workers{whose} do not come back at train.py:65"
    assert any(sentence.startswith(f"loader workers 200 and 201{whose}: in ") for sentence in verdict.evidence)


def test_without_the_hook_a_run_that_stepped_and_stands_in_its_own_code_for_a_minute_hangs():
    def stands(seconds, *before):
        past = History(Target(pid=PIDS[0], command="x"))
        for frames in before:
            past.add(window(900.0, (PIDS[0], "MainThread", True, frames, 40)))
        for second in range(seconds):
            sample = ranks_host(1001.0 - seconds + second)
            only = msgspec.structs.replace(sample.processes[0], world_size=1, local_world_size=1)
            past.add(msgspec.structs.replace(sample, processes=(only,)))
        thread = ThreadStack(pid=PIDS[0], thread="MainThread", main=True, frames=(0,))
        past.add(StackDump(time=999.0, frames=(user_frame(5),), threads=(thread,)))
        return standstill(past, 1000.0)

    stepping, reading = [user_frame(9), BACKWARD], [user_frame(3)]
    verdict = hang(snapshot([], standstill=stands(70, stepping))).verdict
    assert (verdict.subtype, verdict.where[0].line, verdict.confidence) == ("rank-blocked", 5, 0.6)
    assert stands(30, stepping) is None, "a pause that it may make on its own"
    assert stands(70, reading) is stands(70) is None, "nothing shows that it has anything to do"


def rank(number, state="S"):
    return Standing(pid=100 + number, rank=number, role="rank", state=state)


def worker(pid, state="S"):
    return Standing(pid=pid, rank=0, role="loader-worker", state=state)


@pytest.mark.parametrize(
    ("ranks", "workers", "title", "pids"),
    [
        ([rank(0, "T")], [worker(7, "T")], "rank 0 is stopped by a signal or a debugger", "100 7"),
        ([rank(0), rank(1, "T")], [], "rank 1 is stopped by a signal or a debugger: all others wait for it", "101"),
        ([rank(0, "t"), rank(1, "t")], [], "ranks 0 and 1 are stopped by a signal or a debugger", "100 101"),
        (
            [rank(0)],
            [worker(7, "T")],
            "loader worker 7 is stopped by a signal or a debugger: all others wait for it",
            "7",
        ),
    ],
)
def test_who_is_stopped_and_who_waits(ranks, workers, title, pids):
    odd = odd_one(Standstill(seconds=9.0, ranks=tuple(ranks), workers=tuple(workers)))
    assert (odd.subtype, odd.title, odd.fix) == ("stopped", title, f"let it go on: kill -CONT {pids}")
