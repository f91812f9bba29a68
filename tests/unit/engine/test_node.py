"""All jobs of a machine: which are watched, and what is said of those that are not."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from aitop.engine import node
from aitop.engine.live import Options
from aitop.errors import NoTargetError, NotPermittedError
from aitop.model.job import Candidate
from aitop.outputs.prometheus.families import JobsCollector


@pytest.fixture
def job(monkeypatch):
    """A process that `export --all` finds."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        facts = {"user": "ada", "framework": "torch", "ranks": 1, "workers": 0, "age": 1.0}
        running = [Candidate(pid=process.pid, command="train.py", **facts)]
        monkeypatch.setattr(node, "candidates", lambda gpu_users: running if process.poll() is None else [])
        monkeypatch.setattr(node, "SEARCH_SECONDS", 0.0)
        yield process
        process.kill()


@pytest.mark.parametrize(("error", "closed"), [(NotPermittedError, True), (NoTargetError, False)])
def test_a_job_that_is_not_watched_is_told_once_and_is_down_only_if_it_may_not_be_looked_into(
    job, monkeypatch, error, closed
):
    said, collector = [], JobsCollector("n1")

    def refuse(pid, *, even_stopped):
        raise error(f"process {pid} is not one for us")

    monkeypatch.setattr(node, "look", refuse)
    watching = node.Node(None, Options(gpu=False), collector, said.append)
    for _ in range(3):
        watching.update()
    up = [sample for family in collector.collect() if family.name == "aitop_up" for sample in family.samples]
    assert [(sample.labels["pid"], sample.value) for sample in up] == ([(str(job.pid), 0.0)] if closed else [])
    job.communicate(b"\n")
    watching.update()
    watching.stop()
    assert said == [f"process {job.pid} is not one for us"]
    assert [family.name for family in collector.collect()] == ["aitop_jobs"]


class Feed:
    """A feed that watches nothing."""

    pids = frozenset()

    def __init__(self, targets, options, shared):
        self.targets = targets

    def start(self, publish):
        self.publish = publish

    def stop(self):
        pass


def test_a_job_that_a_signal_has_stopped_is_watched(job, monkeypatch):
    said = []
    monkeypatch.setattr(node, "LiveFeed", Feed)
    job.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, job.pid, os.WSTOPPED | os.WNOWAIT)
    watching = node.Node(None, Options(gpu=False), JobsCollector("n1"), said.append)
    watching.update()
    assert said == [f"watching the job of process {job.pid}"]


def test_jobs_that_end_together_are_ended_side_by_side(monkeypatch):
    said, together = [], threading.Barrier(3, timeout=20)
    monkeypatch.setattr(Feed, "stop", lambda feed: together.wait())
    watching = node.Node([], Options(gpu=False), JobsCollector("n1"), said.append)
    for top in range(3):
        watching._watched[top] = node._Watched(Feed((), None, None), top, "n1", JobsCollector("n1"))
        watching._watched[top].ended.set()
    watching.update()
    assert watching.ended == len(said) == 3 and watching.over
