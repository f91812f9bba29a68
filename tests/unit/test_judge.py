"""Bands, dwell and order of the judge, on series made to flicker."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from aitop.diagnosis.judge import DWELL_SECONDS, Judge
from aitop.diagnosis.rule import Band, Finding, Rule
from aitop.model.snapshot import Snapshot, Target
from aitop.model.verdict import Abstention, Verdict


def picture(time):
    return Snapshot(tick=1, time=time, wall=0.0, window=1.0, target=Target(pid=1, command="x"))


def verdict(id_="input-bound", severity="warning", share=0.5):
    return Verdict(id=id_, severity=severity, title="t", confidence=0.5, share=share)


class Level:
    """A rule whose level a test sets."""

    def __init__(self, id_="input-bound", severity="warning"):
        self.level: float | None = None
        self.rule = Rule(id_, self._judge, Band(enter=0.2, leave=0.1))
        self._severity = severity

    def _judge(self, snapshot):
        if self.level is None:
            return None
        return Finding(verdict(self.rule.id, self._severity, self.level), self.level)


def shown(judge, time):
    return [one.id for one in judge.judge(picture(time)).verdicts]


def test_a_finding_needs_two_ticks_above_enter():
    source = Level()
    judge = Judge([source.rule])
    source.level = 0.3
    assert shown(judge, 0) == []
    assert shown(judge, 1) == ["input-bound"]


def test_a_finding_between_the_bands_stays_but_does_not_appear():
    source = Level()
    judge = Judge([source.rule])
    source.level = 0.15
    assert [shown(judge, time) for time in range(5)] == [[]] * 5
    source.level = 0.3
    shown(judge, 5)
    assert shown(judge, 6) == ["input-bound"]
    source.level = 0.15
    assert shown(judge, 60) == ["input-bound"]


def test_a_finding_dwells_and_then_goes():
    source = Level()
    judge = Judge([source.rule])
    source.level = 0.3
    shown(judge, 0), shown(judge, 1)
    source.level = 0.05
    assert shown(judge, 1 + DWELL_SECONDS - 0.5) == ["input-bound"]
    assert shown(judge, 1 + DWELL_SECONDS) == []


@pytest.mark.parametrize("mean", [0.05, 0.14, 0.35])
def test_noise_does_not_make_a_verdict_flicker(mean):
    source = Level()
    judge = Judge([source.rule])
    noise = random.Random(7)
    states = []
    for tick in range(600):
        source.level = max(0.0, noise.gauss(mean, 0.04))
        states.append(bool(shown(judge, tick)))
    changes = sum(before != after for before, after in pairwise(states))
    assert changes <= 2


def test_order_is_severity_then_share():
    rules = [
        Level("compute-bound", "info"),
        Level("python-overhead"),
        Level("input-bound"),
        Level("memory-leak", "critical"),
    ]
    for source, level in zip(rules, (0.9, 0.3, 0.4, 0.25), strict=True):
        source.level = level
    judge = Judge([source.rule for source in rules])
    shown(judge, 0)
    assert shown(judge, 1) == ["memory-leak", "input-bound", "python-overhead", "compute-bound"]


def test_computing_is_told_only_where_nothing_else_is_to_be_gained():
    computing, waiting = Level("compute-bound", "info"), Level()
    alone = Rule("compute-bound", computing.rule.judge, computing.rule.band, only_alone=True)
    judge = Judge([alone, waiting.rule])
    computing.level = 0.7
    shown(judge, 0)
    assert shown(judge, 1) == ["compute-bound"]
    waiting.level = 0.3
    shown(judge, 2)
    assert shown(judge, 3) == ["input-bound"]


def test_information_with_a_share_does_not_hide_computing():
    computing, crowd = Level("compute-bound", "info"), Level("cpu-oversubscription", "info")
    alone = Rule("compute-bound", computing.rule.judge, computing.rule.band, only_alone=True)
    judge = Judge([crowd.rule, alone])
    computing.level, crowd.level = 0.7, 0.9
    shown(judge, 0)
    assert shown(judge, 1) == ["compute-bound", "cpu-oversubscription"]


def test_abstentions_are_told():
    rule = Rule("input-bound", lambda _: Abstention(id="input-bound", reason="2 steps so far"), Band(0.2, 0.1))
    told = Judge([rule]).judge(picture(0))
    assert told.verdicts == () and told.abstained[0].reason == "2 steps so far"


def test_a_verdict_survives_its_json():
    assert msgspec.json.decode(msgspec.json.encode(verdict()), type=Verdict) == verdict()


def test_a_rule_that_fails_does_not_silence_the_others():
    def broken(snapshot):
        raise ZeroDivisionError("mean of nothing")

    good = Level()
    good.level = 0.5
    judge = Judge([Rule("memory-leak", broken, Band(0.2, 0.1)), good.rule])
    judge.judge(picture(0))
    told = judge.judge(picture(1))
    assert [one.id for one in told.verdicts] == ["input-bound"]
    assert "mean of nothing" in told.abstained[0].reason
