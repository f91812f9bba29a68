"""queue-bound, and what more replicas or larger batches would give, against servers of which the answer is known."""

from __future__ import annotations

import random

import pytest
from judgements import fired, level, unjudged
from msgspec.structs import replace
from served_maker import START, Server, at_random, closed, server, serving, turns
from snapshot_builder import RANK, constant, host, line, snapshot, steps

from aitop.diagnosis.causes import underbatched
from aitop.diagnosis.causes.serving import queue
from aitop.diagnosis.queueing import change, load_of
from aitop.diagnosis.what_if import least_squares, turn_cost
from aitop.model.serving import IterationRecord, RequestRecord
from aitop.model.snapshot import Cost

CROWD = closed(8, 0.05)


@pytest.mark.parametrize("rate", [5.0, 25.0])
def test_a_server_at_half_load_is_quiet(rate):
    judged = queue.judge(server(Server().answer(at_random(rate))))
    assert level(judged) == 0.0


def test_a_server_that_keeps_up_is_no_warning():
    verdict = fired(queue.judge(server(Server().answer(at_random(40.0)))))
    assert (verdict.id, verdict.severity) == ("queue-bound", "info")
    assert "at random" in verdict.title


def test_clients_that_wait_behind_each_other():
    verdict = fired(queue.judge(server(CROWD, requests_per_second=20.0)))
    assert verdict.id == "queue-bound" and verdict.share == pytest.approx(7 / 8, abs=0.03)
    assert verdict.severity == "warning"
    assert any("8 clients" in line for line in verdict.evidence)


@pytest.mark.parametrize(("call", "waits"), [(0.001, True), (0.3, False)], ids=["a token a call", "a whole prompt"])
def test_streamed_answers_whose_first_part_comes_late(call, waits):
    """Nothing tells when such a server begins with a request; the calls of its model are timed."""
    streamed = [replace(record, queue=0.0, model=None, first_sent=record.queue + 0.01) for record in CROWD]

    def judged(busy):
        rests = [line("recv", 1.0 - busy, activity="wait-queue", number=20)] if busy < 1.0 else []
        lines = [line("infer", busy, phase="forward", activity="native"), *rests]
        calls = {"records": steps(200, seconds=call, kind="infer", forward=busy * call)}
        return queue.judge(server(streamed, requests_per_second=20.0, seen=calls, lines=lines))

    assert (level(judged(1.0)) > queue.judge.enter) is waits
    assert level(judged(0.6)) < queue.judge.enter, "the model often rests: a request waits for something else, too"
    if waits:
        verdict = fired(judged(1.0))
        assert verdict.share == pytest.approx(7 / 8, abs=0.05) and "continuous batching" in verdict.fixes[0].text


def test_the_lines_that_make_requests_dear():
    lines = (
        line("opening", 0.6, phase="forward", activity="native", number=30),
        line("answer", 0.2, phase="forward", activity="native", number=56),
        line("model", 0.1, phase="forward", activity="native", file="/v/lib/python3.11/site-packages/engine/a.py"),
        line("recv", 0.1, activity="wait-queue", number=20),
    )
    verdict = fired(queue.judge(server(CROWD, lines=lines, requests_per_second=20.0)))
    assert [where.line for where in verdict.where] == [30, 56]
    assert any("train.py:30: 75 %" in fix.text for fix in verdict.fixes)


@pytest.mark.parametrize(
    ("used", "idle", "monitor", "gains"),
    [
        (1.0, 0.7, None, [1.7, 2.0]),
        (1.0, 0.4, 0.3, [1.7, 2.0]),
        (1.2, 0.0, None, [1.0, 2.0]),
        # Where a core is idle a replica here is as good as one elsewhere.
        (0.9, 1.1, None, [2.0]),
    ],
)
def test_a_replica_on_this_machine_gains_what_its_idle_cores_allow(used, idle, monitor, gains):
    seen = {"host": host(), "cost": Cost(monitor_cpu=monitor)}
    cores = {"cores_used": constant(used, 30), "cores_idle": constant(idle, 30)}
    fixes = [fix for fix in fired(queue.judge(server(CROWD, series=cores, seen=seen))).fixes if "replica" in fix.text]
    assert fixes[0].speedup == pytest.approx(gains[0], abs=0.01 if len(gains) > 1 else 0.1)
    assert [fix.speedup for fix in fixes[1:]] == pytest.approx(gains[1:], abs=0.1)
    assert len(gains) == 1 or "on this machine" in fixes[0].text


