"""A source that fails, hangs or lies hurts nobody but itself."""

from __future__ import annotations

import threading
import time

import msgspec
import pytest

from aitop.engine import runner as runner_module
from aitop.engine.runner import SourceRunner
from aitop.model.gpu import GpuSample
from aitop.model.source import SourceStatus
from aitop.sources.source import Source, SourceError
from aitop.ui.words import waits_for_target


class Scripted(Source):
    """A source that does in each read what the test says."""

    name = "gpu"
    interval = 0.01
    patience = 0.05

    def __init__(self, *reads, open_error=None):
        self.reads = list(reads)
        self.open_error = open_error
        self.opened = self.closed = 0
        self.released = threading.Event()

    def open(self):
        self.opened += 1
        if self.open_error:
            raise self.open_error

    def read(self):
        action = self.reads.pop(0) if len(self.reads) > 1 else self.reads[0]
        if isinstance(action, BaseException):
            raise action
        if action == "hang":
            self.released.wait(5)
            return []
        return [GpuSample(time=time.monotonic(), devices=())]

    def close(self):
        self.closed += 1

    def interrupt(self):
        self.released.set()


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(runner_module, "FIRST_RETRY_SECONDS", 0.02)


def run_until(source, wanted, check=False):
    """Runs the source until an event satisfies `wanted`; returns all events."""
    events = []
    runner = SourceRunner(source, events.append)
    runner.start()
    deadline = time.monotonic() + 60
    while not any(wanted(event) for event in events):
        assert time.monotonic() < deadline, events
        if check:
            runner.check(time.monotonic())
        time.sleep(0.005)

    runner.ask_to_stop()
    assert runner.join(5)
    return events


def state(name):
    return lambda event: isinstance(event, SourceStatus) and event.state == name


def test_samples_flow_and_the_source_is_closed():
    source = Scripted("sample")
    events = run_until(source, state("ok"))
    assert any(isinstance(event, GpuSample) for event in events)
    assert source.closed == 1


def test_a_source_that_cannot_open_says_why_and_is_tried_again():
    source = Scripted("sample", open_error=SourceError("denied", "not allowed", "ask root"))
    events = run_until(source, lambda _: source.opened >= 3)
    assert events[0].reason == "not allowed" and events[0].remedy == "ask root"
    assert len(events) == 1, "the same state is told once"


def test_a_source_tells_that_it_waits_by_a_code_and_not_by_a_sentence():
    waiting = SourceError("absent", "not yet", transient=True, code="waiting-for-target")
    events = run_until(Scripted("sample", open_error=waiting), state("absent"))
    assert [event.code for event in events] == ["waiting-for-target"]
    assert waits_for_target(events[0])
    assert not waits_for_target(msgspec.structs.replace(events[0], code=None))


def test_an_unexpected_error_is_a_state_and_the_source_recovers():
    source = Scripted(ValueError("boom"), "sample")
    events = run_until(source, state("ok"))
    assert any(state("failed")(event) and "boom" in event.reason for event in events)
    assert source.opened == 2


def test_a_hanging_read_is_stale_until_it_answers():
    source = Scripted("hang", "sample")
    events = run_until(source, state("stale"), check=True)
    assert [event.reason for event in events if state("stale")(event)] == ["no answer for more than 0.05 s"], (
        "it is said once and shown for as long as that lasts"
    )
