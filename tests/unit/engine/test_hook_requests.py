"""The hook is brought in and taken out beside the watching."""

from __future__ import annotations

import threading

from aitop.engine import hook_requests


def test_a_hook_is_taken_out_of_all_ranks_at_once(monkeypatch):
    at_once = threading.Barrier(3)
    monkeypatch.setattr(hook_requests, "SELF_REMOVAL_SECONDS", 0.0)
    monkeypatch.setattr(hook_requests, "find_ring", lambda pid: True)
    monkeypatch.setattr(hook_requests, "should_stay", lambda pid: pid == 4)
    monkeypatch.setattr(hook_requests, "remove", lambda pid: at_once.wait(10.0))
    assert hook_requests.take_out([1, 2, 3]) and not at_once.broken