@pytest.mark.parametrize(("clients", "replicas"), [(8, 2), (3, 2), (2, 2), (8, 3)])
def test_what_replicas_give_to_clients_that_wait_for_their_answers(clients, replicas):
    now, then = closed(clients, 0.05), closed(clients, 0.05, slots=replicas, seed=11)
    changed = change(load_of(now), replicas=replicas)
    real = len(then) / len(now)
    low, high = changed.length.speedup_range
    assert changed.length.speedup == pytest.approx(real, rel=0.1) and low <= real <= high
    assert changed.latency == pytest.approx(sum(record.seconds for record in then) / len(then), rel=0.15)


def test_a_replica_beside_two_is_half_as_much_again():
    requests = [replace(record, pid=RANK + number % 2) for number, record in enumerate(closed(8, 0.05, slots=2))]
    fixes = fired(queue.judge(server(requests))).fixes
    replica = next(fix for fix in fixes if "replica" in fix.text)
    assert replica.speedup == pytest.approx(1.5, abs=0.1)


def test_a_worker_beside_four_that_make_turns_is_a_quarter_more():
    requests = closed(16, 0.05, slots=4)
    fixes = fired(queue.judge(server(requests, engines=4))).fixes
    replica = next(fix for fix in fixes if "replica" in fix.text)
    assert replica.speedup == pytest.approx(1.25, abs=0.1)


def test_an_answer_on_its_way_back_keeps_no_other_request_waiting():
    back = 0.02
    delayed = []
    for record in CROWD:
        worked = record.seconds - record.queue
        whole = replace(record, end=record.end + back, seconds=record.seconds + back)
        delayed.append(replace(whole, preprocess=0.1 * worked, model=0.8 * worked, postprocess=0.1 * worked))
    load = load_of(delayed)
    assert load.slots == 1 and load.back == pytest.approx(back)
    assert change(load, replicas=2).length.speedup == pytest.approx(2.0, abs=0.15)


def test_requests_that_come_by_themselves_are_answered_sooner_and_not_more_often():
    arrivals = at_random(45.0)
    now, then = Server().answer(arrivals), Server(slots=2).answer(arrivals)
    load = load_of(now)
    assert load.clients is None
    changed = change(load, replicas=2)
    assert changed.length.speedup == pytest.approx(1.0, abs=0.05)
    assert changed.latency == pytest.approx(sum(record.seconds for record in then) / len(then), rel=0.25)


def test_requests_that_pile_up_gain_what_is_missing():
    arrivals = at_random(75.0)
    now, then = Server().answer(arrivals), Server(slots=2).answer(arrivals)
    rates = [len(each) / (each[-1].end - each[0].end) for each in (now, then)]
    assert change(load_of(now), replicas=2).length.speedup == pytest.approx(rates[1] / rates[0], rel=0.1)


def batches(limit, fixed=0.04, each=0.002):
    """A server that takes up to `limit` waiting requests at once, of which more and more come."""
    chance = random.Random(4)
    pending = sorted(
        [*at_random(40.0, START + 12.0), *(12.0 + time for time in at_random(110.0, START + 15.0, seed=9))]
    )
    time, requests, iterations = START, [], []
    while pending and time < START + 29:
        time = max(time, pending[0])
        taken = [record for record in pending[:limit] if record <= time]
        del pending[: len(taken)]
        seconds = (fixed + each * len(taken)) * chance.uniform(0.97, 1.03)
        time += seconds
        requests += [
            RequestRecord(end=time, seconds=time - arrival, queue=time - seconds - arrival, model=seconds)
            for arrival in taken
        ]
        iterations.append(IterationRecord(end=time, seconds=seconds, requests=len(taken), idle=0.0))
    return requests, iterations


