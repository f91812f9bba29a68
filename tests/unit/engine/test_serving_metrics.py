"""Figures of a server from its own metrics, alone or beside what the hook saw."""

import msgspec
import pytest
from served_past import (
    API,
    ENGINE,
    figures,
    hook,
    latencies,
    look,
    request,
    served_past,
    spread,
    tree,
)

from aitop.engine.outline import lasting
from aitop.engine.snapshot.metrics import COARSEST, series_of_metrics
from aitop.engine.snapshot.serving import serving
from aitop.model.serving import Histogram
from aitop.model.snapshot import Tick
from aitop.model.source import SourceStatus


def test_a_batch_is_that_of_one_of_several_engines():
    first, last = (msgspec.structs.replace(look(time, 1000.0, running=12.0), engines=3) for time in (90.0, 100.0))
    assert figures(first, last).batch_mean == pytest.approx(4.0)


def test_metrics_are_told_by_what_they_increased_by():
    first = look(90.0, 1000.0, 5e6, running=4.0, waiting=2.0, latency=latencies(500.0, 0.0, 100.0, 200.0, 1000.0))
    last = look(100.0, 1200.0, 5.01e6, running=6.0, waiting=4.0, latency=latencies(600.0, 0.0, 200.0, 300.0, 1200.0))
    served = figures(first, last)
    assert served.basis == "metrics" and served.pid == API
    assert served.requests_per_second == pytest.approx(20.0)
    assert served.tokens_per_second == pytest.approx(1000.0)
    assert served.concurrency == pytest.approx(10.0)
    assert (served.queue, served.batch_mean, served.kv_used, served.alive) == (3.0, 5.0, 0.5, 10)
    # Of 200, a half lies up to 0.5 s; the others between 0.8 and 1 s.
    assert served.latency.p50 == pytest.approx(0.5)
    assert served.latency.p99 == pytest.approx(0.8 + 0.2 * 98 / 100)
    assert served.preemptions_per_second is None and served.first_token is None
    assert served.first_token_basis is None


@pytest.mark.parametrize(
    ("counts", "bounds"),
    [
        pytest.param((100.0, 100.0), (0.3, 0.5), id="below the first bound"),
        pytest.param((0.0, 100.0), (0.1, 0.1 * COARSEST * 1.01), id="a wide bucket"),
        pytest.param((0.0, 50.0), (0.3, 0.5), id="above the last bound"),
    ],
)
def test_a_bucket_that_is_too_coarse_tells_no_percentile(counts, bounds):
    empty = Histogram(bounds=bounds, counts=(0.0, 0.0), sum=0.0, count=0.0)
    full = Histogram(bounds=bounds, counts=counts, sum=50.0, count=100.0)
    served = figures(look(90.0, 0.0, latency=empty), look(100.0, 100.0, latency=full))
    assert served.latency is None and served.concurrency == pytest.approx(5.0)


def test_a_stall_shows_in_the_metrics():
    looks = [look(80.0 + 2 * number, float(min(number, 3)), running=5.0) for number in range(10)]
    served = figures(*looks, now=99.0)
    assert (served.alive, served.still) == (5, pytest.approx(12.0))
    assert figures(*looks[:3], now=85.0).still == pytest.approx(0.0)
    assert figures(looks[0], now=81.0).still is None
    stands = [hook(API, float(time), alive=5) for time in range(80, 100)]
    assert figures(*stands, *looks, now=99.0).still == pytest.approx(13.0)  # as the last look is a second old
    assert figures(*stands, look(98.0, 1.0), look(98.9, 2.0), now=99.0).still == pytest.approx(0.1)


@pytest.mark.parametrize("seek", [False, True], ids=["played", "from a bookmark"])
def test_a_server_that_no_longer_answers_stands_still_until_its_process_ends(seek):
    def later(now, processes, state="failed"):
        made.add(msgspec.structs.replace(processes, time=now))
        made.add(SourceStatus(time=102.0, source="server", state=state))
        made.add(Tick(time=now, wall=now))
        return serving(made, now, "inference")

    made = served_past(*(look(90.0 + 2 * number, 5.0, running=2.0) for number in range(6)))
    here, gone = tree((API, "API server")), tree((ENGINE, "engine"))
    made = lasting(made) if seek else made
    for now in (104.0, 140.0, 1000.0):
        served = later(now, here)
        assert (served.basis, served.alive, served.still) == ("metrics", 2, pytest.approx(now - 90.0, abs=8.0))
    assert served.latency is None and served.requests_per_second is None
    assert later(1001.0, here, state="absent").alive is None, "it has no figures any more"
    assert later(1002.0, gone).alive is None


