"""The ledger of a server: phases of iterations and requests as they were measured, idle time apart, lines in them."""

import pytest
from judgements import fired, level
from msgspec.structs import replace
from served_maker import START, Server, at_random, server, turns
from snapshot_builder import RANK, line, step, with_ledgers
from stack_maker import stack, window

from aitop.diagnosis.causes import between_steps, computing, gil, host, input_bound, preprocessing
from aitop.diagnosis.causes.serving import queue
from aitop.diagnosis.evidence import takes_request
from aitop.diagnosis.served import idle_share, merged, of_iterations, of_requests, served
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.snapshot import Lineless, Phases, ProcessStacks, Stacks, ThreadShare
from aitop.stacks.reading import read_stack
from aitop.stacks.view import StackView

LOOP = "std/asyncio/runners.py:118 Runner.run"
LITSERVE = "litserve/loops/simple_loops.py"


def engine_turns(**parts):
    return [
        IterationRecord(end=START + 0.1 * (n + 1), seconds=0.08, idle=0.02, requests=4, decode_tokens=4, **parts)
        for n in range(200)
    ]


PARTS = {"schedule": 0.008, "prepare": 0.008, "model": 0.04, "sample": 0.008, "output": 0.012}


def shares(seen):
    ledger = next(ledger for ledger in seen.ledgers if ledger.pid == RANK)
    by_phase = {}
    for entry in ledger.entries:
        if entry.lane == "main":
            by_phase[entry.phase] = by_phase.get(entry.phase, 0.0) + entry.share
    return ledger, by_phase


def test_an_iteration_has_its_measured_phases_and_its_idle_time():
    ledger, by_phase = shares(server((), engine_turns(**PARTS)))
    assert (ledger.unit, ledger.length) == ("iteration", pytest.approx(0.1))
    expected = {"schedule": 0.08, "prepare": 0.08, "forward": 0.4, "sample": 0.08, "output": 0.12, "idle": 0.2}
    assert {phase: by_phase[phase] for phase in expected} == pytest.approx(expected)
    assert sum(by_phase.values()) == pytest.approx(1.0)


def test_an_engine_has_a_ledger_without_stacks():
    seen = server((), engine_turns(**PARTS), seen={"stacks": None})
    seen = with_ledgers(replace(seen, stacks=None))
    assert seen.ledgers[0].unit == "iteration" and seen.ledgers[0].pid == RANK


def test_requests_that_overlap_share_each_moment_once():
    requests = [
        RequestRecord(end=START + n + 0.4, seconds=0.4, queue=0.1, preprocess=0.1, model=0.1, postprocess=0.1)
        for n in range(20)
        for _ in range(3)
    ]
    account = of_requests(requests)
    whole = 19.4
    assert account.unit == "request" and account.length == pytest.approx(whole / 60)
    assert account.shares["forward"] == pytest.approx(20 * 0.1 / whole)
    assert account.shares["idle"] == pytest.approx(19 * 0.6 / whole)
    assert sum(account.shares.values()) == pytest.approx(1.0)
    assert merged([(3, 4), (0, 1), (0.5, 2), (4, 5)]) == [(0, 2), (3, 5)]


def test_a_long_request_beside_probes_leaves_a_server_neither_idle_nor_accounted():
    probes = [RequestRecord(end=START + n, seconds=0.002, queue=0.0) for n in range(1, 30)]
    rests = server(probes)
    assert served(rests, RANK).shares["idle"] > 0.99 and idle_share(rests.serving) > 0.99
    busy = server(probes, alive=1, under_way={RANK: START + 2})
    assert served(busy, RANK) is None
    assert idle_share(busy.serving) == pytest.approx(1 / 28, abs=0.01)


def test_processes_that_answer_side_by_side_have_an_account_each():
    """Together they are busy for twice the time that each of them is."""
    requests = [
        RequestRecord(end=START + n / 2 + 0.4, seconds=0.4, queue=0.0, model=0.4, pid=RANK + n % 2) for n in range(60)
    ]
    seen = server(requests)
    for pid in (RANK, RANK + 1):
        assert served(seen, pid).length == pytest.approx(1.0, abs=0.03)
        assert served(seen, pid).shares["idle"] == pytest.approx(0.6, abs=0.02)
    assert served(seen, RANK + 2) is None
    assert idle_share(seen.serving) == pytest.approx(0.6, abs=0.02)


