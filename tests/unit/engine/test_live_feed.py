"""The live feed: which processes it looks at and hooks, how it ends, and what is asked of it before it is made."""

from __future__ import annotations

import os
import threading
import time

import msgspec
import pytest
from snapshot_builder import snapshot

from aitop.attach.attempt import Attachment
from aitop.engine import hook_requests, live
from aitop.engine.hook_requests import processes_to_hook
from aitop.engine.runner import SourceRunner
from aitop.model.ranks import ExchangeNotes
from aitop.model.snapshot import Cost, Snapshot, Target, Tick
from aitop.model.source import SourceStatus
from aitop.model.stacks import StackDump
from aitop.sources.devices import SharedDevices
from aitop.sources.host.source import LivingProcesses
from aitop.sources.servers.engines import ENGINES
from aitop.sources.servers.recognition import Server
from aitop.sources.stacks.pace import SharedBudget


def test_no_look_begins_before_the_last_one_is_over(monkeypatch):
    feed = feed_of_this_process()
    monkeypatch.setattr(feed._engine, "wants_look", lambda now, looked: True)
    begun, goes_on = threading.Semaphore(0), threading.Event()
    count = []

    def notes(ranks):
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


def test_a_job_that_stands_still_is_shown_before_its_next_rare_tick(monkeypatch):
    devices = SharedDevices(60.0)
    feed = feed_of_this_process(interval=60.0, shared=live.Shared(SharedBudget(0.01), devices))
    monkeypatch.setattr(live, "exchange_notes", lambda ranks: ExchangeNotes(time=time.monotonic()))
    monkeypatch.setattr(feed._engine, "wants_look", lambda now, looked: True)
    monkeypatch.setattr(feed, "dump", lambda: feed._events.put(StackDump(time=time.monotonic(), frames=(), threads=())))
    ticks, twice = [], threading.Event()

    def publish(snapshot):
        ticks.append(snapshot)
        if len(ticks) == 2:
            twice.set()

    feed.start(publish)
    try:
        assert twice.wait(20)
    finally:
        feed.stop()
        devices.end()


class Host:
    """Knows nobody until it has looked."""

    def __init__(self, **seen):
        self.seen, self._later = LivingProcesses(), LivingProcesses(**seen)

    def wait_for_look(self, seconds):
        self.seen = self._later


@pytest.mark.parametrize(
    ("seen", "watched", "known", "hooked"),
    [
        ({"ranks": (8, 9), "launchers": (1,)}, 1, (), (8, 9)),
        ({"launchers": (1,)}, 1, (), ()),
        ({}, 1, (), (1,)),
        # What started others is hooked once it was seen to step.
        ({"ranks": (8, 9), "parents": {9}}, 9, (), (8,)),
        ({"ranks": (9,), "parents": {9}}, 9, (10,), ()),
        ({"ranks": (8, 9), "parents": {9}}, 9, (9,), (8, 9)),
        # Without stacks nobody can tell who steps.
        ({"ranks": (9,), "parents": {9}}, 9, None, (9,)),
        # An engine, and not what works for it.
        ({"ranks": (6,), "engines": (5,), "around": {1, 6}}, 1, (), (5,)),
        ({"ranks": (6, 9), "engines": (5,), "around": {1, 6}}, 1, (), (5, 9)),
        # Once into what takes requests for others.
        ({"ranks": (6, 7), "fronts": (5, 6)}, 1, None, (5, 6, 7)),
    ],
)
def test_which_processes_the_hook_goes_into(seen, watched, known, hooked):
    assert processes_to_hook(LivingProcesses(**seen), (watched,), known) == hooked


@pytest.mark.parametrize("state", ["denied", "absent", "failed"])
def test_stacks_that_are_refused_are_not_waited_for(state):
    feed = feed_of_this_process()
    feed._pids, feed._host = (9,), Host(ranks=(9,), parents={9})
    feed._runners["stacks"] = Idle()
    status = SourceStatus(time=0.0, source="stacks", state=state)
    feed._snapshot = Snapshot(tick=1, time=0.0, wall=0.0, window=0.0, target=feed.target, sources={"stacks": status})
    assert feed._hook_pids() == (9,)


def test_a_server_that_is_recognised_while_it_is_waited_for_who_steps(monkeypatch):
    feed = feed_of_this_process()
    feed._pids, feed._host = (9,), Host(ranks=(9,), parents={9})
    feed._runners["stacks"] = Idle()

    def recognise(seconds):
        feed._host.seen = LivingProcesses(fronts=(10,), launchers=frozenset({9}))

    monkeypatch.setattr(feed._stepping_processes, "wait_until_known", recognise)
    assert feed._hook_pids() == (10,)


@pytest.mark.parametrize(
    ("name", "kind", "is_one"),
    [("uvicorn", "inference", True), ("uvicorn", "training", False), ("vllm", "training", True)],
)
def test_a_page_that_shows_how_a_run_goes_is_no_server_of_it(monkeypatch, name, kind, is_one):
    feed = live.LiveFeed([Target(time=time.monotonic(), pid=os.getpid(), command="x")], live.Options(passive=True))
    software = next(row for row in ENGINES if row.name == name)
    monkeypatch.setattr(feed._recogniser, "look", lambda processes: Server(software, None, {5: software.parts[0]}, ()))
    assert feed._recognised(()).software is software
    feed._snapshot = Snapshot(tick=1, time=0.0, wall=0.0, window=0.0, target=feed.target, kind=kind)
    assert (feed._recognised(()) is not None) == is_one


