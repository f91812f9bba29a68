"""Looking at where everything stands, while that lasts."""

from __future__ import annotations

import os
import threading
import time

import pytest

from aitop.attach import Attachment
from aitop.engine import hook_requests, live
from aitop.model.snapshot import Snapshot, Target
from aitop.model.source import SourceStatus
from aitop.sources.host import source
from aitop.sources.host.roles import Place
from aitop.sources.host.source import Seen


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


class Host:
    """Knows nobody until it has looked."""

    def __init__(self, **seen):
        self.seen, self._later = Seen(), Seen(**seen)

    def wait_for_look(self, seconds):
        self.seen = self._later


@pytest.mark.parametrize(
    ("ranks", "launchers", "hooked"), [((8, 9), (1,), (8, 9)), ((), (1,), ()), ((), (), (1,)), ((1,), (), (1,))]
)
def test_no_hook_goes_into_what_only_started_the_ranks(ranks, launchers, hooked):
    feed = live.LiveFeed([Target(time=time.monotonic(), pid=os.getpid(), command="x")], live.Options(passive=True))
    feed._pids, feed._host = (1,), Host(ranks=ranks, launchers=launchers)
    assert feed._hook_pids() == hooked


@pytest.mark.parametrize(
    ("ranks", "stepping", "hooked"),
    [
        ((8, 9), {}, (8,)),
        ((9,), {}, ()),
        ((9,), {9: 2}, (9,)),
        ((9,), {10: 2}, ()),
        ((8, 9), {9: 2}, (8, 9)),
    ],
)
def test_what_started_others_is_hooked_once_it_was_seen_to_step(monkeypatch, ranks, stepping, hooked):
    feed = live.LiveFeed([Target(time=time.monotonic(), pid=os.getpid(), command="x")], live.Options(passive=True))
    monkeypatch.setattr(live, "FIRST_LOOK_SECONDS", 0.05)
    feed._pids, feed._host = (9,), Host(ranks=ranks, parents={9})
    feed._runners["stacks"] = Idle()
    feed._stepping_processes.update(stepping, tuple(stepping), {8, 9, 10})
    assert feed._hook_pids() == hooked


@pytest.mark.parametrize(("ranks", "hooked"), [((), (5,)), ((6,), (5,)), ((6, 9), (5, 9))])
def test_the_hook_goes_into_an_engine_and_not_into_what_works_for_it(ranks, hooked):
    feed = live.LiveFeed([Target(time=time.monotonic(), pid=os.getpid(), command="x")], live.Options(passive=True))
    feed._pids, feed._host = (1,), Host(ranks=ranks, engines=(5,), around={1, 6})
    assert feed._hook_pids() == hooked


@pytest.mark.parametrize("state", ["denied", "absent", "failed"])
def test_without_stacks_nobody_can_tell_who_steps(state):
    feed = live.LiveFeed([Target(time=time.monotonic(), pid=os.getpid(), command="x")], live.Options(passive=True))
    feed._pids, feed._host = (9,), Host(ranks=(9,), parents={9})
    assert feed._hook_pids() == (9,), "stacks are switched off"
    feed._runners["stacks"] = Idle()
    status = SourceStatus(time=0.0, source="stacks", state=state)
    feed._snapshot = Snapshot(tick=1, time=0.0, wall=0.0, window=0.0, target=feed.target, sources={"stacks": status})
    assert feed._hook_pids() == (9,)


def test_who_launched_is_told_from_who_trains(monkeypatch):
    own = os.getpid()
    monkeypatch.setattr(source, "places_of", lambda members, _: {one.stat.pid: Place("launcher") for one in members})
    host = source.HostSource([own])
    assert host.seen.launchers == frozenset() and not host._looked.is_set()
    host.open()
    host.wait_for_look(0.0)
    assert own in host.seen.launchers and host.seen.ranks == () and host._looked.is_set()


@pytest.mark.parametrize("end", ["stop", "detach"])
def test_a_hook_is_taken_out_of_what_is_no_rank_any_more(monkeypatch, end):
    feed = live.LiveFeed([Target(time=time.monotonic(), pid=os.getpid(), command="x")], live.Options(passive=True))
    feed._pids, feed._host, taken_out = (1,), Host(ranks=(8, 9), launchers=(1,)), []
    monkeypatch.setattr(hook_requests, "begin", lambda pid: InAtOnce())
    monkeypatch.setattr(live, "take_out", taken_out.append)
    feed._hook_requests.bring_in(7)
    feed._runners["hook"] = Idle()
    getattr(feed, end)()
    assert taken_out == [{7, 8, 9}]


class InAtOnce:
    """An attempt that has come in when it is first asked."""

    def wait(self, limit):
        return Attachment("signal-frame", "installed")

    def close(self):
        return None


class Idle:
    """A source's thread that ends at once."""

    def ask_to_stop(self):
        pass

    def join(self, seconds):
        pass
