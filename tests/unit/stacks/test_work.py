"""Who does the work: told from stacks, counted steps and the kernel's word, not from how processes were started."""

import msgspec
import pytest
from snapshot_builder import RANK, line, process
from stack_maker import stack, window

from aitop.diagnosis.ledger import ledgers
from aitop.engine.core import Engine
from aitop.engine.hook_requests import SteppingProcesses
from aitop.model.host import HostSample, MachineSample
from aitop.model.snapshot import Phases, ProcessStacks, Stacks, Target, ThreadPool, ThreadShare, Tick
from aitop.model.stacks import ThreadState
from aitop.stacks.work import step_levels, working

MAIN, FIRST, SECOND = RANK, RANK + 1, RANK + 2
TRAINS = Phases(forward=0.3, backward=0.5, optimizer=0.1, outside=0.1)
INFERS = Phases(forward=0.8, outside=0.2)
WAITS = Phases(forward=0.0, backward=0.0, optimizer=0.0, data_wait=0.0, outside=1.0)


def sampled(pid, role="loader-worker", phases=WAITS, active=0.0, samples=100):
    process = ProcessStacks(pid=pid, role=role, samples=samples, phases=phases)
    return process, ThreadShare(pid=pid, thread="MainThread", samples=samples, active=active)


def seen(*processes, lines=()):
    stacks, threads = zip(*processes, strict=True)
    return Stacks(seconds=5.0, samples=100, processes=stacks, threads=threads, lines=tuple(lines))


def test_trainers_and_not_the_process_that_joins_them():
    stacks = seen(sampled(MAIN, "rank"), sampled(FIRST, phases=TRAINS), sampled(SECOND, phases=TRAINS))
    assert working(stacks, {}, MAIN) == (FIRST, SECOND)
    assert working(stacks, {}, SECOND) == (SECOND, FIRST), "the one that was asked for comes first"
    assert working(stacks, {SECOND: "train"}, MAIN) == (SECOND, FIRST), "but the one whose steps are counted before it"


LEARNS = Phases(forward=0.02, backward=0.03, optimizer=0.01, outside=0.94)
STARVES = Phases(data_wait=0.98, forward=0.01, backward=0.01)


@pytest.mark.parametrize(
    ("main", "others", "work"),
    [
        ({"active": 0.6}, [{"phases": INFERS, "active": 0.5}], (FIRST,)),
        ({"phases": LEARNS}, [{"phases": INFERS}], (MAIN,)),
        ({"phases": STARVES}, [{"phases": Phases(), "active": 1.0}, {"phases": WAITS, "active": 1.0}], (MAIN,)),
        ({"active": 0.4}, [{"active": 0.9}], (MAIN,)),
    ],
    ids=["a server's worker and not its busy front", "a learner and not its actors", "a rank and not its loaders",
         "a main process that does a part of the work itself"],
)  # fmt: skip
def test_the_process_that_works_and_not_those_around_it(main, others, work):
    processes = [sampled(MAIN, "rank", **main), *(sampled(FIRST + at, **other) for at, other in enumerate(others))]
    assert working(seen(*processes), {}, MAIN) == work


def test_the_process_in_which_requests_wait_where_none_does_anything():
    """Its service, asleep most of the time, runs a little more."""
    service, (asks, share) = sampled(FIRST, active=0.09), sampled(SECOND, active=0.01)
    pool = ThreadPool(threads=("a", "b"), there=6.0, working=0.05, standing=5.0, asking=0.9)
    stacks = seen(sampled(MAIN, "launcher"), service, (msgspec.structs.replace(asks, pool=pool), share))
    assert working(stacks, {}, MAIN) == (SECOND,)


def test_the_main_process_where_those_of_its_pool_only_take_over_their_jobs():
    takes = [
        line("main", 0.9, pid=pid, activity="native", work="hand-over", parts=(("native", 0.6), ("wait-queue", 0.4)))
        for pid in (FIRST, SECOND)
    ]
    processes = [sampled(MAIN, "rank", active=0.02), sampled(FIRST, active=0.6), sampled(SECOND, active=0.58)]
    assert working(seen(*processes, lines=takes), {}, MAIN) == (MAIN,)


