"""Whom the next window of stacks samples."""

from __future__ import annotations

import os
import time

from aitop.sources.stacks.choice import FEW, MANY, Chooser

ROLES = {"rank": [10], "loader-worker": [11, 12, 13, 14, 15, 16], "helper": [20]}


def chooser(monkeypatch, working, roles=None):
    found = Chooser([os.getpid()], lambda: working)
    monkeypatch.setattr(found, "_by_role", lambda: roles or ROLES)
    return found


def test_the_rank_comes_first_until_it_is_known_who_works(monkeypatch):
    chosen = chooser(monkeypatch, ()).next(few=False)
    assert chosen[0] == 10 and len(chosen) == 1 + MANY and set(chosen[1:]) <= set(ROLES["loader-worker"])


def test_the_first_that_works_is_in_every_window_and_the_others_take_turns(monkeypatch):
    some = chooser(monkeypatch, (13, 11))
    windows = [some.next(few=True) for _ in range(8)]
    assert all(window[:2] == [13, 11] and len(window) == 2 + FEW for window in windows)
    assert {pid for window in windows for pid in window} == {10, *ROLES["loader-worker"]}, "also the rank that waits"


def test_a_launcher_is_looked_at_while_it_uses_a_core(monkeypatch):
    some = chooser(monkeypatch, (11,), {"launcher": [9], "rank": [11]})
    assert some.next(few=False) == [11]
    some._cores = {9: 0.5}
    assert some.next(few=False) == [11, 9]


def test_cores_used_are_measured_from_turn_to_turn():
    some = Chooser([os.getpid()])
    some.next(few=False)
    assert some._cores == {}
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        pass
    some.next(few=False)
    assert some._cores[os.getpid()] > 0.1


def test_whoever_has_ended_is_not_asked_for(monkeypatch):
    assert chooser(monkeypatch, (99,)).next(few=False)[0] == 10
    assert chooser(monkeypatch, (99, 12)).next(few=False)[0] == 12