def test_iterations_without_their_parts_still_tell_idle_time():
    assert of_iterations(engine_turns()).shares == pytest.approx({"idle": 0.2, "host": 0.8})


def test_lines_before_the_model_lie_in_the_time_measured_for_making_its_input():
    requests = [
        RequestRecord(end=START + 0.1 * (n + 1), seconds=0.09, queue=0.0, preprocess=0.05, model=0.04)
        for n in range(200)
    ]
    lines = [
        line("decode", 0.4, position="before", work="tokenize", number=12, handler="request-loop"),
        line("answer", 0.4, phase="forward", activity="native", number=20),
        line("loop", 0.2, activity="wait-queue", number=9),
    ]
    seen = server(requests, lines=lines)
    ledger, by_phase = shares(seen)
    assert by_phase["preprocess"] == pytest.approx(0.5, abs=0.01) and by_phase["idle"] == pytest.approx(0.1, abs=0.01)
    (entry,) = [entry for entry in ledger.entries if entry.line == 12]
    assert entry.phase == "preprocess" and entry.basis == "measured"
    verdict = fired(preprocessing.judge(seen))
    assert verdict.where[0].line == 12 and "tokenis" in verdict.fixes[0].text


@pytest.mark.parametrize(("seen_after", "output"), [(0.8, 0.8), (0.0, 0.0)], ids=["of outputs", "of inputs"])
def test_where_inputs_and_outputs_are_made_at_the_same_time_stacks_tell_what_the_server_works_on(seen_after, output):
    """A lock is held until a service has taken the answer: five requests stand before the model, one is behind it."""
    times = {"seconds": 0.5, "queue": 0.0, "preprocess": 0.4, "model": 0.02, "postprocess": 0.08}
    requests = [RequestRecord(end=START + 0.1 * (n + 1), **times) for n in range(200)]
    lines = [
        line("answer", 0.2, phase="forward", activity="native", number=20),
        line("put", seen_after, activity="wait-network", position="after", number=16, work="network"),
        line("decode", 0.8 - seen_after, position="before", number=12),
    ]
    _, by_phase = shares(server(requests, lines=[each for each in lines if each.share]))
    assert by_phase.get("postprocess", 0.0) == pytest.approx(output, abs=0.05)


@pytest.mark.parametrize(("kind", "computed"), [("generate", 0.6), ("infer", 0.9)])
def test_what_generate_calls_back_is_not_the_model(kind, computed):
    """The hook times a whole call of `generate`, in which a logits processor of the user's takes 0.4 of the time."""
    times = {"seconds": 0.1, "queue": 0.0, "model": 0.09, "postprocess": 0.01}
    requests = [RequestRecord(end=START + 0.1 * (n + 1), **times) for n in range(200)]
    lines = [
        line("answer", 0.6, phase="forward", activity="native", number=20),
        line("Rhymes.__call__", 0.4, position="within", number=31),
    ]
    calls = [step(index, 0.1, kind=kind, forward=0.09) for index in range(40)]
    _, by_phase = shares(server(requests, lines=lines, seen={"records": calls}))
    assert by_phase["forward"] == pytest.approx(computed, abs=0.01)


def test_a_coroutine_that_awaits_waits_in_its_handler_though_it_is_on_no_stack():
    """Four requests are always under way, each waits 0.11 s for other services, and the event loop rests."""
    requests = [
        RequestRecord(end=START + n / 40 + 0.12, seconds=0.12, queue=0.0, preprocess=0.115, model=0.005)
        for n in range(1200)
    ]
    lines = [
        line("lookup", 0.04, position="before", number=42, handler="event-loop"),
        line("rank", 0.02, phase="forward", activity="native", number=69, handler="event-loop"),
        line("<module>", 0.94, activity="wait-queue", number=110),
    ]
    seen = server(requests, lines=lines)
    ledger, by_phase = shares(seen)
    waits = sum(entry.share for entry in ledger.entries if entry.phase == "preprocess" and entry.activity == "wait")
    assert waits > 0.6 and sum(by_phase.values()) == pytest.approx(1.0)
    verdict = fired(queue.judge(seen))
    assert (verdict.id, verdict.subtype, verdict.where[0].line) == ("queue-bound", "held", 42)