def test_an_engine_that_counts_tokens_only_at_the_end_of_a_request_gets_on_while_it_times_them():
    looks = [
        look(80.0 + 2 * number, 5.0, running=1.0, inter_token=latencies(0.1 * number, 0.0, 0.0, 0.0, 100.0 * number))
        for number in range(10)
    ]
    assert figures(*looks, now=99.0).still == pytest.approx(0.0)


def test_the_few_long_requests_that_ended_do_not_tell_how_many_are_under_way():
    before, after = latencies(100.0, 0.0, 0.0, 0.0, 10.0), latencies(1300.0, 0.0, 0.0, 0.0, 20.0)
    served = figures(look(80.0, 10.0, running=10.0, latency=before), look(99.0, 20.0, running=10.0, latency=after))
    assert served.concurrency == pytest.approx(10.0), "ten of two minutes each ended in these twenty seconds"


def test_looks_that_tell_no_rate():
    served = figures(look(99.0, 5.0, running=2.0))
    assert (served.requests_per_second, served.alive) == (None, 2)
    assert figures(look(10.0, 5.0)) is None, "an old one tells nothing"
    assert figures(look(90.0, 50.0), look(99.0, 5.0)).requests_per_second is None, "a counter that went back"
    same = [look(90.0, 5.0, latency=latencies(1.0, 0.0, 1.0, 2.0, 3.0)), look(90.0, 9.0), look(89.0, 10.0)]
    assert figures(*same, now=91.0).requests_per_second is None, "looks at the same moment"
    assert "request_rate" not in series_of_metrics({API: same})


def test_several_servers_add_up():
    both = [look(time, 10.0 * time, running=2.0, pid=pid) for time in (90.0, 100.0) for pid in (API, ENGINE)]
    served = figures(*both)
    assert (served.requests_per_second, served.alive, served.concurrency) == (
        pytest.approx(20.0),
        4,
        pytest.approx(4.0),
    )


def test_percentiles_of_servers_with_different_buckets_are_of_the_bounds_that_both_have():
    def at(time, pid, bounds, *counts):
        seen = Histogram(bounds=bounds, counts=counts, sum=0.15 * counts[-1], count=counts[-1])
        return look(time, 0.0, latency=seen, pid=pid)

    looks = [at(90.0, API, (0.1, 0.2, 0.4), 0.0, 0.0, 0.0), at(90.0, ENGINE, (0.1, 0.15, 0.2), 0.0, 0.0, 0.0)]
    looks += [at(100.0, API, (0.1, 0.2, 0.4), 0.0, 100.0, 100.0), at(100.0, ENGINE, (0.1, 0.15, 0.2), 0.0, 0.0, 100.0)]
    latency = figures(*looks).latency
    assert (latency.p50, latency.p95) == (pytest.approx(0.15), pytest.approx(0.195))


def test_of_hook_and_metrics_each_figure_is_the_better_one():
    looks = look(90.0, 0.0, 0.0), look(99.5, 100.0, 9500.0, running=3.0)
    served = figures(
        hook(API, 90.0, alive=0), hook(API, requests=spread(100, seconds=10.0, tokens=90), alive=2), *looks
    )
    assert served.basis == "hook" and served.alive == 2
    assert served.latency.p50 == 0.2 and served.requests_per_second == pytest.approx(10.0)
    assert served.tokens_per_second == pytest.approx(1000.0)  # with those of requests that have not ended
    assert served.kv_used == 0.5 and served.queue == 0.0


def test_a_bookmark_of_a_replay_does_not_change_with_what_follows():
    made = served_past(hook(API, 90.0, requests=spread(20), alive=1), look(90.0, 1.0))
    copy = lasting(made)
    made.add(hook(API, 101.0, requests=(request(100.5),), alive=9))
    made.add(look(101.0, 2.0))
    assert len(copy.hooks[API].served.requests) == 20 and copy.hooks[API].served.alive == 1
    assert len(copy.servers[API]) == 1
