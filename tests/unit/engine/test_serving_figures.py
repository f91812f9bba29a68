"""Figures of a server from what the hook saw of its requests and iterations."""

import msgspec
import pytest
from served_past import (
    API,
    ENGINE,
    NOW,
    WORKERS,
    figures,
    hook,
    request,
    served_past,
    spread,
    tree,
    turn,
    without_pids,
)
from snapshot_builder import host, process

from aitop.engine.core import Engine
from aitop.engine.history import KEEP_REQUESTS
from aitop.engine.snapshot.serving import serving
from aitop.model.serving import Pause, Percentiles, Serving
from aitop.model.snapshot import Target, Tick
from aitop.model.source import SourceStatus
from aitop.model.steps import StepRecord


def test_percentiles_are_exact():
    requests = tuple(request(90.0 + index / 100, (index + 1) / 1000) for index in range(1000))
    served = figures(hook(API, 90.0, alive=0), hook(API, requests=requests))
    assert served.basis == "hook" and served.pid == API
    assert served.latency == Percentiles(p50=0.501, p95=0.951, p99=0.991)
    assert served.first_token is None and served.inter_token is None
    assert without_pids(served.requests) == requests


def test_a_request_that_lasts_is_under_way_whatever_ends_beside_it():
    looks = [hook(API, NOW - ago, alive=1, requests=(request(NOW - ago, 0.002),)) for ago in range(20, -1, -1)]
    served = figures(hook(API, NOW - 21, alive=0), *looks)
    assert served.under_way == {API: NOW - 20}
    assert served.concurrency == pytest.approx(20 / 21, abs=0.01)
    assert figures(*looks, hook(API, alive=0)).under_way == {}


def test_rates_are_of_the_time_that_was_watched():
    requests = spread(200, seconds=10.0, tokens=64, queue=0.05)
    served = figures(hook(API, 90.0, alive=0), hook(API, requests=requests, alive=4))
    assert served.requests_per_second == pytest.approx(20.0)
    assert served.tokens_per_second == pytest.approx(1280.0)
    assert served.concurrency == pytest.approx(4.0)
    assert served.queue == pytest.approx(1.0)
    assert served.alive == 4
    assert served.still == pytest.approx(0.0)


def test_what_is_not_measured_is_none():
    served = figures(hook(API, requests=spread(40)))
    unknown = ("tokens_per_second", "queue", "batch_mean", "kv_used", "preemptions_per_second", "alive", "inter_token")
    assert {name: getattr(served, name) for name in unknown} == dict.fromkeys(unknown)


def test_few_requests_are_looked_at_for_longer():
    slow = tuple(request(NOW - 95 + 8 * index, 8.0) for index in range(12))
    served = figures(hook(API, 1.0, alive=0), hook(API, requests=slow))
    assert len(served.requests) == 12 and served.requests_per_second == pytest.approx(12 / 99.0, rel=0.1)
    many = tuple(request(NOW - 110 + index / 10, 0.1) for index in range(1100))
    assert figures(hook(API, 1.0, alive=0), hook(API, requests=many)).requests[0].end >= NOW - 30.0


def test_more_requests_than_are_remembered_shorten_the_window():
    many = tuple(request(NOW - 20 + index / 1000, 0.001) for index in range(20_000))
    served = figures(hook(API, 1.0, alive=0), hook(API, requests=many))
    assert len(served.requests) == KEEP_REQUESTS
    assert served.requests_per_second == pytest.approx(1000.0, rel=0.01)


def test_iterations_tell_batch_queue_cache_and_the_time_between_tokens():
    state = {"idle": 0.0, "requests": 5, "decode_tokens": 5, "waiting": 2, "running": 5}
    state |= {"kv_used": 0.25, "preempted": 1}
    turns = tuple(turn(90.0 + 0.1 * index, 0.1, **state) for index in range(100))
    stalled = turn(100.5, 0.6, **state)
    served = figures(hook(ENGINE, 90.0), hook(ENGINE, 101.0, iterations=(*turns, stalled)), now=101.0)
    assert (served.pid, served.batch_mean, served.queue, served.kv_used) == (ENGINE, 5.0, 2.0, 0.25)
    assert served.concurrency == pytest.approx(7.0)
    assert served.requests_per_second is None  # nobody watched them
    assert served.tokens_per_second == pytest.approx(505 / 11.1, rel=0.02)
    assert served.preemptions_per_second == pytest.approx(101 / 11.1, rel=0.02)
    assert served.inter_token.p50 == pytest.approx(0.1) and served.inter_token.p95 == pytest.approx(0.1)
    assert served.still == pytest.approx(0.5)
    slow = msgspec.structs.replace(stalled, decode_tokens=50)
    served = figures(hook(ENGINE, 101.0, iterations=(*turns, slow)), now=101.0)
    assert served.inter_token.p99 == pytest.approx(0.6)  # weighted by the tokens that waited for it