def test_twice_as_large_batches():
    requests, iterations = batches(4)
    verdict = fired(queue.judge(server(requests, iterations, queue=20.0, concurrency=24.0)))
    bigger = next(fix for fix in verdict.fixes if fix.setting is not None)
    assert (bigger.setting.current, bigger.setting.to) == (4, 8)
    then = batches(8)[0]
    real = (len(then) / (then[-1].end - START)) / (len(requests) / (requests[-1].end - START))
    assert bigger.speedup == pytest.approx(real, rel=0.1)
    latency = sum(record.seconds for record in then) / len(then)
    assert change(load_of(requests, batch=4, cost=turn_cost(iterations)), batch=8).latency == pytest.approx(
        latency, rel=0.25
    )


def test_batches_that_are_all_alike_do_not_tell_what_larger_ones_take():
    requests, iterations = batches(1)
    assert change(load_of(requests, batch=1, cost=turn_cost(iterations)), batch=2) is None


@pytest.mark.parametrize(("requests", "said"), [(1, True), (4, False)])
def test_where_each_request_has_a_call_of_the_model_to_itself_they_could_share_one(requests, said):
    calls = [
        IterationRecord(end=START + 0.05 * (number + 1), seconds=0.05, idle=0.0, requests=requests)
        for number in range(400)
    ]
    verdict = fired(queue.judge(server(CROWD, calls, requests_per_second=20.0)))
    assert any("with one call of the model" in fix.text and fix.speedup is None for fix in verdict.fixes) is said


def test_an_idle_server_whose_requests_wait_lacks_no_capacity():
    held = [replace(record, queue=record.seconds * 0.8) for record in Server().answer(at_random(5.0))]
    assert level(queue.judge(server(held))) == 0.0


def one_at_a_time(works, *, samples=1, concurrency=6.0):
    """Two processes that run the model, each at work for this part of the time, and requests under way all the time."""
    made = steps(seconds=0.02, forward=0.02 * works, samples=samples, kind="infer")
    lines = [
        line("infer", works, phase="forward", activity="native"),
        line("recv", 1.0 - works, activity="wait-queue", number=20),
    ]
    requests = serving(closed(6, 0.02), concurrency=concurrency, pid=RANK + 5)
    seen = snapshot(made, lines=lines, kind="inference", serving=requests)
    [ledger] = seen.ledgers
    return replace(seen, ledgers=(ledger, replace(ledger, pid=RANK + 1)))


def test_requests_that_wait_beside_processes_that_rest_are_held():
    verdict = fired(queue.judge(one_at_a_time(0.4)))
    assert (verdict.id, verdict.subtype, verdict.severity) == ("queue-bound", "held", "warning")
    assert verdict.share == pytest.approx(1 - 0.8 / 6, abs=0.05)
    assert "semaphore" in verdict.fixes[0].text and verdict.speedup is None
    for other in (one_at_a_time(0.95), one_at_a_time(0.4, concurrency=1.0), one_at_a_time(0.4, samples=8)):
        assert getattr(getattr(queue.judge(other), "verdict", None), "subtype", None) is None


def test_metrics_alone_tell_that_requests_wait():
    seen = server(basis="metrics", queue=20.0, concurrency=28.0, requests_per_second=30.0)
    verdict = fired(queue.judge(seen))
    assert verdict.share == pytest.approx(20 / 28, abs=0.01)
    assert verdict.confidence <= 0.5 and verdict.speedup is None, "nothing tells what a replica would give"
    assert level(queue.judge(server(basis="metrics", queue=0.0, concurrency=5.0))) == 0.0


