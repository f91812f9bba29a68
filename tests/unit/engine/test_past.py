"""The past of a run: bounded, whole, and of which processes."""

import random

import pytest

from aitop.diagnosis.conditions.regression import change_of
from aitop.engine.core import Engine
from aitop.engine.history import History
from aitop.engine.outline import copied
from aitop.engine.past import KEEP, MOST_LINES, PastHistory, PastOf
from aitop.model.past import Stretch
from aitop.model.snapshot import Target, Tick
from aitop.model.steps import HookFacts, HookSample, StepRecord


def test_the_past_is_of_another_rank_only_if_the_others_go_on_without_it():
    def steps(pid, *ends):
        facts = HookFacts(way="run", python="3.11", torch="2", rank=1 - pid)
        records = tuple(StepRecord(index=int(end), end=end, seconds=1.0, kind="train") for end in ends)
        return HookSample(time=ends[-1], pid=pid, facts=facts, steps=records)

    history = History(Target(pid=1, command="torchrun train.py"))
    engine = Engine(history.target, history)
    for event in (steps(1, 1.0), steps(0, 1.0), Tick(time=1.5, wall=1.5)):
        engine.handle(event, judged=False)
    first = history.past.of.pids
    other = 1 - first[0]
    for event in (Tick(time=140.0, wall=140.0), steps(other, 150.0), Tick(time=150.5, wall=150.5)):
        engine.handle(event, judged=False)
    assert history.past.of.pids == first, "its step may end next"
    for event in (steps(other, 151.0), Tick(time=151.5, wall=151.5)):
        engine.handle(event, judged=False)
    assert history.past.of.pids == (other,)


def test_the_past_of_training_ends_where_the_process_only_infers():
    history = History(Target(pid=1, command="python run.py"))
    engine = Engine(history.target, history)
    for second in range(1, 200):
        kind = "train" if second < 10 else "infer"
        record = StepRecord(index=second, end=float(second), seconds=1.0, kind=kind)
        engine.handle(HookSample(time=float(second), pid=1, steps=(record,)), judged=False)
        engine.handle(Tick(time=second + 0.5, wall=second + 0.5), judged=False)
        if second in (100, 199):
            assert history.past.of.trains == (second == 100)


def seconds(count, length=0.1, after=None, jump=1.3, seed=1):
    """A history of so many seconds, of ten units each, which take `jump` times as long from second `after` on."""
    random_, history = random.Random(seed), PastHistory(PastOf(pids=(1,)))
    for second in range(count):
        value = 10 * length * random_.gauss(1.0, 0.05) * (jump if after is not None and second >= after else 1.0)
        history._put(second, {"seconds": (value, 10)}, lines={f"train.py:{second % 50}": 1}, samples=1)
        history.close(second + 10.0)
    history.close(count + 10.0)
    return history


def test_the_past_is_bounded_and_loses_nothing():
    hours = 1
    past = seconds(hours * 3600).past()
    assert len(past.stretches) < KEEP * 10
    assert sum(stretch.sums["seconds"][1] for stretch in past.stretches) == hours * 3600 * 10
    assert all(before.end == after.start for before, after in zip(past.stretches, past.stretches[1:], strict=False))
    assert all(stretch.end - stretch.start <= 1 + (hours * 3600 - stretch.end) / 16 for stretch in past.stretches)
    assert all(len(stretch.lines) <= MOST_LINES for stretch in past.stretches)


@pytest.mark.parametrize("after", [3600 + 1800, 2 * 3600 - 60], ids=["half an hour ago", "a minute ago"])
def test_a_change_of_hours_ago_is_still_known(after):
    change = change_of(seconds(2 * 3600, after=after).past())
    assert change is not None and abs(change.at - after) <= max(2.0, 0.05 * (7200 - after))
    assert 1.25 < change.ratio < 1.35


def test_a_copy_is_not_changed_by_what_comes_later():
    history = seconds(300)
    copy, before = copied(history), history.past()
    history._append(Stretch(start=300.0, end=301.0, sums={"seconds": (1.0, 10.0)}))
    history.made = None
    assert copy.past() == before != history.past()