def test_the_wait_for_requests_is_not_between_tokens():
    turns = (
        turn(90.0, decode_tokens=1, idle=0.0),
        turn(95.0, decode_tokens=1, idle=4.98),
        turn(95.03, decode_tokens=1),
    )
    assert figures(hook(ENGINE, iterations=turns)).inter_token == Percentiles(
        p50=pytest.approx(0.02), p95=pytest.approx(0.02), p99=pytest.approx(0.02)
    )


def test_the_same_request_in_two_processes_is_counted_once():
    outside, inside = spread(40, seconds=10.0), spread(41, seconds=10.0)
    inside = tuple(msgspec.structs.replace(record, seconds=0.15) for record in inside)
    parts = tree((API, "API server"), (ENGINE, "engine"))
    served = figures(
        parts, hook(API, requests=outside, alive=3), hook(ENGINE, requests=inside, alive=2, iterations=(turn(99.0),))
    )
    assert without_pids(served.requests) == outside and served.alive == 3
    assert served.pid == ENGINE and len(served.iterations) == 1
    health = hook(API, requests=(request(99.0, 5.0),))
    assert without_pids(figures(parts, health, hook(ENGINE, requests=inside)).requests) == inside


def test_the_engine_is_never_in_front_of_who_takes_its_requests():
    """Also where the slowest requests were over before the hook came into the front."""
    parts = tree((API, "API server"), (ENGINE, "engine"))
    inside = (request(89.0, 3.0), *spread(40, seconds=10.0))
    outside = tuple(msgspec.structs.replace(record, seconds=0.21) for record in inside[1:])
    served = figures(parts, hook(API, requests=outside), hook(ENGINE, requests=inside, iterations=(turn(99.0),)))
    assert without_pids(served.requests) == outside and served.pid == ENGINE


def test_a_request_of_the_front_has_the_parts_that_the_worker_knows():
    parts = tree((API, "API server"), (ENGINE, "worker"), engine="litserve")
    ends = [90.0 + index / 2 for index in range(10)]
    # Five at a time wait in line, and every other worker's end is noted after the answer.
    outside = tuple(request(end, 2.6, queue=0.1) for end in ends)
    known = {"queue": 2.0, "preprocess": 0.1, "model": 0.2, "first_token": 2.2}
    inside = tuple(
        request(end + late, 2.4 + late, postprocess=0.1 + late, **known)
        for end, late in zip(ends, (0.05, -0.05) * 5, strict=True)
    )
    served = figures(parts, hook(API, requests=outside), hook(ENGINE, requests=inside[1:]))
    assert without_pids(served.requests[:1]) == outside[:1], "nothing is known of it"
    for whole in served.requests[1:]:
        assert (whole.end - whole.seconds) % 0.5 == pytest.approx(0.4) and whole.seconds == 2.6
        way_back = 2.6 - whole.queue - whole.preprocess - whole.model - whole.postprocess
        assert min(abs(way_back - late) for late in (0.05, -0.05)) < 1e-9
        assert whole.queue == pytest.approx(whole.first_token - 0.2)
    assert [whole.end for whole in served.requests] == ends


def test_the_first_token_counts_until_it_is_sent_where_the_front_is_watched():
    parts = tree((API, "API server"), (ENGINE, "engine"))
    outside = spread(40, seconds=10.0, first_sent=0.05)
    inside = tuple(
        msgspec.structs.replace(record, seconds=0.19, first_token=0.03, first_sent=None) for record in outside
    )
    both = figures(parts, hook(API, requests=outside), hook(ENGINE, requests=inside))
    assert (both.first_token.p50, both.first_token_basis) == (0.05, "answer")
    assert [record.first_token for record in both.requests] == pytest.approx([0.04] * 40)
    alone = figures(parts, hook(ENGINE, requests=inside))
    assert (alone.first_token.p50, alone.first_token_basis) == (0.03, "model")
    whole = figures(hook(API, requests=spread(40, seconds=10.0)))
    assert (whole.first_token, whole.first_token_basis) == (None, None)