def test_of_threads_with_a_request_each_the_line_is_named_at_which_most_of_them_wait():
    """Four requests are always under way, one of which holds a lock while it waits for a photo."""
    requests = [
        RequestRecord(end=START + n / 40 + 0.1, seconds=0.1, queue=0.0, preprocess=0.095, model=0.005)
        for n in range(1200)
    ]
    threads = [
        replace(line("read", share, activity=activity, number=number, handler="thread"), thread=f"Thread-{name}")
        for name in range(4)
        for share, activity, number in ((0.7, "wait-lock", 61), (0.2, "wait", 40), (0.05, "native", 50))
    ]
    seen = server(requests, lines=[*threads, line("<module>", 1.0, activity="wait-queue", number=135)])
    verdict = fired(queue.judge(seen))
    assert (verdict.id, verdict.subtype, verdict.where[0].line) == ("queue-bound", "held", 61)
    assert 50 not in [where.line for where in verdict.where]


def test_a_thread_that_sleeps_is_what_held_requests_may_wait_for():
    """A process that runs the model mostly rests, while a thread with a request waits for one that a timer wakes."""
    lines = [
        line("infer", 0.2, phase="forward", activity="native", number=24),
        line("run_worker", 0.8, activity="wait-queue", number=48),
        replace(line("verify", 1.0, activity="wait-lock", number=37, handler="thread"), thread="Thread-1", samples=100),
        replace(line("_collect", 1.0, activity="sleep", number=41), thread="collector", samples=100),
    ]
    there = [ThreadShare(pid=RANK, thread=name, samples=100) for name in ("MainThread", "Thread-1", "collector")]
    rests = ProcessStacks(pid=RANK, role="rank", samples=100, phases=Phases(forward=0.2))
    stacks = Stacks(seconds=10.0, samples=300, processes=(rests,), lines=tuple(lines), threads=tuple(there))
    verdict = fired(queue.judge(server(seen={"stacks": stacks})))
    assert (verdict.subtype, verdict.where[0].line) == ("held", 41)
    assert any("sleeps at train.py:41" in each for each in verdict.evidence) and "sleep" in verdict.fixes[0].text


def test_iterations_of_a_loop_that_calls_handlers_make_input_and_output():
    made = line("decode", 0.1, position="before", number=12, handler="request-loop")
    by_phase = shares(server((), engine_turns(**PARTS), lines=[made]))[1]
    assert by_phase["preprocess"] == pytest.approx(0.08) and by_phase["postprocess"] == pytest.approx(0.12)
    assert "prepare" not in by_phase


def test_idle_time_is_no_loss():
    seen = server(Server().answer(at_random(10.0)), lines=[line("run", 0.8, activity="wait-queue", number=9)])
    assert computing.compute_bound(seen).level >= 0.5
    for judge in (host.judge, gil.judge, preprocessing.judge):
        assert level(judge(seen)) == 0.0


def test_host_time_of_an_engine_is_named_by_its_phases():
    verdict = fired(host.judge(server((), engine_turns(**PARTS))))
    assert verdict.subtype == "iteration" and verdict.share == pytest.approx(0.32, abs=0.01)
    assert any("scheduling 8 %" in sentence and "handling outputs 12 %" in sentence for sentence in verdict.evidence)
    assert (verdict.severity, verdict.speedup) == ("info", None)
    full = [replace(record, end=START + 0.08 * (n + 1), idle=0.0) for n, record in enumerate(engine_turns(**PARTS))]
    verdict = fired(host.judge(server((), full)))
    assert (verdict.severity, verdict.share) == ("critical", pytest.approx(0.4, abs=0.01)) and verdict.speedup
    mostly = {"schedule": 0.002, "prepare": 0.002, "model": 0.07, "sample": 0.002, "output": 0.002}
    assert level(host.judge(server((), engine_turns(**mostly)))) < host.judge.leave


# handlers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "handler"),
    [
        (("user/app.py:90 <module>", LOOP, "user/app.py:31 answer"), "event-loop"),
        (("user/app.py:90 <module>", LOOP), None),
        (("anyio/_backends/_asyncio.py:1120 WorkerThread.run", "user/app.py:31 answer"), "thread"),
        ((f"{LITSERVE}:92 SingleLoop.run_single_loop", "litserve/loops/base.py:44 _inject_context", "user/app.py:7 f"),
         "request-loop"),
        (("user/app.py:90 <module>",), None),
    ],
)  # fmt: skip
def test_what_calls_a_line_for_a_request(frames, handler):
    assert read_stack(stack(*frames)).handler == handler


