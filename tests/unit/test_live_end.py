"""What a live feed does at the end of its watching, and what it reads only after some seconds."""

from __future__ import annotations

import os
import threading
import time

from aitop.engine import live
from aitop.model.snapshot import Target, Tick


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
        assert len(told) == before + live.ENOUGH_TICKS == len(sink.ticks)
        assert told[-1].time >= asked and told[-1].host is not None
    finally:
        feed.stop()
    assert len(told) == before + live.ENOUGH_TICKS