def test_workers_side_by_side_share_the_requests():
    parts = tree(*((pid, "worker") for pid in WORKERS), engine="litserve")
    samples = [hook(pid, requests=spread(40, seconds=10.0), alive=1) for pid in WORKERS]
    served = figures(parts, *(hook(pid, 90.0, alive=0) for pid in WORKERS), *samples)
    assert served.requests_per_second == pytest.approx(8.0)
    assert (served.alive, len(served.requests)) == (2, 80)
    assert [record.end for record in served.requests] == sorted(record.end for record in served.requests)
    assert {pid: len(served.requests_of(pid)) for pid in (*WORKERS, API)} == {WORKERS[0]: 40, WORKERS[1]: 40, API: 0}


def test_workers_count_for_as_long_as_they_live():
    """The hook comes into the second when half of the time is over, or later into the one that takes its place."""
    first, second, third = (*WORKERS, 22)

    def looks(*lives):
        for time in range(90, 101):
            parts = [(pid, "worker") for pid, begin, until in lives if begin <= time <= until]
            yield msgspec.structs.replace(tree(*parts, engine="gunicorn"), time=float(time))

    busy = hook(first, 90.0, alive=0), hook(first, requests=spread(40, seconds=10.0))
    late = hook(second, 95.0, alive=0), hook(second, requests=spread(20, seconds=5.0))
    served = figures(*looks((first, 90, 100), (second, 90, 100)), *busy, *late)
    assert served.requests_per_second == pytest.approx(8.0)
    assert (served.seconds, len(served.requests)) == (10.0, 60)
    gone = hook(second, 90.0, alive=0), hook(second, 95.0, requests=tuple(request(90.25 + n / 4) for n in range(20)))
    came = hook(third, 97.0, alive=0), hook(third, requests=spread(12, seconds=3.0))
    served = figures(*looks((first, 90, 100), (second, 90, 95), (third, 96, 100)), *busy, *gone, *came)
    assert len(served.requests) == 72, "also those of the one that has ended"
    assert served.requests_per_second == pytest.approx(8.0, rel=0.05)


def test_workers_that_the_hook_never_enters_count_by_their_cpu_time():
    """Three of four connections are with the first, and the hook is only in there, or only in the other."""
    busy, quiet = WORKERS

    def looks(*used):
        for time in range(90, 101):
            processes = tuple(
                process(pid, "other", part="worker", cpu=cpu) for pid, cpu in zip(WORKERS, used, strict=True)
            )
            yield msgspec.structs.replace(host(), time=float(time), processes=processes, engine="gunicorn")

    first = hook(busy, 90.0, alive=0), hook(busy, requests=spread(60, seconds=10.0))
    second = hook(quiet, 90.0, alive=0), hook(quiet, requests=spread(20, seconds=10.0))
    for seen in (first, second, (*first, *second)):
        assert figures(*looks(0.3, 0.1), *seen).requests_per_second == pytest.approx(8.0)
    # Without their CPU times nothing tells them apart, and an idle one answers nothing.
    assert figures(*looks(0.3, None), *first).requests_per_second == pytest.approx(12.0)
    assert figures(*looks(0.3, 0.0), *first).requests_per_second == pytest.approx(6.0)


def test_a_front_that_the_hook_entered_late_counts_from_then_on():
    looks = [
        msgspec.structs.replace(tree((API, "API server"), (ENGINE, "engine")), time=float(time))
        for time in range(90, 101)
    ]
    inside = spread(40, seconds=10.0, tokens=5)
    engine = hook(ENGINE, 90.0, alive=0), hook(ENGINE, requests=inside, iterations=(turn(99.0, decode_tokens=2),))
    served = figures(*looks, *engine, hook(API, 95.0, alive=0), hook(API, requests=spread(20, 5.0, tokens=5)))
    assert served.requests_per_second == pytest.approx(4.0)
    assert served.tokens_per_second == pytest.approx(20.0)


def test_pauses_of_every_process_and_requests_of_those_that_are_heard_of():
    pause, old = Pause(end=99.0, seconds=0.4, kind="collect"), Pause(end=1.0, seconds=0.4, kind="compile")
    assert without_pids(figures(hook(API, requests=spread(40)), hook(ENGINE, pauses=(old, pause))).pauses) == (pause,)
    sample = hook(API, 90.0, requests=spread(40, seconds=10.0)[:1], alive=7)
    assert [figures(sample, now=now).alive for now in (92.0, 94.0)] == [7, 0]


