"""step-time-growth: seen in step times, read from code and stacks, and left unsaid."""

from __future__ import annotations

import random

import msgspec
import pytest
from aitop.diagnosis.composition import composed
from judgements import fired, level
from snapshot_builder import line, snapshot, stacks, step

from aitop.diagnosis.causes import growth_cause, step_growth
from aitop.model.snapshot import GrowthSite, Phases, Series
from aitop.model.verdict import Abstention

SITE = GrowthSite(
    file="/x/train.py", line=40, function="main", text="history.append(loss.item())", grown="history", every_step=True
)
OVER = line("main", 0.3, number=41, text="smooth = sum(history) / len(history)")

STACKS = stacks([OVER])


def slowing(per_step, count=400, noise=0.0, cpu=True, **fields):
    """Steps of 20 ms that get longer."""
    random_ = random.Random(3)
    found, end = [], 990.0
    for index in range(count):
        own = 0.02 + per_step * index
        seconds = own * (1 + noise * random_.random())
        end += seconds
        used = own if cpu is True else cpu
        stretch = seconds / 0.02 if cpu is not True else 1.0
        found.append(step(index, seconds, forward=0.005 * stretch, backward=0.01 * stretch, cpu=used, **fields))
        found[-1] = type(found[-1])(
            **{name: getattr(found[-1], name) for name in found[-1].__struct_fields__} | {"end": end}
        )
    return found


def test_steps_that_get_slower_with_the_line_that_goes_over_what_grows():
    seen = snapshot(slowing(2e-5, noise=0.3), lines=[OVER], growth_sites=(SITE,))
    judged = step_growth.judge(seen)
    verdict = fired(judged)
    assert judged.level >= 1.0
    assert [place.line for place in verdict.where[:2]] == [41, 40]
    assert "keep a running sum" in verdict.fixes[0].text


def test_growth_without_a_line_has_to_be_larger():
    assert level(step_growth.judge(snapshot(slowing(4e-6)))) < 1.0
    assert step_growth.judge(snapshot(slowing(4e-5))).level >= 1.0


def test_growth_without_a_line_has_to_last():
    soon = snapshot(slowing(1e-4, count=200))
    told = step_growth.judge(soon)
    assert isinstance(told, Abstention) and "whether it goes on" in told.reason
    assert step_growth.judge(msgspec.structs.replace(soon, growth_sites=(SITE,), stacks=STACKS)).level >= 1.0


def test_a_wait_for_others_that_gets_longer_has_to_last_for_longer():
    def waiting(count):
        grown = [0.01 + 1e-4 * n for n in range(count)]
        return [step(n, 0.02 + more, data_wait=more, forward=0.02, cpu=more) for n, more in enumerate(grown)]

    def told(count):
        records = [msgspec.structs.replace(one, end=900.0 + 0.06 * one.index) for one in waiting(count)]
        return step_growth.judge(snapshot(records))

    assert isinstance(told(200), Abstention) and told(600).level >= 1.0


@pytest.mark.parametrize(
    "records",
    [
        slowing(0.0, noise=0.6),
        slowing(-2e-5),
        slowing(2e-5, cpu=0.02),
        slowing(2e-5, cpu=None),
        slowing(2e-5, count=8),
        [step(index, 0.02 + (0.5 if index % 50 == 0 else 0.0), cpu=0.02) for index in range(400)],
        [step(index, 0.06 if index < 40 else 0.02, cpu=0.02) for index in range(400)],
    ],
    ids=["noise", "faster", "others take the core", "all phases alike", "few", "bursts", "warming up"],
)
def test_other_changes_are_no_growth(records):
    assert level(step_growth.judge(snapshot(records, growth_sites=(SITE,)))) < step_growth.RULE.band.leave


def test_longer_batches_take_longer():
    records = [step(index, 0.02 + 2e-5 * index, cpu=0.02 + 2e-5 * index, samples=32 + index) for index in range(400)]
    assert step_growth.judge(snapshot(records)) is None


def test_without_step_times_the_code_may_tell():
    seen = {"phases": Phases(forward=0.3, backward=0.3, outside=0.4), "growth_sites": (SITE,)}
    assert fired(step_growth.judge(snapshot(lines=[OVER], **seen))).confidence <= 0.5
    assert isinstance(
        step_growth.judge(snapshot(lines=[line("main", 0.3, text="mean(history[-50:])")], **seen)), Abstention
    )


def rising(per_second=300e3):
    return {"rss": Series(times=tuple(range(980, 1000)), values=tuple(1e9 + per_second * i for i in range(20)))}


