"""Deep rests: where steps are all alike, not even waits and forwards are timed."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import torch
from fast_run import Fast, Stalling
from torch import nn
from torch.utils.data import DataLoader

import aitop.hook
from aitop.hook import rest as rest_module


@pytest.fixture
def deep(fast, monkeypatch):
    monkeypatch.setattr(rest_module, "SHALLOW_FIRST_NS", 1)
    return fast


def go_deep(run: Fast) -> None:
    for _ in range(200):
        run.until_it_rests()
        if run.journal.deep:
            return
        run.rest.over()
    raise AssertionError("no rest was a deep one")


def test_they_begin_some_time_after_the_first_rest(fast):
    assert rest_module.SHALLOW_FIRST_NS >= 5 * 10**9
    fast.until_it_rests()
    assert not fast.journal.deep


def test_every_step_is_counted_once(deep):
    go_deep(deep)
    deep.steps(4000)
    records = deep.after()
    assert records[-1].index + 1 == deep.made == deep.journal.steps
    assert all(two.index == one.index + 1 for one, two in pairwise(records))
    assert all(abs(one.end - (two.end - two.seconds)) < 1e-8 for one, two in pairwise(records))
    assert {record.samples for record in records[5:]} == {4}


def test_a_first_stall_has_its_length_and_is_put_down_to_nothing_and_a_second_one_is_seen(deep):
    go_deep(deep)
    deep.rows.stall = 0.2
    deep.steps(1)
    stalled = max(deep.after(), key=lambda record: record.seconds)
    assert stalled.seconds == pytest.approx(0.2, abs=0.05) and stalled.index == deep.made - 6
    known = stalled.data_wait + stalled.forward + stalled.backward + stalled.optimizer
    assert known < 0.05, "what made it so long was not seen"
    deep.until_it_rests()
    assert not deep.journal.deep, "from now on it looks"
    deep.rows.stall = 0.3
    deep.steps(1)
    stalled = max(deep.after(), key=lambda record: record.seconds)
    assert stalled.data_wait == pytest.approx(0.3, abs=0.05) and not stalled.estimated


def test_an_evaluation_ends_them(deep):
    go_deep(deep)
    with torch.no_grad():
        for _ in range(40):
            deep.net(torch.ones(4, 8))
    assert not deep.journal.resting
    deep.steps(1)
    [evaluated] = [record for record in deep.after() if record.evaluation]
    assert evaluated.index == deep.made - 6


class Frozen(nn.Module):
    """Calls parts of the root's own class, of which no gradient is wanted. `deep` tells of each call whether it was in
    a deep rest, `resting` whether it left it a rest.
    """

    def __init__(self, journal) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.ReLU()))
        self.journal = journal
        self.deep: list[bool] = []
        self.resting: list[bool] = []

    def forward(self, rows):
        self.deep.append(bool(self.journal.deep))
        with torch.no_grad():
            for _ in range(3):
                rows = self.inner(rows)
        self.resting.append(self.journal.resting)
        return rows


def until(run: Fast, there) -> None:
    for _ in range(30000):
        run.steps(1)
        if there():
            return
    raise AssertionError("it never comes")


def test_a_frozen_part_of_the_model_is_no_evaluation_and_ends_none(deep, monkeypatch):
    frozen = Frozen(deep.journal)
    deep.net = nn.Sequential(frozen, nn.Linear(8, 4))
    deep.optimizer = torch.optim.SGD(deep.net.parameters(), 1e-3)
    until(deep, lambda: any(frozen.deep))
    assert deep.journal.deep == 0 and frozen.resting[-1], "it goes on as a shallow one"
    monkeypatch.setattr(rest_module, "SHALLOW_FIRST_NS", 10**10)
    until(deep, lambda: sum(frozen.deep) > 1)
    count = len(frozen.deep)
    for _ in range(3):
        deep.until_it_rests()
        deep.rest.over()
    assert not any(frozen.deep[count:]), "it was seen that deep ones are not for this model"
    records = deep.after()
    assert not any(record.evaluation for record in records)
    assert records[-1].index + 1 == deep.made


def test_a_new_epoch_ends_them_and_the_next_rest_may_be_deep_again(deep):
    go_deep(deep)
    deep.batches = iter(DataLoader(Stalling(4 * 10**6), batch_size=4))
    assert not deep.journal.resting and not deep.journal.deep
    [begun] = [record for record in deep.after() if record.loader_start][-1:]
    assert begun.index == deep.made - 5
    go_deep(deep)


def test_the_last_batch_ends_them(deep):
    batches = iter(DataLoader(Stalling(8), batch_size=4))
    go_deep(deep)
    assert len([next(batches), next(batches)]) == 2 and deep.journal.deep
    with pytest.raises(StopIteration):
        next(batches)
    assert not deep.journal.resting


def test_they_are_over_after_so_many_calls_if_nothing_ends_them(deep):
    go_deep(deep)
    for _ in range(deep.journal.deep):
        next(deep.batches)
    assert not deep.journal.deep


def test_what_another_thread_counted_down_too_late_does_not_last(deep):
    go_deep(deep)
    deep.rest.over()
    deep.journal.deep = 5000
    deep.watched.session.tick(time.monotonic_ns())
    assert not deep.journal.deep


def test_leaving_in_one_takes_everything_back(deep):
    go_deep(deep)
    deep.read()
    assert aitop.hook.remove() == "removed" and not deep.journal.deep
    deep.read()
    assert deep.records[-1].index + 1 == deep.made


def test_they_change_no_result(deep):
    deep.steps(3000)
    assert deep.rest.steps > 0
    with_rests = [parameter.clone() for parameter in deep.net.parameters()]
    assert aitop.hook.remove() == "removed"
    torch.manual_seed(0)
    again = Fast(deep.watched)
    again.read = lambda: None
    again.steps(3000)
    assert all(torch.equal(one, other) for one, other in zip(with_rests, again.net.parameters(), strict=True))
