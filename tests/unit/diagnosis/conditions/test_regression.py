"""regression: since when units take longer, why, and when nothing is to be said."""

import pytest
from past_maker import LOGS, START, TRAIN, WALL, Noise, plan, watched

from aitop.diagnosis.conditions.regression import change_of
from aitop.engine.core import Engine
from aitop.model.past import Past, Stretch
from aitop.model.serving import Histogram, ServerSample
from aitop.model.snapshot import Target, Tick

MOMENT, WATCHED = 40, 80


LONGER = plan(forward=0.04, backward=0.06)


def regressions(snapshot):
    return [verdict for verdict in snapshot.diagnosis.verdicts if verdict.id == "regression"]


def changing(before, after, **how):
    """The regressions of a run that changes at MOMENT."""
    return regressions(watched(WATCHED, lambda second: before if second < MOMENT else after, **how))


@pytest.mark.parametrize(
    ("before", "after", "subtype", "words"),
    [
        (plan(data_wait=0.002), plan(data_wait=0.04), "data", "the wait for data went from 2.0 ms to 40 ms"),
        (plan(save=0.6, every=400), plan(save=0.6, every=10), "checkpoint", "saving went from 0 µs to"),
        (plan(evaluation=0.5, every=400), plan(evaluation=0.5, every=10), "evaluation", "evaluation went from 0 µs"),
        (plan(), plan(host=0.05), "host", f"the code around the model went from 2.0 ms to 50 ms; train.py:{LOGS}"),
        (plan(), plan(gc=0.03), "collector", "collecting garbage went from 0 µs to 30 ms a step"),
        (plan(others=0.1), LONGER | {"others": 1.1, "waited": 0.8}, "neighbour", "use 1.1 cores, before 0.1"),
        (plan(), LONGER | {"waited": 0.8}, "cores", "0.8 more threads of the run itself wait for a core"),
        (plan(clock=1980), LONGER | {"clock": 990}, "clocks", "the clock of the GPU went from 1980 to 990 MHz"),
        (plan(tokens=128), LONGER | {"tokens": 256}, "input", "each step has 256 tokens, before 128"),
    ],
    ids=["data", "checkpoint", "evaluation", "line", "collector", "neighbour", "own threads", "clock", "input"],
)
def test_the_moment_and_the_reason_are_named(before, after, subtype, words):
    [verdict] = changing(before, after)

    assert (verdict.subtype, words in verdict.title) == (subtype, True), verdict.title
    assert abs(verdict.since - (WALL + MOMENT)) <= 2.0
    assert verdict.share is None and verdict.severity == ("info" if subtype == "input" else "warning")
    assert subtype != "host" or [(where.file, where.line) for where in verdict.where] == [(TRAIN, LOGS)]


def test_workers_that_wait_for_a_core_and_are_still_in_time_are_not_why_steps_take_longer():
    more = {"others": 1.1, "waited": 0.8, "run_delay": 0.0, "tokens": 256}
    [verdict] = changing(plan(others=0.1, run_delay=0.0, tokens=128), LONGER | more)
    assert verdict.subtype == "input"


@pytest.mark.parametrize("facts_first", [False, True], ids=["with the steps", "before the steps"])
def test_compilations_that_begin_are_the_reason(facts_first):
    def planned(second):
        longer = second >= MOMENT
        return plan(forward=0.06 if longer else 0.02, recompiles=3 + 5 * max(0, second - MOMENT))

    [verdict] = regressions(watched(WATCHED, planned, facts_first=facts_first))
    assert verdict.subtype == "recompile"


def test_steps_before_a_pause_of_minutes_are_compared_with_those_after_it():
    moment, pause = 3 * MOMENT, 130

    def planned(second):
        return plan(evaluation=pause, every=1) if second == moment else plan(host=0.05 if second > moment else 0.002)

    [verdict] = regressions(watched(moment + pause + 60, planned))
    assert verdict.subtype == "host" and 0 <= verdict.since - (WALL + moment) <= pause + 2


def test_steps_longer_than_the_window_are_compared():
    length, count, parts = 150, 30, {"backward": 0.0, "optimizer": 0.0, "host": 0.0}

    def planned(second):
        return plan(forward=length if second < count * length else 2 * length, **parts)

    [verdict] = regressions(watched(3 * count * length, planned, tick_every=10))
    assert verdict.title.startswith("steps take 2.0× as long")


def test_requests_of_a_server_are_judged_too():
    [verdict] = changing(plan(preprocess=0.01, model=0.05), plan(preprocess=0.06, model=0.05), unit="request")
    assert verdict.title.startswith("requests take 1.8× as long since ")
    assert verdict.subtype == "preprocess"


def test_requests_are_read_off_a_servers_own_metrics_too():
    engine, total, count = Engine(Target(pid=7, command="vllm serve")), 0.0, 0.0
    for second in range(WATCHED):
        now, each = START + second + 1, 0.2 if second < MOMENT else 0.5
        total, count = total + 20 * each, count + 20
        queued = Histogram(bounds=(), counts=(), sum=total - 0.15 * count, count=count)
        latency = Histogram(bounds=(), counts=(), sum=total, count=count)
        histograms = {"latency": latency, "queue": queued}
        engine.handle(ServerSample(time=now, pid=7, histograms=histograms))
        last = engine.handle(Tick(time=now + 0.1, wall=now + 0.1), judged=second > WATCHED - 4)
    [verdict] = regressions(last)
    assert verdict.subtype == "queue" and abs(verdict.since - (START + MOMENT)) <= 2.0


@pytest.mark.parametrize(
    "planned",
    [
        lambda second: plan(),
        lambda second: plan(host=0.002 + 0.001 * second),
        lambda second: plan(host=0.05 if second < 40 else 0.002),
        lambda second: plan(host=0.05 if 20 < second < 50 else 0.002),
        lambda second: plan(evaluation=6.0, every=500),
        lambda second: plan(save=0.5, every=60),
        lambda second: plan(host=0.05 if second % 10 < 5 else 0.002),
    ],
    ids=["even", "growing", "warming up", "slow for a while", "one evaluation", "checkpoints", "to and fro"],
)
def test_other_runs_are_not_warned_of(planned):
    assert regressions(watched(WATCHED, planned)) == []


def test_noise_that_resembles_itself_is_no_change():
    for seed in range(4):
        assert regressions(watched(60, lambda second: plan(), noise=Noise(seed, spread=0.3, memory=0.8))) == []


def test_too_little_is_no_change():
    stretches = tuple(Stretch(start=float(n), end=n + 1.0, sums={"seconds": (1.0 + (n > 15), 1.0)}) for n in range(30))
    assert change_of(Past(unit="step", stretches=stretches)) is None
