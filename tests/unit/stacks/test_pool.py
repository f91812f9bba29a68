"""Threads that take the same work in turns, as one worker."""

from __future__ import annotations

import msgspec
import pytest
from stack_maker import stack, state, window

from aitop.model.stacks import Look
from aitop.stacks.view import StackView
from aitop.ui.panes.code.hot_lines import hot_rows

PID = 7
BOOT = ("std/threading.py _bootstrap", "std/threading.py _bootstrap_inner")
SELECTS = stack("user/serve.py:60 main | server.serve_forever()", "std/selectors.py:415 select")
POOL = (*BOOT, "std/threading.py run", "std/concurrent/futures/thread.py _worker")
RESTS = stack(*POOL, "std/queue.py get")
MODEL = stack(*POOL, "user/serve.py:23 predict | model(x)", "torch/nn/modules/module.py _wrapped_call_impl")
CLIENT = (*BOOT, "std/socketserver.py process_request_thread", "std/http/server.py handle_one_request")
GATE = stack(*CLIENT, "user/serve.py:40 do_POST | with gate:", "std/threading.py acquire")
SCORES = stack(*CLIENT, "user/serve.py:41 do_POST | out = model(x)", "torch/nn/modules/module.py _wrapped_call_impl")
HEARS = stack(*CLIENT, "std/socket.py readinto")
PAUSES = stack(*CLIENT, "user/serve.py:39 do_GET | time.sleep(0.02)")
WRITES = stack(*BOOT, "user/serve.py:80 flush | file.write(line)")


def process_of(*threads, looks=100):
    samples = [(PID, name, False, frames, count) for name, *each in threads for frames, count in each]
    stacks = StackView().view((window(2.0, (PID, "MainThread", True, SELECTS, looks), *samples),), {PID: "rank"}, 0.0)
    (process,) = stacks.processes
    lines = {
        (line.line, line.phase): round(line.share, 3)
        for line in stacks.lines
        if line.thread == process.thread and line.share
    }
    return process, lines, stacks


def test_a_server_is_as_busy_as_all_threads_of_its_pool_together():
    """Each of four rests for three quarters of the time; the server never does."""
    process, lines, stacks = process_of(*((f"pool_{n}", (MODEL, 25), (RESTS, 75)) for n in range(4)))
    assert process.pool.threads == ("pool_0", "pool_1", "pool_2", "pool_3")
    assert (process.samples, process.pool.working, process.pool.standing) == (100, 1.0, 0.0)
    assert lines == {(23, "forward"): 1.0}
    assert process.phases.forward == 1.0
    assert {line.thread for line in stacks.lines} == {"pool_0", "MainThread"}


def test_a_pool_rests_only_while_none_of_its_threads_works():
    process, lines, _ = process_of(*((f"pool_{n}", (MODEL, 10), (RESTS, 90)) for n in range(4)))
    assert lines == {(23, "forward"): 0.4}
    assert {(entry.phase, entry.activity): entry.share for entry in process.lineless} == {
        ("outside", "wait-queue"): pytest.approx(0.6)
    }


def test_requests_that_wait_for_each_other_stand_in_line():
    """Five of six threads wait at a lock: the server computes all the time, and each request waits for five others."""
    process, lines, _ = process_of(*((f"Thread-{n}", (SCORES, 17), (GATE, 83)) for n in range(6)))
    assert lines == {(41, "forward"): 1.0}
    assert process.pool.working == pytest.approx(1.0, abs=0.03)
    assert process.pool.standing == pytest.approx(5.0, abs=0.03)
    assert [(line.line, line.share) for line in process.pool.lines] == [(40, 1.0)]


def test_who_asks_a_service_while_others_stand_behind_it_holds_the_server_up():
    """The kernel says of a socket with a time limit that it is polled; of the other five that they wait for a lock."""
    asks = stack(
        *CLIENT, "user/serve.py:42 do_POST | features = get(url)", "requests/api.py get", "std/socket.py readinto"
    )
    names = [f"Thread-{number}" for number in range(6)]
    samples = [
        (PID, name, False, frames, count) for name in names for frames, count in ((GATE, 100), (asks, 19), (SCORES, 1))
    ]
    states = tuple(state(PID, 100, running=0, thread=name, lock=83, other=17) for name in names)
    seen = msgspec.structs.replace(window(2.0, (PID, "MainThread", True, SELECTS, 120), *samples), states=states)
    stacks = StackView().view((seen,), {PID: "rank"}, 0.0)
    (process,) = stacks.processes
    assert (process.pool.asking, process.pool.standing) == (pytest.approx(0.95), pytest.approx(5.0))
    [most] = [line for line in stacks.lines if line.thread == process.thread and line.share > 0.1]
    assert (most.line, most.activity, most.share) == (42, "wait-network", pytest.approx(0.95, abs=0.01))


def test_a_wait_of_which_nothing_is_known_is_no_standing_in_line():
    """Of threads that end soon the kernel is not asked what they wait for: on a crowded machine it is a core."""
    read = (*CLIENT, "user/serve.py:30 read | x = torch.tensor(pixels)")
    kept = [(f"Thread-{number}", (SCORES, 3), (stack(*read), 3)) for number in range(12)]
    samples = [(PID, name, False, frames, count) for name, *each in kept for frames, count in each]
    looks = [Look(kind="cpu", pid=PID, asked=50, stacks=())]
    seen = msgspec.structs.replace(window(2.0, (PID, "MainThread", True, SELECTS, 100), *samples), looks=tuple(looks))
    stacks = StackView().view((seen,), {PID: "rank"}, 0.0)
    (process,) = stacks.processes
    assert {line.activity for line in stacks.lines if line.thread == process.thread} == {"wait"}
    assert (process.pool.working, process.pool.standing) == (pytest.approx(0.72), 0.0)


def test_threads_of_one_name_are_a_pool_where_several_are_in_each_look():
    process, lines, _ = process_of(("AnyIO worker thread", (MODEL, 60), (RESTS, 540)))
    assert process.pool.threads == ("AnyIO worker thread",)
    assert lines == {(23, "forward"): 0.6}
    alone, lines, _ = process_of(("AnyIO worker thread", (MODEL, 60), (RESTS, 40)))
    assert alone.pool is None
    assert lines == {(23, "forward"): 0.6}


def test_a_thread_with_work_of_its_own_belongs_to_no_pool():
    process, lines, stacks = process_of(
        ("pool_0", (MODEL, 50), (RESTS, 50)), ("pool_1", (MODEL, 30), (RESTS, 70)), ("flusher", (WRITES, 100))
    )
    assert process.pool.threads == ("pool_0", "pool_1")
    assert lines == {(23, "forward"): 0.8}
    assert "flusher" in {line.thread for line in stacks.lines}
    assert "flusher" in {tree.thread for tree in stacks.trees}


def test_threads_of_kept_connections_lead_however_little_each_of_them_does():
    names = [f"Thread-{number}" for number in range(6)]
    process, _, _ = process_of(*((name, (PAUSES, 5), (HEARS, 95)) for name in names))
    assert process.pool.threads == tuple(names)


def test_a_line_of_a_pool_is_one_row_with_the_number_of_its_threads():
    _, _, stacks = process_of(*((f"pool_{n}", (MODEL, 10), (RESTS, 90)) for n in range(4)))
    rows = [(row.who, round(row.share, 2)) for row in hot_rows(stacks) if row.line == 23]
    assert rows == [("pool ×4", 0.4)]
