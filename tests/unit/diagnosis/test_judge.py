"""Bands, dwell and order of the judge, on series made to flicker."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_builder import constant, host, line, snapshot, step

from aitop.diagnosis.judge import DWELL_SECONDS, Judge
from aitop.diagnosis.rule import Finding, Rule, claim
from aitop.diagnosis.rules import CAUSES
from aitop.model.snapshot import Phases, Snapshot, Target
from aitop.model.verdict import Verdict


def picture(time):
    return Snapshot(tick=1, time=time, wall=0.0, window=1.0, target=Target(pid=1, command="x"))


def verdict(id_="input-bound", severity="warning", share=0.5):
    return Verdict(id=id_, severity=severity, title="t", confidence=0.5, share=share)


class Level:
    """A rule whose level a test sets."""

    def __init__(self, id_="input-bound", severity="warning"):
        self.level: float | None = None
        self.rule = Rule(id_, self._judge, 0.2, 0.1)
        self._severity = severity

    def _judge(self, snapshot):
        if self.level is None:
            return None
        return Finding(verdict(self.rule.id, self._severity, self.level), self.level)


def shown(judge, time):
    return [verdict.id for verdict in judge.judge(picture(time)).verdicts]


def test_there_is_always_an_answer_to_where_the_time_goes():
    waits, computes = Level(), Level("compute-bound", "info")
    computes.rule = msgspec.structs.replace(computes.rule, only_alone=True)
    judge = Judge([waits.rule, computes.rule])
    computes.level, waits.level = 0.05, 0.5
    assert not judge.judge(picture(1.0)).verdicts, "a warning is about to be shown"
    assert [verdict.id for verdict in judge.judge(picture(2.0)).verdicts] == ["input-bound"]
    waits.level = None
    shown = [judge.judge(picture(2.0 + second)).verdicts for second in range(1, 9)]
    assert [verdict.id for verdict in shown[0]] == ["input-bound"] and [verdict.id for verdict in shown[-1]] == [
        "compute-bound"
    ]
    computes.level = None
    assert not judge.judge(picture(12.0)).verdicts


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


@pytest.mark.parametrize(("full_in", "first"), [(1800.0, "memory-leak"), (3500.0, "eval-stall"), (None, "eval-stall")])
def test_memory_that_fills_weighs_as_much_as_it_takes_of_the_next_hour(full_in, first):
    leak = msgspec.structs.replace(verdict("memory-leak", share=None), full_in=full_in)
    verdicts = {"eval-stall": verdict("eval-stall", share=0.1), "memory-leak": leak}
    rules = [Rule(name, lambda _, each=each: Finding(each, 0.5), 0.2, 0.1) for name, each in verdicts.items()]
    judge = Judge(rules)
    assert [shown(judge, time) for time in range(2)][-1][0] == first


@pytest.mark.parametrize("severity", ["warning", "critical"])
@pytest.mark.parametrize(("gain", "shown"), [((1.0, 1.4), "info"), ((1.05, 1.9), "info"), ((1.12, 1.4), None)])
def test_what_may_well_gain_nothing_is_information(severity, gain, shown):
    def judge(snapshot):
        judged = msgspec.structs.replace(verdict("optimizer-bound", severity), speedup=1.3, speedup_range=gain)
        return Finding(judged, 0.5)

    judge_ = Judge([Rule("optimizer-bound", judge, 0.2, 0.1)])
    diagnosis = [judge_.judge(picture(time)) for time in range(2)][-1]
    assert [verdict.severity for verdict in diagnosis.verdicts] == [shown or severity]


def test_computing_is_told_only_where_nothing_else_is_to_be_gained():
    computing, waiting, crowd = Level("compute-bound", "info"), Level(), Level("cpu-oversubscription", "info")
    alone = Rule("compute-bound", computing.rule, computing.rule.enter, computing.rule.leave, only_alone=True)
    judge = Judge([crowd.rule, alone, waiting.rule])
    computing.level, crowd.level = 0.7, 0.9
    shown(judge, 0)
    assert shown(judge, 1) == ["compute-bound", "cpu-oversubscription"], "information does not hide it"
    waiting.level = 0.3
    shown(judge, 2)
    assert shown(judge, 3) == ["input-bound", "cpu-oversubscription"]


def test_a_consequence_comes_behind_the_causes_of_its_severity_and_before_what_has_no_share():
    queue, batch, grave = Level("queue-bound"), Level("underbatched"), Level("gc-stall", "critical")
    leak = Rule("memory-leak", lambda _: Finding(verdict("memory-leak", "warning", None), 1.0), 0.5, 0.5)
    judge = Judge(
        [
            leak,
            Rule("queue-bound", queue.rule, queue.rule.enter, queue.rule.leave, follows=True),
            batch.rule,
            grave.rule,
        ]
    )
    queue.level, batch.level, grave.level = 0.9, 0.4, 0.3
    shown(judge, 0)
    assert shown(judge, 1) == ["gc-stall", "underbatched", "queue-bound", "memory-leak"]


def test_abstentions_are_told():
    rule = Rule("input-bound", lambda _: "2 steps so far", 0.2, 0.1)
    answer = Judge([rule]).judge(picture(0))
    assert answer.verdicts == () and answer.abstained[0].reason == "2 steps so far"


def test_a_rule_that_fails_does_not_silence_the_others():
    def broken(snapshot):
        raise ZeroDivisionError("mean of nothing")

    good = Level()
    good.level = 0.5
    judge = Judge([Rule("memory-leak", broken, 0.2, 0.1), good.rule])
    judge.judge(picture(0))
    answer = judge.judge(picture(1))
    assert [verdict.id for verdict in answer.verdicts] == ["input-bound"]
    assert "mean of nothing" in answer.abstained[0].reason


# claims -----------------------------------------------------------------------------------------------------------

LINES = [
    line("load", 0.4, number=10, activity="wait-disk", position="before"),
    line("main", 0.4, phase="forward", activity="native", number=12),
    line("log", 0.2, number=16, position="after"),
]


class Claiming:
    """A rule that claims the host's entries of some lines, as far as they are left, and is as strong as a test sets."""

    def __init__(self, id_, *numbers):
        self.level = 0.5
        self.saw: list[int] = []
        self.rule = Rule(id_, self._judge, 0.2, 0.1)
        self._numbers = numbers

    def _judge(self, snapshot):
        entries = snapshot.ledgers[0].entries
        self.saw = sorted(entry.line for entry in entries)
        claims = tuple(entry for entry in entries if entry.line in self._numbers)
        return Finding(verdict(self.rule.id, share=sum(entry.share for entry in claims)), self.level, claims)


