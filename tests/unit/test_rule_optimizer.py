"""optimizer-bound: what an update needs, and what it takes."""

from __future__ import annotations

import pytest
from judgements import fired, level
from snapshot_builder import snapshot, steps

from aitop.diagnosis.causes import optimizer
from aitop.model.snapshot import Phases
from aitop.model.steps import HookFacts


def adam(parameters, tensors, **fields):
    return HookFacts(
        way="attach",
        python="3.11",
        torch="2",
        parameters=parameters,
        parameter_tensors=tensors,
        optimizers=("AdamW",),
        **fields,
    )


def test_an_optimizer_with_many_parameters_may_take_long():
    facts = adam(10_000_000, 40)
    assert level(optimizer.judge(snapshot(steps(seconds=0.1, optimizer=0.02), facts=facts))) < 0.14
    fused = adam(10_000_000, 40, fused=True)
    assert level(optimizer.judge(snapshot(steps(seconds=0.1, optimizer=0.05), facts=fused))) == 0


def test_what_a_crowded_machine_adds_to_an_update_is_not_the_optimizers():
    stock = adam(1_100_000, 6, foreach=False)
    assert level(optimizer.judge(snapshot(steps(seconds=0.7, optimizer=0.2), facts=stock))) < optimizer.judge.band.enter
    own = adam(1_100_000, 6)
    assert level(optimizer.judge(snapshot(steps(seconds=0.7, optimizer=0.2), facts=own))) > optimizer.judge.band.enter


def test_many_small_tensors_cost_something_even_when_batched():
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=adam(65_000, 1000))))
    assert verdict.speedup == pytest.approx(1.4, rel=0.07), "foreach takes 0.57 of the time of a loop, as measured"
    batched = fired(
        optimizer.judge(snapshot(steps(seconds=0.04, optimizer=0.027), facts=adam(65_000, 1000, foreach=True)))
    )
    assert "fused=True" in batched.fixes[0].text


def test_an_uncounted_optimizer_may_take_a_usual_share():
    usual = Phases(data_wait=0.0, forward=0.3, backward=0.4, optimizer=0.28, outside=0.02)
    assert level(optimizer.judge(snapshot(phases=usual))) < optimizer.judge.band.leave


def test_an_optimizer_that_is_batched_already_is_not_told_to_be():
    facts = HookFacts(way="attach", python="3.11", torch="2", parameters=1000, foreach=True)
    verdict = fired(optimizer.judge(snapshot(steps(seconds=0.1, optimizer=0.06), facts=facts)))
    assert not any("foreach" in fix.text for fix in verdict.fixes)


def test_without_a_count_of_parameters_nothing_is_said_of_their_need():
    verdict = fired(optimizer.judge(snapshot(phases=Phases(forward=0.3, backward=0.3, optimizer=0.4))))
    assert "need" not in verdict.title