def test_the_processes_of_a_pool_and_not_the_one_that_waits_in_map():
    stacks = seen(sampled(MAIN, "rank", active=0.03), sampled(FIRST, active=0.9), sampled(SECOND, active=0.95))
    assert working(stacks, {}, MAIN) == (FIRST, SECOND), "peers stand in the order of their pids"
    idle = seen(sampled(MAIN, "rank", active=0.03), sampled(FIRST, active=0.2), sampled(SECOND, active=0.9))
    assert working(idle, {}, MAIN) == (SECOND, FIRST)


def test_a_process_that_waits_for_a_disk_works():
    reads = line("read", 0.9, pid=FIRST, activity="wait-disk")
    stacks = seen(sampled(MAIN, "rank"), sampled(FIRST), lines=[reads])
    assert working(stacks, {}, MAIN) == (FIRST,)


def test_ranks_of_which_one_was_seen_in_a_step_only_now_and_then():
    rare = Phases(data_wait=0.0, forward=0.01, backward=0.0, optimizer=0.0, outside=0.99)
    stacks = seen(sampled(FIRST, "rank", TRAINS), sampled(SECOND, "rank", rare), sampled(MAIN, "launcher"))
    assert working(stacks, {}, MAIN) == (FIRST, SECOND)


def test_the_rank_that_is_late_before_the_one_that_waits_for_it_in_its_backward_pass():
    waits = line("train", 0.8, pid=FIRST, phase="backward", activity="wait-lock")
    loads = line("load", 0.6, pid=SECOND, phase="data_wait", activity="sleep")
    early = sampled(FIRST, "rank", Phases(forward=0.1, backward=0.85, outside=0.05))
    late = sampled(SECOND, "rank", Phases(data_wait=0.6, forward=0.1, backward=0.2, outside=0.1))
    stacks = seen(early, late, lines=[waits, loads])
    assert working(stacks, {}, MAIN) == (SECOND, FIRST)
    assert working(stacks, {FIRST: "train"}, MAIN) == (FIRST, SECOND), "counted steps are compared by rank"


def test_there_is_always_a_working_process_but_never_a_helper():
    assert working(None, {}, MAIN) == ()
    everybody_waits = seen(sampled(MAIN, "rank"), sampled(FIRST, "helper", active=1.0), sampled(SECOND))
    assert working(everybody_waits, {}, MAIN) == (MAIN,)
    served = seen(sampled(MAIN, "launcher"), sampled(FIRST), sampled(SECOND))
    assert working(served, {}, MAIN) == (FIRST, SECOND), "who only started them is shown where nobody else is"
    assert working(seen(sampled(MAIN, "launcher")), {}, MAIN) == (MAIN,)


@pytest.mark.parametrize(
    ("phases", "samples", "level"),
    [
        (TRAINS, 100, 2),
        (INFERS, 100, 1),
        (WAITS, 100, 0),
        (Phases(forward=0.01, outside=0.99), 100, 0),
        (Phases(backward=0.01, outside=0.99), 100, 0),
    ],
)
def test_how_far_a_process_steps(phases, samples, level):
    assert step_levels(seen(sampled(MAIN, phases=phases, samples=samples)), {}) == {MAIN: level}


def test_counted_steps_are_proof_where_stacks_show_little():
    stacks = seen(sampled(MAIN, phases=WAITS))
    assert step_levels(stacks, {MAIN: "train"}) == {MAIN: 2}
    assert step_levels(stacks, {MAIN: "infer"}) == {MAIN: 1}


