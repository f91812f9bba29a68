"""What a server did in each second, for the charts."""

import pytest
from served_past import API, ENGINE, NOW, hook, look, request, served_past, tree, turn

from aitop.engine.history import CHART_SECONDS
from aitop.engine.snapshot.metrics import of_metrics, series_of_metrics
from aitop.engine.snapshot.serving import request_series, serving


def test_a_second_of_charts_has_the_requests_that_ended_in_it():
    made = served_past(hook(API, 90.0, alive=0))
    for second in range(91, 101):
        ends = tuple(request(second - 0.9 + index / 10, 0.1 * (index + 1), queue=0.2) for index in range(4))
        made.add(hook(API, float(second), requests=ends if second != 95 else (), alive=0))
    series = request_series(made, NOW)
    assert series["request_rate"].times == tuple(float(second) for second in range(91, 100))
    assert series["request_rate"].values == (4.0, 4.0, 4.0, 4.0, 0.0, 4.0, 4.0, 4.0, 4.0)
    assert series["request_p50"].values[:5] == (pytest.approx(300.0),) * 4 + (None,)
    assert series["request_p99"].values[0] == pytest.approx(400.0)
    assert series["request_queue"].values[:5] == (pytest.approx(0.8),) * 4 + (None,)


def test_queue_of_charts_is_that_of_all_processes_of_a_server():
    made = served_past(tree((API, "API server"), (ENGINE, "worker"), engine="litserve"))
    made.add(hook(API, 95.0, requests=(request(91.5, 0.3, queue=0.01),), alive=0))
    made.add(hook(ENGINE, 95.0, requests=(request(91.4, 0.2, queue=0.1),), alive=0))
    series = request_series(made, 94.0)
    assert series["request_p50"].values[0] == pytest.approx(300.0)
    assert series["request_queue"].values[0] == pytest.approx(0.11)


def test_charts_go_on_while_nothing_is_answered():
    made = served_past(hook(API, 50.0, requests=(request(49.5),), alive=1))
    made.add(hook(API, 99.9, alive=1))
    assert request_series(made, NOW)["request_rate"].values == (1.0, *[0.0] * 49)


def test_charts_are_bounded_whatever_a_recording_says():
    made = served_past(
        hook(API, 1.0, requests=(request(0.0), request(0.1)), alive=1), hook(API, 5.0, requests=(request(9e9),))
    )
    made.add(hook(API, 8e9, requests=(request(7.9e9),)))
    assert len(request_series(made, 8e9)["request_rate"].values) <= CHART_SECONDS + 2
    assert serving(made, 8e9, "inference") is not None


def test_queue_of_charts_is_that_of_the_engine_where_it_tells():
    turns, asked = (turn(91.1, waiting=4), turn(91.2, waiting=6)), (request(91.5, queue=0.1),)
    for alive, requests in ((0, asked), (None, ())):
        made = served_past(hook(ENGINE, 90.0, alive=alive), hook(ENGINE, 95.0, iterations=turns, requests=requests))
        made.add(hook(ENGINE, 97.0, alive=alive))
        series = request_series(made, 94.0)
        assert series["request_queue"].values[0] == 5.0
        assert ("request_rate" in series) == bool(requests), "turns alone tell no rate"


def test_without_the_hook_charts_are_made_of_metrics():
    looks = [look(90.0, 0.0, waiting=1.0), look(92.0, 10.0, waiting=2.0), look(94.0, 10.0, waiting=3.0)]
    series = request_series(served_past(*looks), NOW)
    assert series["request_rate"].times == (92.0, 94.0) and series["request_rate"].values == (5.0, 0.0)
    assert series["request_queue"].values == (2.0, 3.0) and "request_p50" not in series
    assert series_of_metrics({}) == {} and of_metrics({}, 0.0) is None
