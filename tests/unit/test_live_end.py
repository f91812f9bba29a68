"""What a live feed does at the end of its watching, and what it reads only after some seconds."""

from __future__ import annotations

import os
import threading
import time

from aitop.engine import live
from aitop.model.snapshot import Target, Tick
from aitop.model.stacks import StackWindow


class Sink:
    """Keeps the ticks."""

    def __init__(self):
        self.ticks = []

    def write(self, event):
        if isinstance(event, Tick):
            self.ticks.append(event)

    def close(self):
        pass


def feed_with(sink, **options):
    target = Target(time=time.monotonic(), pid=os.getpid(), command="x")
    return live.LiveFeed([target], live.Options(passive=True, gpu=False, **options), sink)


def test_the_last_snapshot_is_made_when_the_watching_is_over():
    sink, told = Sink(), []
    feed = feed_with(sink, interval=60.0)
    first = threading.Event()
    feed.start(lambda snapshot: (told.append(snapshot), first.set()))
    try:
        assert first.wait(10)
        time.sleep(1.5)
        before, asked = len(told), time.monotonic()
        feed.conclude()
        assert len(told) == before + live.LAST_TICKS == len(sink.ticks)
        assert told[-1].time >= asked and told[-1].host is not None
    finally:
        feed.stop()
    assert len(told) == before + live.LAST_TICKS


def test_code_is_read_for_growth_only_after_some_seconds(monkeypatch):
    feed, read = feed_with(None), []
    monkeypatch.setattr(feed._growth, "consider", read.append)
    monkeypatch.setattr(feed._recogniser, "saw", lambda window: None)
    feed._began = 100.0
    windows = [
        StackWindow(time=100.0 + after, seconds=1.0, rate=20.0, frames=(), stacks=()) for after in (1.0, 4.9, 5.1)
    ]
    for window in windows:
        feed._take(window, lambda snapshot: None)
    assert read == windows[2:]