def test_a_process_that_stepped_is_remembered_while_it_lives():
    stepping = SteppingProcesses()
    stepping.update({MAIN: 0, FIRST: 1, SECOND: 1}, (FIRST, SECOND), {MAIN, FIRST, SECOND})
    assert stepping.pids() == {FIRST, SECOND} and stepping.working() == (FIRST, SECOND)
    stepping.update({MAIN: 0, FIRST: 0}, (FIRST,), {MAIN, FIRST})
    assert stepping.pids() == {FIRST}, "one saves or evaluates, the other has ended"
    stepping.update({MAIN: 2}, (MAIN,), {MAIN, FIRST})
    assert stepping.pids() == {MAIN}, "it only feeds the one that trains"


STEP = stack(
    "user/train.py:30 train | loss.backward()",
    "torch/_tensor.py:500 backward",
    "torch/autograd/__init__.py:300 backward",
)
JOINS = stack("user/train.py:60 main | one.join()", "std/multiprocessing/popen_fork.py:40 wait")


def snapshot_of(roles):
    """The Snapshot of a process that joins two trainers, in whatever roles the host source saw them."""
    state = ThreadState(pid=MAIN, thread="MainThread", main=True, asked=40, running=0, waits={"child": 40})
    samples = [(MAIN, "MainThread", True, JOINS, 40), *((pid, "MainThread", True, STEP, 40) for pid in (FIRST, SECOND))]
    seen = msgspec.structs.replace(window(9.0, *samples), states=(state,))
    processes = tuple(process(pid, role, cpu=0.9) for pid, role in zip((MAIN, FIRST, SECOND), roles, strict=True))
    engine = Engine(Target(pid=MAIN, command="python train.py"))
    engine.handle(HostSample(time=9.0, processes=processes, machine=MachineSample(cores=2)))
    engine.handle(seen)
    return engine.handle(Tick(time=10.0, wall=0.0))


@pytest.mark.parametrize(
    "roles", [("rank", "loader-worker", "loader-worker"), ("rank", "other", "other"), ("launcher", "rank", "rank")]
)
def test_the_ledgers_are_those_of_the_processes_that_work(roles):
    snapshot = snapshot_of(roles)
    assert snapshot.working == (FIRST, SECOND)
    assert snapshot.kind == "training"
    assert snapshot.steps is not None and snapshot.steps.pid == FIRST and snapshot.steps.phases.backward == 1.0
    assert [ledger.pid for ledger in ledgers(snapshot)] == [FIRST, SECOND]


MODEL = stack("user/serve.py:23 predict | model(x)", "torch/nn/modules/module.py:1773 _wrapped_call_impl")
SELECTS = stack("user/serve.py:60 main | server.serve_forever()", "std/selectors.py:415 select")


def requests(count, threads=1):
    """Windows of a server that starts a thread for each of `count` requests, beside its main thread."""
    engine = Engine(Target(pid=MAIN, command="python serve.py"))
    for second in range(5):
        numbers = [second * count + number for number in range(count)]
        handlers = [(MAIN, f"Thread-{number} (process_request_thread)", False, MODEL, 3) for number in numbers]
        feeders = [(MAIN, f"feeder-{number}", False, JOINS, 40) for number in range(threads)]
        engine.handle(window(2.0 + 2 * second, (MAIN, "MainThread", True, SELECTS, 40), *handlers, *feeders))
    snapshot = engine.handle(Tick(time=11.0, wall=0.0))
    assert snapshot is not None and snapshot.stacks is not None
    return snapshot


def test_threads_that_live_for_one_request_are_one():
    snapshot = requests(8)
    (ledger,) = snapshot.ledgers
    assert ledger.thread == "threads that end soon"
    # Eight of them are seen three times each in forty looks at the process: else none is there.
    entries = [
        (entry.phase, entry.activity, entry.line, round(entry.share, 3))
        for entry in ledger.entries
        if entry.lane == "main"
    ]
    assert entries == [("forward", "native", 23, 0.6), ("host", "wait-queue", 0, 0.4)]
    assert {share.thread for share in snapshot.stacks.threads} == {"MainThread", "feeder-0", ledger.thread}


def test_threads_that_stay_are_themselves():
    threads = {share.thread for share in requests(0, threads=9).stacks.threads}
    assert threads == {"MainThread", *(f"feeder-{number}" for number in range(9))}