def test_a_standing_server_is_still_for_as_long():
    held = [hook(API, float(time), alive=7) for time in range(81, 101)]
    served = figures(hook(API, 80.0, requests=spread(40, seconds=10.0)[:1], alive=7), *held)
    assert (served.alive, served.still, served.still_pid) == (7, pytest.approx(NOW - 90.25), None)
    nothing = figures(hook(API, 80.0, alive=7), *held)
    assert (nothing.alive, nothing.still, nothing.requests_per_second) == (7, pytest.approx(20.0), 0.0)
    assert nothing.latency is None


def test_the_rest_before_a_request_is_no_standing_still():
    """The last request before it ended a minute ago; nothing was reported in between, or only that nobody asks."""
    earlier = hook(API, 40.0, requests=(request(39.9),), alive=0)
    for quiet in ((), (hook(API, 90.0, alive=0),)):
        served = figures(earlier, *quiet, *(hook(API, time, alive=1) for time in (98.0, 99.0, NOW)))
        assert (served.alive, served.still) == (1, pytest.approx(2.0))
    idle = figures(earlier, hook(API, NOW, alive=0))
    assert (idle.alive, idle.still, idle.still_pid) == (0, pytest.approx(NOW - 39.9), None)
    gone = [hook(API, float(time), alive=1) for time in range(60, 70)]
    assert figures(earlier, *gone, *(hook(API, time, alive=1) for time in (99.0, NOW))).still == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("turns", "still", "pid"), [((turn(79.9),), 20.0, WORKERS[0]), ((), 0.1, None)], ids=["engines", "workers"]
)
def test_an_engine_that_stands_still_is_told_whoever_else_gets_on(turns, still, pid):
    """A request of a worker without iterations may take long for reasons of its own."""
    parts = tree(*((pid, "worker") for pid in WORKERS), engine="litserve")
    stuck = [hook(WORKERS[0], 80.0, alive=1, iterations=turns)]
    stuck += [hook(WORKERS[0], float(time), alive=1) for time in range(81, 101)]
    busy = [
        hook(
            WORKERS[1], float(time), requests=(request(time - 0.1),), alive=1, iterations=turns and (turn(time - 0.1),)
        )
        for time in range(80, 101)
    ]
    served = figures(parts, *(sample for both in zip(stuck, busy, strict=True) for sample in both))
    assert (served.still, served.still_pid) == (pytest.approx(still), pid)


def test_whoever_asks_how_an_engine_is_gets_it_no_further():
    parts = tree((API, "API server"), (ENGINE, "engine"))
    asked = [hook(API, float(time), requests=(request(time - 0.1, 0.001),), alive=3) for time in range(80, 101)]
    hangs = [hook(ENGINE, 80.0, iterations=(turn(80.0),), requests=(request(79.0, tokens=9),), alive=3)]
    hangs += [hook(ENGINE, float(time), alive=3) for time in range(81, 101)]
    served = figures(parts, *sorted((*asked, *hangs), key=lambda one: one.time))
    assert (served.still, served.still_pid, served.requests) == (pytest.approx(20.0), ENGINE, ())
    # The front only waits for the engine, which makes long answers.
    works = [hook(ENGINE, float(time), iterations=(turn(time - 0.1),), alive=3) for time in range(80, 101)]
    waits = [hook(API, float(time), alive=3) for time in range(80, 101)]
    served = figures(parts, *sorted((*waits, *works), key=lambda one: one.time))
    assert (served.still, served.still_pid) == (pytest.approx(0.1), ENGINE)


def test_requests_that_reach_no_engine_count_only_before_it_is_watched():
    parts = tree((API, "API server"), (ENGINE, "engine"))
    asked = spread(40, seconds=20.0, cpu=0.001)
    inside = tuple(request(end, 3.0, tokens=64) for end in (93.0, 96.0, 99.0))
    outside = tuple(sorted((*asked, *(request(record.end + 0.01, 3.1) for record in inside)), key=lambda one: one.end))
    served = figures(parts, hook(API, requests=outside), hook(ENGINE, requests=inside, iterations=(turn(99.0),)))
    before = [record for record in served.requests if record.tokens is None]
    assert len(served.requests) - len(before) == 3 and {record.end < 93.0 for record in before} == {True}
    assert served.side_by_side == {ENGINE}


def test_requests_that_began_before_the_hook_came_in_do_not_lengthen_the_window():
    served = figures(hook(ENGINE, 90.0, requests=(request(89.9, 30.0, tokens=9),), alive=1, iterations=(turn(89.95),)))
    assert served.seconds == pytest.approx(10.1, abs=0.01)