def at(time):
    return snapshot(phases=Phases(forward=0.4, outside=0.6), lines=LINES, time=time)


@pytest.mark.parametrize(
    ("level", "saw", "shares"),
    [
        (0.5, [12, 16], {"input-bound": 0.4, "host-bound": 0.2}),
        (0.15, [10, 12, 16], {"host-bound": 0.6}),
        (0.05, [10, 12, 16], {"host-bound": 0.6}),
    ],
    ids=["shown", "between its bands and not shown", "below its band"],
)
def test_what_a_finding_claims_is_not_seen_by_the_rules_after_it(level, saw, shares):
    first, second = Claiming("input-bound", 10), Claiming("host-bound", 10, 16)
    first.level = level
    judge = Judge([first.rule, second.rule])
    judge.judge(at(0))
    assert {verdict.id: verdict.share for verdict in judge.judge(at(1)).verdicts} == pytest.approx(shares)
    assert second.saw == saw


def test_a_finding_keeps_its_claims_while_it_is_shown():
    first, second = Claiming("input-bound", 10), Claiming("host-bound", 10)
    judge = Judge([first.rule, second.rule])
    for time in range(3):
        judge.judge(at(time))
    first.level = 0.01
    assert [verdict.id for verdict in judge.judge(at(3)).verdicts if verdict.share] == ["input-bound"], "it dwells"
    assert second.saw == [12, 16]
    judge.judge(at(3 + DWELL_SECONDS))
    judge.judge(at(4 + DWELL_SECONDS))
    assert second.saw == [10, 12, 16], "and lets go of it when it goes"


