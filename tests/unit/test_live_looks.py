"""Looking at where everything stands, while that lasts."""

from __future__ import annotations

import os
import threading
import time

from aitop.engine import live
from aitop.model.snapshot import Target


def test_no_look_begins_before_the_last_one_is_over(monkeypatch):
    feed = live.LiveFeed([Target(time=time.monotonic(), pid=os.getpid(), command="x")], live.Options(passive=True))
    monkeypatch.setattr(live, "BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(feed._engine, "wants_look", lambda now: True)
    begun, goes_on = threading.Semaphore(0), threading.Event()
    count = []

    def notes(ranks, *, passive):
        count.append(ranks)
        begun.release()
        goes_on.wait(10)

    monkeypatch.setattr(live, "exchange_notes", notes)
    feed._look_if_still()
    assert begun.acquire(timeout=10)
    for _ in range(3):
        feed._look_if_still()
    goes_on.set()
    feed._look.join(10)
    assert len(count) == 1
    feed._look_if_still()
    assert begun.acquire(timeout=10)
    feed._look.join(10)
    assert len(count) == 2