def test_a_hook_that_is_read_late_or_has_left_lowers_no_rate():
    before, sample = hook(API, 90.0, alive=0), hook(API, requests=spread(100, seconds=10.0), alive=2)
    assert figures(before, sample, now=102.0).requests_per_second == pytest.approx(10.0)
    assert figures(before, sample, now=110.0).requests_per_second == pytest.approx(5.0)
    gone = served_past(before, sample, SourceStatus(time=101.0, source="hook", state="absent"))
    assert serving(gone, 120.0, "inference").requests_per_second == pytest.approx(10.0)


def test_a_server_of_which_nothing_is_measured_is_one_all_the_same():
    served = figures(tree((API, "API server")))
    assert served.basis == "stacks"
    assert served == Serving(basis="stacks")
    assert figures(tree((API, "API server")), kind="training") is None
    assert figures() is None and figures(hook(API, steps=(StepRecord(index=0, end=99.0, seconds=0.1),))) is None


@pytest.mark.parametrize(("alive", "queue"), [(0, 1.0), (3, 2.0), (None, 2.0)])
def test_while_an_engine_idles_nothing_waits_for_it(alive, queue):
    """It idled for half of the time in which it made turns, and then for ten seconds, or has a request in the works."""
    turns = tuple(turn(80.0 + 0.1 * n, 0.05, idle=0.05, waiting=4, running=1) for n in range(1, 101))
    served = {} if alive is None else {"alive": alive}
    assert figures(hook(ENGINE, 80.0), hook(ENGINE, iterations=turns, **served)).queue == pytest.approx(queue, rel=0.02)


def test_what_an_engine_idled_before_the_window_does_not_thin_out_its_queue():
    turns = (
        turn(NOW - 5.0, 0.05, idle=600.0, waiting=4),
        *(turn(NOW - n * 0.05, 0.05, idle=0.0, waiting=4) for n in range(99, -1, -1)),
    )
    served = figures(hook(ENGINE, 1.0), hook(ENGINE, iterations=turns, alive=4))
    assert served.queue == pytest.approx(4 * 5.05 / served.seconds, rel=0.01)


def test_the_longest_request_is_that_of_all_that_are_remembered():
    slow, rest = request(NOW - 200.0, 6.0), spread(300)
    served = figures(hook(API, 1.0, alive=0), hook(API, requests=(slow, *rest)))
    assert served.longest == 6.0 and max(record.seconds for record in served.requests) < 1.0


def test_probes_of_a_servers_health_take_no_tokens_from_it():
    asked = [request(90.0 + number, 0.5, tokens=100, model=0.4) for number in range(9)]
    probes = [request(90.2 + 3 * number, 0.001) for number in range(3)]
    requests = tuple(sorted((*asked, *probes), key=lambda one: one.end))
    served = figures(hook(API, 89.0, alive=0), hook(API, 99.0, requests=requests))
    assert served.tokens_per_second == pytest.approx(90.0, rel=0.15)


def test_the_snapshot_names_the_engine_and_what_it_does():
    engine = Engine(Target(pid=API, command="serve"))
    for event in (tree((API, "API server")), hook(API, requests=spread(40), alive=1)):
        engine.handle(event)
    snapshot = engine.handle(Tick(time=NOW, wall=1e9))
    assert (snapshot.engine, snapshot.kind) == ("vllm 0.32.0", "inference")
    assert snapshot.serving.latency.p50 == 0.2
    assert {"request_p50", "request_rate"} <= set(snapshot.series)
    trains = hook(ENGINE, steps=(StepRecord(index=0, end=99.5, seconds=0.1, kind="train"),))
    engine.handle(trains)
    assert engine.handle(Tick(time=NOW + 0.1, wall=1e9)).kind == "training"


@pytest.mark.parametrize(("kind", "turns", "served"), [("train", 0, False), ("infer", 0, True), ("train", 9, True)])
def test_who_asks_a_process_that_trains_asks_how_the_run_goes(kind, turns, served):
    step = StepRecord(index=0, end=NOW - 1.0, seconds=0.1, kind=kind)
    iterations = tuple(turn(NOW - 10.0 + number) for number in range(turns))
    sample = hook(API, steps=(step,), requests=spread(20), iterations=iterations)
    found = figures(hook(API, 90.0, alive=0), sample, kind="training")
    assert (found is not None) == served