@pytest.mark.parametrize("end", ["stop", "detach"])
def test_a_hook_is_taken_out_of_what_is_no_rank_any_more(monkeypatch, end):
    feed = feed_of_this_process()
    feed._pids, feed._host, taken_out = (1,), Host(ranks=(8, 9), launchers=(1,)), []
    monkeypatch.setattr(hook_requests, "begin", lambda pid, torch: InAtOnce())
    monkeypatch.setattr(live, "take_out", taken_out.append)
    feed._hook_requests.bring_in(7)
    feed._runners["hook"] = Idle()
    getattr(feed, end)()
    assert taken_out == [{7, 8, 9}]


@pytest.mark.parametrize(
    ("slowdowns", "leaves"), [([0.3] * 3, True), ([0.3, 0.3, 0.02, 0.3], False), ([0.1] * 9, False)]
)
def test_a_hook_that_slows_the_run_by_far_more_than_its_budget_leaves(monkeypatch, slowdowns, leaves):
    feed = feed_of_this_process()
    monkeypatch.setattr(live, "take_out", lambda pids: None)
    feed._runners["hook"] = Idle()
    for slowdown in slowdowns:
        feed._spare_the_run(msgspec.structs.replace(snapshot(), cost=Cost(target_slowdown=slowdown)))
    for thread in threading.enumerate():
        if thread.name == "aitop-detach":
            thread.join(10)
    assert ("hook" not in feed._runners) is leaves
    if leaves:
        status = feed._events.get_nowait()
        assert (status.source, status.state) == ("hook", "absent") and "it took 30 % of steps" in status.reason


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


def feed_of_this_process(*more, shared=None, **options):
    target = Target(time=time.monotonic(), pid=os.getpid(), command="x")
    return live.LiveFeed([target], live.Options(passive=True, gpu=False, **options), *more, shared=shared)


def test_sources_stop_when_the_engine_has_failed(monkeypatch):
    feed, sent = feed_of_this_process(), []

    def broken(event):
        raise ValueError("cannot count")

    monkeypatch.setattr(feed._engine, "handle", broken)
    feed.start(sent.append)
    try:
        feed._thread.join(10)
        assert "cannot count" in sent[0].target.ended
        assert [name for name, runner in feed._runners.items() if runner.join(10)] == ["host"]
    finally:
        feed.stop()


def test_the_first_picture_after_a_source_hangs_says_so(monkeypatch):
    feed, sent = feed_of_this_process(), []
    reads, goes_on = threading.Event(), threading.Event()

    def hangs():
        reads.set()
        goes_on.wait(10)
        return []

    def publish(snapshot):
        sent.append(snapshot)
        feed._stopping.set()

    monkeypatch.setattr(feed._host, "read", hangs)
    feed._host.patience = 0.0
    runner = feed._runners["host"] = SourceRunner(feed._host, feed._events.put)
    runner.start()
    try:
        assert reads.wait(10)
        feed._run(publish)
        assert [snapshot.sources["host"].state for snapshot in sent] == ["stale"]
    finally:
        goes_on.set()
        feed.stop()


class Ticks:
    """A recording that keeps the ticks."""

    def __init__(self):
        self.seen = []

    def write(self, event):
        if isinstance(event, Tick):
            self.seen.append(event)

    def close(self):
        pass


def test_the_last_snapshot_is_made_when_the_watching_is_over():
    ticks, sent, first = Ticks(), [], threading.Event()
    feed = feed_of_this_process(ticks, interval=60.0)
    feed.start(lambda snapshot: (sent.append(snapshot), first.set()))
    try:
        assert first.wait(10)
        deadline = time.monotonic() + 60
        while len(sent) < len(live.FIRST_TICKS) and time.monotonic() < deadline:
            time.sleep(0.05)
        before, asked = len(sent), time.monotonic()
        feed.conclude()
        assert len(sent) == before + live.ENOUGH_TICKS == len(ticks.seen)
        assert sent[-1].time >= asked and sent[-1].host is not None
    finally:
        feed.stop()
    assert len(sent) == before + live.ENOUGH_TICKS


@pytest.mark.parametrize(("cores", "seldom"), [(0.0, True), (1.5, False)])
def test_without_an_idle_core_expensive_ticks_come_rarely(monkeypatch, cores, seldom):
    monkeypatch.setattr(live.IdleCores, "last", lambda self: cores)
    feed = feed_of_this_process(interval=0.05)
    handle = feed._engine.handle

    def dear(event):
        if isinstance(event, Tick):
            until = time.thread_time() + 0.006
            while time.thread_time() < until:
                pass
        return handle(event)

    monkeypatch.setattr(feed._engine, "handle", dear)
    times: list[float] = []
    published = threading.Event()

    def publish(snapshot):
        assert snapshot.cost.seldom == seldom
        times.append(snapshot.time)
        if len(times) == 4:
            published.set()

    feed.start(publish)
    try:
        assert published.wait(60)
    finally:
        feed.stop()
    if seldom:
        assert times[3] - times[0] > 2 * 0.005 / live.CORES_OF_TICKS
