"""A feed that is made while the screen comes up: what is asked of it before then."""

from __future__ import annotations

import threading

import pytest
from snapshot_builder import snapshot

from aitop.engine.feed import LazyFeed


class Feed:
    def __init__(self):
        self.asked = []

    def start(self, publish):
        publish(snapshot())

    def stop(self):
        self.asked.append("stop")

    def detach(self):
        self.asked.append("detach")

    def profile(self, steps, progress):
        return steps, progress

    def dump(self):
        return "dump"


def test_a_request_before_the_feed_is_made_waits_for_it():
    made, answers, feed = threading.Event(), [], Feed()

    def make():
        assert made.wait(10)
        return feed

    late = LazyFeed(make)
    asking = threading.Thread(target=lambda: answers.append(late.made().dump()))
    starting = threading.Thread(target=late.start, args=(lambda seen: answers.append(type(seen).__name__),))
    asking.start()
    starting.start()
    assert answers == []
    made.set()
    asking.join(10)
    starting.join(10)
    assert sorted(answers) == ["Snapshot", "dump"]
    late.made().detach()
    late.stop()
    assert feed.asked == ["detach", "stop"]
    assert late.made().profile(5, print) == (5, print)


def test_a_request_during_the_start_of_the_feed_waits_until_it_has_started():
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Feed):
        def start(self, publish):
            begun.set()
            assert may_end.wait(10)
            self.asked.append("started")

    feed = Slow()
    late = LazyFeed(lambda: feed)
    starting = threading.Thread(target=late.start, args=(print,))
    detaching = threading.Thread(target=lambda: late.made().detach())
    starting.start()
    assert begun.wait(10)
    detaching.start()
    detaching.join(0.05)
    assert feed.asked == []
    may_end.set()
    for thread in (starting, detaching):
        thread.join(10)
    assert feed.asked == ["started", "detach"]


def test_a_stop_while_the_feed_is_made_does_not_wait_and_the_feed_never_starts():
    begun, may_end, feed, seen = threading.Event(), threading.Event(), Feed(), []

    def make():
        begun.set()
        assert may_end.wait(10)
        return feed

    late = LazyFeed(make)
    starting = threading.Thread(target=late.start, args=(seen.append,))
    starting.start()
    assert begun.wait(10)
    late.stop()
    may_end.set()
    starting.join(10)
    assert (seen, feed.asked) == ([], [])


def test_a_feed_stopped_before_its_start_never_starts():
    late = LazyFeed(lambda: pytest.fail("nobody wants it any more"))
    late.stop()
    late.start(print)