def test_what_was_preempted_waits_once_more():
    """Half of all requests wait at any time, most of them not for their first turn."""
    requests = [replace(record, queue=0.2 * record.seconds) for record in CROWD]
    verdict = fired(queue.judge(server(requests, concurrency=8.0, queue=5.0)))
    assert verdict.share == pytest.approx(5 / 8)


def test_unmeasured_waits_are_said():
    assert "not measured" in unjudged(queue.judge(server(basis="stacks")))


def test_an_engine_with_a_full_cache_gains_by_a_replica_and_not_by_a_higher_limit():
    full = server(
        [RequestRecord(end=START + n / 30, seconds=1.0, queue=0.7) for n in range(900)],
        [replace(record, waiting=20, kv_used=0.97) for record in turns(900)],
        queue=20.0, concurrency=33.0, kv_used=0.97,
    )  # fmt: skip
    verdict = fired(queue.judge(full))
    assert verdict.fixes[0].text.startswith("one replica more") and verdict.speedup == pytest.approx(2.0, abs=0.2)
    assert any("97 % full" in line for line in verdict.evidence)


# the cost of an iteration ---------------------------------------------------------------------------------------------


def test_the_cost_of_iterations_is_found_again():
    cost = turn_cost(turns(fixed=0.01, each=0.0005, prompt=0.00005))
    assert cost.fixed == pytest.approx(0.01, rel=0.1)
    assert cost.decode == pytest.approx(0.0005, rel=0.1) and cost.prefill == pytest.approx(0.00005, rel=0.1)
    assert cost.error < 0.06
    length = cost.with_batch(8, 16)
    real = (0.01 + 0.0005 * 16) / 16 / ((0.01 + 0.0005 * 8) / 8)
    assert length.likely == pytest.approx(real, rel=0.05)


def test_a_few_iterations_that_were_held_up_do_not_spoil_it():
    held = [
        replace(record, seconds=record.seconds + 0.5) if n % 40 == 0 else record for n, record in enumerate(turns())
    ]
    assert turn_cost(held).fixed == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    "measured",
    [turns(20), turns(noise=0.5), [replace(record, decode_tokens=8) for record in turns()]],
    ids=["too few", "too unlike", "all alike"],
)
def test_too_few_or_equal_iterations_give_no_cost(measured):
    assert turn_cost(measured) is None


def test_least_squares_needs_columns_that_differ():
    assert least_squares([(1.0, 2.0), (1.0, 3.0), (1.0, 4.0)], [5.0, 7.0, 9.0]) == pytest.approx([1.0, 2.0])
    assert least_squares([(1.0, 2.0), (1.0, 2.0)], [5.0, 7.0]) is None


# underbatched ---------------------------------------------------------------------------------------------------------


def small(waiting, **fields):
    chance = random.Random(1)
    turn = [
        (requests, 0.02 + 0.001 * requests) for requests in (chance.choice([1, 1, 2, 3]) for _ in range(300))
    ]  # fmt: skip
    made = [
        IterationRecord(end=START + n * 0.025, seconds=seconds, idle=0.0, requests=requests, decode_tokens=requests)
        for n, (requests, seconds) in enumerate(turn)
    ]
    return server((), made, queue=waiting, **fields)


def test_a_full_cache_has_no_room_for_larger_batches():
    assert level(underbatched.judge(small(12.0, kv_used=0.97))) == 0.0
    assert fired(underbatched.judge(small(12.0, kv_used=0.3))).fixes[0].setting.to == 5


def test_an_engine_with_small_batches_while_requests_wait():
    verdict = fired(underbatched.judge(small(12.0)))
    assert verdict.id == "underbatched" and verdict.fixes[0].setting.to >= 12
    now, then = (0.02 + 0.001 * 1.75) / 1.75, (0.02 + 0.001 * 14) / 14
    assert verdict.speedup == pytest.approx(now / then, rel=0.1)
    assert level(underbatched.judge(small(0.0))) == 0.0, "none waits: they are as large as they can be"