@pytest.mark.parametrize("series", [{}, rising()], ids=["flat", "rising"])
def test_what_a_setting_may_shorten_grows_where_memory_does(series):
    doubtful = msgspec.structs.replace(SITE, unless=39)
    seen = snapshot(lines=[OVER], phases=Phases(forward=0.3, backward=0.3), growth_sites=(doubtful,), series=series)
    judged = step_growth.judge(seen)
    assert ("unless line 39" in " ".join(fired(judged).evidence)) if series else isinstance(judged, Abstention)


@pytest.mark.parametrize("doubt", [{"every_step": False}, {"within": (50, 60)}], ids=["runs once", "lives elsewhere"])
def test_what_is_not_known_to_grow_at_every_step_is_not_said_to(doubt):
    doubtful = msgspec.structs.replace(SITE, **doubt)
    seen = snapshot(lines=[OVER], phases=Phases(forward=0.3, backward=0.3), growth_sites=(doubtful,))
    assert isinstance(step_growth.judge(seen), Abstention)


def test_what_grows_too_slowly_to_be_timed_is_read_from_the_code():
    seen = snapshot(slowing(0.0, noise=0.6), lines=[OVER], growth_sites=(SITE,))
    old = msgspec.structs.replace(seen, target=msgspec.structs.replace(seen.target, started=seen.wall - 100.0))
    young = msgspec.structs.replace(seen, target=msgspec.structs.replace(seen.target, started=seen.wall - 1.0))
    assert fired(step_growth.judge(old)).confidence <= 0.5
    assert step_growth.judge(young) is None, "it would have shown"


KEPT = GrowthSite(
    file="/x/train.py",
    line=30,
    function="main",
    text="state = cell(x, state)",
    grown="state",
    keeps_graph=True,
    every_step=True,
)
BACK = {"phase": "backward", "activity": "compute", "number": 32}


def test_a_backward_through_the_graphs_of_earlier_steps():
    back = line("main", 0.97, text="loss.backward(retain_graph=True)", **BACK)
    phases = Phases(forward=0.01, backward=0.97)
    verdict = fired(step_growth.judge(snapshot(lines=[back], phases=phases, growth_sites=(KEPT,))))
    assert verdict.where[0].line == 30 and "retain_graph" in verdict.fixes[0].text
    assert fired(step_growth.judge(snapshot(lines=[back], phases=phases, series=rising()))).where[0].line == 32
    assert isinstance(step_growth.judge(snapshot(lines=[back], phases=phases)), Abstention), "nothing says why"


def test_the_operations_of_earlier_graphs_are_no_overhead_of_python():
    back = line("main", 0.97, text="loss.backward(retain_graph=True)", **BACK)
    seen = snapshot(lines=[back], phases=Phases(forward=0.01, backward=0.97), growth_sites=(KEPT,))
    growing = fired(step_growth.judge(seen))
    python = msgspec.structs.replace(growing, id="python-overhead", where=())
    assert [one.id for one in composed([python, growing], seen)] == ["step-time-growth"]
    assert [one.id for one in composed([python], seen)] == ["python-overhead"]


@pytest.mark.parametrize(("text", "forward"), [("loss.backward()", 0.01), ("loss.backward(retain_graph=True)", 0.3)])
def test_a_backward_of_its_own_graph(text, forward):
    phases = Phases(forward=forward, backward=0.98 - forward)
    seen = snapshot(lines=[line("main", 0.9, text=text, **BACK)], phases=phases, growth_sites=(KEPT,))
    assert isinstance(step_growth.judge(seen), Abstention)


def test_a_backward_that_is_nearly_all_of_a_step_and_grows():
    records = [
        step(index, 0.02 + 1e-4 * index, forward=0.0002, backward=0.0195 + 1e-4 * index, cpu=0.02 + 1e-4 * index)
        for index in range(400)
    ]
    verdict = fired(step_growth.judge(snapshot(records, growth_sites=(KEPT,))))
    assert verdict.severity == "critical" and "the time grows in: backward" in verdict.evidence
    assert verdict.where[0].line == 30


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("total = sum(history)", True),
        ("for value in history:", True),
        ("plot(step, history)", True),
        ("history.append(x)", False),
        ("last = history[-1]", False),
        ("n = len(history)", False),
        ("my_history = [history_of(x)]", False),
        ("history.sort(key=abs)", True),
        ("low = history.index(best)", True),
        ("history, rewards = episode(world)", False),
        ("rewards, history = replay(history)", True),
    ],
)
def test_what_goes_over_all_of_a_list(text, whole):
    assert growth_cause.takes_all(text, SITE) is whole