def test_a_handler_that_sleeps_does_not_rest():
    sleeping = line("answer", 0.3, activity="sleep", number=31, handler="event-loop")
    polling = line("main", 0.3, activity="sleep", number=9)
    seen = server(lines=[sleeping, polling, line("run", 0.4, activity="wait-queue", number=99)])
    rests = {entry.line: takes_request(entry) for entry in seen.ledgers[0].entries if entry.where}
    assert rests == {31: False, 9: True, 99: True}
    verdict = fired(host.judge(seen))
    assert (verdict.subtype, verdict.where[0].line) == ("event-loop", 31)
    assert "asyncio.to_thread" in verdict.fixes[0].text


def test_a_request_that_stands_in_line_is_no_host_code():
    """Threads that wait for the model's lock: the one that has it is the limit."""
    waits = line("do_POST", 0.7, activity="wait-lock", number=17, handler="thread")
    seen = server(lines=[waits, line("do_POST", 0.3, phase="forward", activity="native", number=18)])
    assert level(host.judge(seen)) == 0.0
    reads = replace(waits, activity="wait", work="decode", text="json.load(file)")
    works = line("do_POST", 0.3, phase="forward", activity="native", number=18)
    assert fired(host.judge(server(lines=[reads, works]))).where[0].line == 17, "what a library works for waits for it"


def test_a_service_that_a_handler_asks_blocks_the_event_loop():
    """It is neither data that steps wait for, nor the making of input, nor a matter of some steps only."""
    asks = line("answer", 0.3, activity="wait-network", work="network", position="before", number=31,
                handler="event-loop")  # fmt: skip
    seen = server(lines=[asks, line("answer", 0.7, phase="forward", activity="native", number=33)])
    for judge in (input_bound.judge, preprocessing.judge, between_steps.host_io):
        assert level(judge(seen)) == 0.0
    verdict = fired(host.judge(seen))
    assert (verdict.subtype, verdict.where[0].line) == ("event-loop", 31)


def test_a_few_samples_between_two_requests_say_nothing_of_the_loop():
    """A server that waits for requests nearly always: the little that is left is of two samples."""
    answers = line("answer", 0.02, activity="native", number=31, handler="event-loop")
    seen = server(lines=[answers, line("run", 0.98, activity="wait-queue", number=99)])
    assert "stack samples of its work are needed" in host.judge(seen).reason


def test_the_loop_of_a_library_tells_what_comes_before_the_model():
    """LitServe calls one method after the other: what those above the model's call do makes its input."""
    top = f"{LITSERVE}:%d SingleLoop.run_single_loop"
    inject = "litserve/loops/base.py:44 _inject_context"
    made = stack(top % 92, inject, "user/api.py:12 Api.a")
    called = stack(top % 100, inject, "user/api.py:20 Api.b", "torch/nn/modules/module.py:1 Module._call_impl")
    after = stack(top % 108, inject, "user/api.py:31 Api.c")
    seen = window(10.0, *((7, "MainThread", True, frames, 20) for frames in (made, called, after)))
    view = StackView().view([seen], {7: "rank"}, 0.0)
    positions = {hot_line.line: (hot_line.phase, hot_line.position, hot_line.handler) for hot_line in view.lines}
    assert positions[12] == ("outside", "before", "request-loop")
    assert positions[20][0] == "forward" and positions[31] == ("outside", "after", "request-loop")


def test_an_engine_that_is_a_library_has_a_ledger_without_lines():
    core = "vllm/v1/engine/core.py:%d EngineCoreProc.run_busy_loop"
    waits = stack(core % 1, "vllm/v1/engine/core.py:9 EngineCoreProc._process_input_queue", "std/queue.py:1 Queue.get")
    plans = stack(core % 2, "vllm/v1/core/sched/scheduler.py:9 Scheduler.schedule")
    seen = window(10.0, (7, "MainThread", True, waits, 30), (7, "MainThread", True, plans, 10))
    (process,) = StackView().view([seen], {7: "rank"}, 0.0).processes
    told = {(entry.phase, entry.activity): entry.share for entry in process.lineless}
    assert told["idle", "wait-queue"] == pytest.approx(0.75)
    assert sum(share for (phase, _), share in told.items() if phase == "schedule") == pytest.approx(0.25)


