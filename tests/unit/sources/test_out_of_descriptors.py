"""A monitor that may open no more files does not take its target for dead, says what it lacks, and leaks nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from aitop import cli
from aitop.attach.refusal import ended
from aitop.engine.runner import SourceRunner
from aitop.model.snapshot import Target
from aitop.model.source import SourceStatus
from aitop.sources import procfs
from aitop.sources.host.job import may_still_run, start_ticks
from aitop.sources.host.source import HostSource
from aitop.sources.host.target import still_there
from aitop.sources.source import Source, SourceError
from aitop.sources.stacks.spy import Spy


def full(*_, **__):
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_cannot_be_read_has_not_ended(child, monkeypatch):
    begun = start_ticks(child.pid)
    target = Target(pid=child.pid, command="python", started=procfs.started(begun))
    source = HostSource([child.pid])
    source.open()
    assert source.read(), "what was read on opening"
    with monkeypatch.context() as shortage:
        shortage.setattr(os, "open", full)
        shortage.setattr(os, "listdir", full)
        assert procfs.stat(child.pid) is None
        assert still_there(target) is None
        assert may_still_run(child.pid, begun)
        with pytest.raises(SourceError, match="cannot be read just now") as caught:
            source.read()
        assert caught.value.state == "failed"
    source.open()
    assert source.read()[0].processes[0].pid == child.pid
    child.kill()
    child.wait()
    monkeypatch.setattr(os, "open", full)
    assert "has ended" in still_there(target)
    assert not may_still_run(child.pid, begun)
    with pytest.raises(SourceError, match="has ended"):
        source.read()


def test_an_attach_that_cannot_read_a_process_does_not_say_that_it_has_ended(child, monkeypatch):
    with monkeypatch.context() as shortage:
        shortage.setattr(os, "open", full)
        refusal = ended(child.pid)
    assert (refusal.state, refusal.transient) == ("failed", True) and "cannot be read just now" in refusal.reason
    child.kill()
    # A zombie until somebody waits for it.
    until = time.monotonic() + 10.0
    while not procfs.stat(child.pid).ended and time.monotonic() < until:
        time.sleep(0.01)
    assert ended(child.pid).reason == f"process {child.pid} ended"
    child.wait()
    assert ended(child.pid).reason == f"process {child.pid} ended"


class Starved(Source):
    name = "stacks"
    interval = 0.0
    patience = 1.0

    def open(self):
        full()


def test_a_lack_of_descriptors_is_said_with_the_command_that_mends_it():
    said: list[SourceStatus] = []
    reported = threading.Event()
    runner = SourceRunner(Starved(), lambda event: (said.append(event), reported.set()))
    runner.start()
    assert reported.wait(5)
    runner.ask_to_stop()
    assert (said[0].state, said[0].reason) == ("failed", "aitop has as many files open as it may")
    assert "ulimit -n" in said[0].remedy


@pytest.mark.parametrize("which", ["second memory", "program"])
def test_a_sampler_that_cannot_start_leaves_nothing_open(monkeypatch, which):
    make, made = os.memfd_create, []

    def once(name, flags):
        made.append(make(name, flags) if not made or which == "program" else full())
        return made[-1]

    monkeypatch.setattr(os, "memfd_create", once)
    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(OSError, match="Too many open files"):
        Spy("py-spy", os.getpid(), 1, 20)
    assert len(made) == (1 if which == "second memory" else 2)
    for descriptor in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_start_without_free_descriptors_is_no_fault_of_ours(monkeypatch, capsys):
    monkeypatch.setattr("aitop.cli.parse", full)
    assert cli.run([]) == 1
    said = capsys.readouterr().err
    assert said == "aitop: as many files are open as may be: raise the limit with `ulimit -n 4096`, and try again\n"
