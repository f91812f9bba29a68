"""When a live feed makes Snapshots: less often where no core is idle, and once more when its watching is over."""

from __future__ import annotations

import os
import threading
import time

from aitop.engine import live
from aitop.model.snapshot import Target, Tick
from aitop.sources.pace import Pace


class FullMachine(Pace):
    """No core is ever idle."""

    def crowded(self):
        return True


class IdleMachine(Pace):
    """A core is always idle."""

    def crowded(self):
        return False


class Sink:
    """Keeps the ticks."""

    def __init__(self):
        self.ticks = []

    def write(self, event):
        if isinstance(event, Tick):
            self.ticks.append(event)

    def close(self):
        pass


def feed_with(pace, sink, **options):
    target = Target(time=time.monotonic(), pid=os.getpid(), command="x")
    return live.LiveFeed([target], live.Options(passive=True, gpu=False, **options), sink, pace)


def ticks_of(pace, seconds, cost):
    """The ticks of a feed whose Snapshots cost so many seconds of CPU."""
    sink = Sink()
    feed = feed_with(pace, sink, interval=0.1)

    def publish(snapshot):
        end = time.thread_time() + cost
        while time.thread_time() < end:
            pass

    feed.start(publish)
    time.sleep(seconds)
    feed.stop()
    return sink.ticks


def test_ticks_are_as_far_apart_as_their_cost_asks_for_where_no_core_is_idle():
    crowded = ticks_of(FullMachine(), 3.0, 0.005)
    assert all(tick.seldom for tick in crowded)
    # At least 5 ms of CPU in each: half a second of pause where a hundredth of a core may be used.
    assert 1 <= len(crowded) <= 7
    usual = ticks_of(IdleMachine(), 3.0, 0.005)
    assert not any(tick.seldom for tick in usual)
    assert len(usual) > 2 * len(crowded)


def test_the_last_snapshot_is_made_when_the_watching_is_over():
    sink, told = Sink(), []
    feed = feed_with(FullMachine(), sink, interval=60.0)
    first = threading.Event()
    feed.start(lambda snapshot: (told.append(snapshot), first.set()))
    try:
        assert first.wait(10)
        time.sleep(1.5)
        before, asked = len(told), time.monotonic()
        feed.conclude()
        assert len(told) == before + live.LAST_TICKS == len(sink.ticks)
        assert told[-1].time >= asked and told[-1].host is not None
        assert told[-1].cost.seldom is True
    finally:
        feed.stop()
    assert len(told) == before + live.LAST_TICKS