# the process that takes the requests ----------------------------------------------------------------------------------

FRONT = 300


def of_front(activity, share, handler):
    """A line of the process that takes the requests."""
    return replace(line("answer", share, pid=FRONT, number=31, activity=activity, handler=handler), role="other")


def behind_front(active, *, making, idle=0.5, lines=()):
    """A model that waits for requests for a part of the time, behind a process that takes them."""
    own = [
        line("run", idle, activity="wait-queue", number=9),
        line("run", 1.0 - idle, phase="forward", activity="native", number=12),
    ]
    lineless = (Lineless("preprocess", "python", making), Lineless("outside", "python", max(0.0, active - making)))
    stacks = Stacks(
        seconds=5.0,
        samples=200,
        processes=(
            ProcessStacks(pid=RANK, role="rank", samples=100, phases=Phases(forward=1.0 - idle)),
            ProcessStacks(pid=FRONT, role="other", samples=100, phases=Phases(), lineless=lineless),
        ),
        lines=(*own, *lines),
        threads=(ThreadShare(pid=FRONT, thread="MainThread", samples=100, active=active, gil=active),),
    )
    return server(seen={"stacks": stacks})


@pytest.mark.parametrize(
    ("making", "judge", "other"), [(0.7, preprocessing, gil), (0.1, gil, preprocessing)], ids=["tokenises", "streams"]
)
def test_a_front_whose_core_is_full(making, judge, other):
    seen = behind_front(0.98, making=making)
    verdict = fired(judge.judge(seen))
    assert verdict.subtype == "one-core" and verdict.speedup == pytest.approx(2.0, abs=0.01)
    assert "--api-server-count" in verdict.fixes[0].text
    assert level(other.judge(seen)) == 0.0


@pytest.mark.parametrize(("active", "idle"), [(0.5, 0.5), (0.98, 0.02)], ids=["half busy", "model is the limit"])
def test_a_front_that_is_not_the_limit(active, idle):
    seen = behind_front(active, making=0.3, idle=idle)
    assert level(gil.judge(seen)) == level(preprocessing.judge(seen)) == 0.0


@pytest.mark.parametrize("activity", ["sleep", "python"])
def test_a_handler_that_blocks_the_loop_of_another_process(activity):
    seen = behind_front(0.1, making=0.05, lines=[of_front(activity, 0.4, "event-loop")])
    verdict = fired(host.judge(seen))
    assert (verdict.subtype, verdict.where[0].line, verdict.where[0].pid) == ("event-loop", 31, FRONT)
    assert verdict.share == pytest.approx(0.4)


@pytest.mark.parametrize("activity", ["wait-queue", "python"])
def test_a_library_that_hands_requests_on_blocks_no_loop(activity):
    hands = of_front(activity, 0.4, "event-loop")
    hands = replace(hands, file="/env/lib/python3.11/site-packages/anyio/_backends/_asyncio.py")
    assert level(host.judge(behind_front(0.1, making=0.05, lines=[hands]))) == 0.0


def test_code_of_libraries_without_a_line_works_for_storage_only_while_it_waits():
    lineless = (Lineless("outside", "native", 0.07), Lineless("outside", "wait-disk", 0.025))
    process = ProcessStacks(pid=RANK, role="rank", samples=100, phases=Phases(forward=0.9), lineless=lineless)
    works = line("run", 0.9, phase="forward", activity="native", number=12)
    seen = server(seen={"stacks": Stacks(seconds=5.0, samples=100, processes=(process,), lines=(works,))})
    assert level(between_steps.host_io(seen)) < between_steps.host_io.enter


def test_a_thread_for_each_request_is_no_front():
    """Such a process has no loop that could be full, however long one of its requests sleeps."""
    seen = behind_front(1.0, making=0.0, lines=[of_front("wait", 1.0, "thread")])
    assert level(gil.judge(seen)) == level(host.judge(seen)) == 0.0


def test_an_engine_beside_the_process_that_runs_the_model_has_a_ledger_of_its_own():
    seen = behind_front(0.3, making=0.1)
    seen = replace(seen, serving=replace(seen.serving, pid=FRONT, iterations=tuple(turns(50))))
    assert [ledger.pid for ledger in with_ledgers(seen).ledgers] == [RANK, FRONT]
    assert with_ledgers(seen).ledgers[1].unit == "iteration"