def test_entries_with_one_key_weigh_together_in_what_is_explained():
    """Line 10 has two functions, as a lambda and its caller: the lighter one does not stand for both."""
    lines = [
        line("load", 0.5, number=10, activity="wait-disk", position="before"),
        line("<lambda>", 0.1, number=10, activity="wait-disk", position="before"),
        line("log", 0.2, number=16, position="after"),
        line("save", 0.2, number=20, position="after"),
    ]
    first, second = Claiming("input-bound", 16, 20), Claiming("host-bound", 10, 16, 20)
    first.level = 0.0
    judge = Judge([first.rule, second.rule])
    for time in range(3):
        judge.judge(snapshot(phases=Phases(outside=1.0), lines=lines, time=time))
    first.level, second.level = 0.5, 0.01
    for time in range(3, 5):
        shown = judge.judge(snapshot(phases=Phases(outside=1.0), lines=lines, time=time)).verdicts
    assert {verdict.id for verdict in shown} == {"input-bound", "host-bound"}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_entry_is_blamed_twice(data):
    """All rules there are, on runs of any make-up: what the verdicts claim is claimed once."""
    cases = st.lists(
        st.tuples(
            st.integers(1, 30),
            st.sampled_from(("outside", "forward", "backward", "data_wait", "save", "evaluation", "environment")),
            st.sampled_from(("python", "native", "wait-disk", "wait-network", "wait-queue", "sleep", "compile")),
            st.sampled_from((None, "before", "within", "after")),
            st.sampled_from((None, "file", "log", "tensor", "network", "collate")),
        ),
        min_size=1,
        max_size=8,
    )
    made = data.draw(cases)
    whole = sum(count for count, *_ in made)
    lines = [
        line("main", count / whole, phase=phase, activity=activity, position=position, work=work, number=number)
        for number, (count, phase, activity, position, work) in enumerate(made)
    ]
    claimed: list[tuple[object, ...]] = []

    def watched(rule):
        def judge(seen):
            judgement = rule(seen)
            if isinstance(judgement, Finding) and judgement.level >= rule.enter:
                claimed.extend(map(claim, judgement.claims))
            return judgement

        return Rule(rule.id, judge, rule.enter, rule.leave, only_alone=rule.only_alone, follows=rule.follows)

    kind = data.draw(st.sampled_from(("training", "inference", "unknown")))
    seen = snapshot(phases=Phases(forward=0.5, outside=0.5), lines=lines, kind=kind)
    Judge([watched(rule) for rule in CAUSES]).judge(seen)
    assert len(claimed) == len(set(claimed))


def test_every_finding_with_a_gain_has_a_range_around_it():
    judge = Judge()
    judge.judge(at(0))
    verdicts = judge.judge(at(1)).verdicts
    gains = [verdict for verdict in verdicts if verdict.speedup is not None]
    assert gains
    for verdict in gains:
        assert (
            verdict.speedup_range is not None
            and verdict.speedup_range[0] <= verdict.speedup <= verdict.speedup_range[1]
        )


# quiet when healthy -----------------------------------------------------------------------------------------------


def healthy(tick, noise, stall=False):
    """A window of a run that computes, on a machine whose other programs come and go."""
    records = []
    for index in range(60):
        delay = max(0.0, noise.gauss(0.15, 0.12))
        own = 0.02 * max(0.6, noise.gauss(1.0, 0.08))
        extra = 0.3 if stall and index == 30 else 0.0
        phases = {"data_wait": 0.0004, "forward": 0.33 * own, "backward": 0.5 * own, "optimizer": 0.12 * own}
        records.append(step(index, own * (1 + delay) + extra, cpu=own, gc=0.0001, save=extra, **phases))
    busy = min(1.0, max(0.3, noise.gauss(0.7, 0.2)))
    return snapshot(
        records,
        time=1000.0 + tick,
        host=host(0, main_cpu=0.8, busy=(busy, busy)),
        series={"run_delay": constant(0.15, until=1000.0 + tick)},
        lines=[
            line("main", 0.33, phase="forward", activity="native"),
            line("main", 0.52, phase="backward", activity="native", number=11),
            line("main", 0.13, phase="optimizer", activity="native", number=12),
            line("main", 0.02, number=13, position="after"),
        ],
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_noisy_healthy_run_gets_no_warning_and_its_verdict_stays(seed):
    noise, judge = random.Random(seed), Judge()
    diagnoses = [judge.judge(healthy(tick, noise, stall=tick in (40, 100))) for tick in range(120)]
    loud = {verdict.id for diagnosis in diagnoses for verdict in diagnosis.verdicts if verdict.severity != "info"}
    assert loud == set()
    assert {diagnosis.verdicts[0].id for diagnosis in diagnoses[2:]} == {"compute-bound"}
