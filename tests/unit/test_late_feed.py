"""The live feed that is made late is the live feed."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading

import pytest

from aitop.engine.late_feed import LateFeed
from aitop.engine.live import LiveFeed


class Feed:
    def __init__(self):
        self.asked = []

    def start(self, publish):
        publish("picture")

    def stop(self):
        self.asked.append("stop")

    def detach(self):
        self.asked.append("detach")

    def profile(self, steps, progress):
        return steps, progress

    def dump(self):
        return "dump"


def test_it_has_every_method_of_a_live_feed_in_the_same_shape():
    theirs = {name: one for name, one in vars(LiveFeed).items() if callable(one) and not name.startswith("_")}
    for name, one in theirs.items():
        assert list(inspect.signature(getattr(LateFeed, name)).parameters) == list(inspect.signature(one).parameters)
    assert LateFeed.live == LiveFeed.live


def test_what_is_asked_before_it_is_made_waits_for_it():
    made, answers, feed = threading.Event(), [], Feed()

    def make():
        assert made.wait(10)
        return feed

    late = LateFeed(make)
    asking = threading.Thread(target=lambda: answers.append(late.dump()))
    starting = threading.Thread(target=late.start, args=(answers.append,))
    asking.start()
    starting.start()
    assert answers == []
    made.set()
    asking.join(10)
    starting.join(10)
    assert sorted(answers) == ["dump", "picture"]
    late.detach()
    late.stop()
    assert feed.asked == ["detach", "stop"]
    assert late.profile(5, print) == (5, print)


def test_what_is_asked_in_the_midst_of_its_start_waits_for_the_end_of_it():
    begun, may_end = threading.Event(), threading.Event()

    class Slow(Feed):
        def start(self, publish):
            begun.set()
            assert may_end.wait(10)
            self.asked.append("started")

    feed = Slow()
    late = LateFeed(lambda: feed)
    starting = threading.Thread(target=late.start, args=(print,))
    detaching = threading.Thread(target=late.detach)
    starting.start()
    assert begun.wait(10)
    detaching.start()
    detaching.join(0.05)
    assert feed.asked == []
    may_end.set()
    for thread in (starting, detaching):
        thread.join(10)
    assert feed.asked == ["started", "detach"]


def test_whoever_leaves_while_it_is_made_does_not_wait_and_it_never_starts():
    begun, may_end, feed, seen = threading.Event(), threading.Event(), Feed(), []

    def make():
        begun.set()
        assert may_end.wait(10)
        return feed

    late = LateFeed(make)
    starting = threading.Thread(target=late.start, args=(seen.append,))
    starting.start()
    assert begun.wait(10)
    late.stop()
    may_end.set()
    starting.join(10)
    assert (seen, feed.asked) == ([], [])


def test_stopped_before_it_started_it_never_starts():
    late = LateFeed(lambda: pytest.fail("nobody wants it any more"))
    late.stop()
    late.start(print)


def test_the_screen_is_there_without_rules_and_sources():
    code = (
        "import sys, aitop.cli, aitop.commands.monitor, aitop.ui.app, aitop.engine.late_feed\n"
        "heavy = 'aitop.diagnosis.rules', 'aitop.engine.core', 'aitop.engine.live', 'aitop.attach'\n"
        "print(*(name for name in sys.modules if name.startswith(heavy)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert loaded.split() == []
