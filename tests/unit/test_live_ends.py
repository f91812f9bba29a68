"""What a live feed does with sources that hang, and with all of them when nothing takes their samples any more."""

from __future__ import annotations

import os
import threading
import time

from aitop.engine import live
from aitop.engine.runner import SourceRunner
from aitop.model.snapshot import Target


def feed_of_this_process():
    target = Target(time=time.monotonic(), pid=os.getpid(), command="x")
    return live.LiveFeed([target], live.Options(passive=True, gpu=False))


def test_sources_stop_when_the_engine_has_failed(monkeypatch):
    feed, told = feed_of_this_process(), []

    def broken(event):
        raise ValueError("cannot count")

    monkeypatch.setattr(feed._engine, "handle", broken)
    feed.start(told.append)
    try:
        feed._thread.join(10)
        assert "cannot count" in told[0].target.ended
        assert [name for name, runner in feed._runners.items() if runner.join(10)] == ["host"]
    finally:
        feed.stop()


def test_the_first_picture_after_a_source_hangs_says_so(monkeypatch):
    feed, told = feed_of_this_process(), []
    reads, goes_on = threading.Event(), threading.Event()

    def hangs():
        reads.set()
        goes_on.wait(10)
        return []

    def publish(snapshot):
        told.append(snapshot)
        feed._stopping.set()

    monkeypatch.setattr(feed._host, "read", hangs)
    feed._host.patience = 0.0
    runner = feed._runners["host"] = SourceRunner(feed._host, feed._events.put)
    runner.start()
    try:
        assert reads.wait(10)
        feed._run(publish)
        assert [snapshot.sources["host"].state for snapshot in told] == ["stale"]
    finally:
        goes_on.set()
        feed.stop()
