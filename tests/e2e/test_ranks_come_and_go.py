"""A job whose ranks are killed at random and started again, watched all the while."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from waiting import until

from aitop.engine.live import LiveFeed, Options
from aitop.sources.host.target import look

pytestmark = pytest.mark.e2e

JOB = Path(__file__).parent / "ranks" / "simulated.py"
RANKS, KILLS = 4, 6


def test_ranks_that_are_killed_and_started_again_are_followed(training):
    launcher = training(JOB, RANKS, "--restart")
    launcher.wait_steps(1)
    snapshots = []
    feed = LiveFeed([look(launcher.pid)], Options(gpu=False, stacks=False, interval=0.2))
    feed.start(snapshots.append)
    chance = random.Random(7)
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.1, 0.4))
            ranks = psutil.Process(launcher.pid).children()
            os.kill(chance.choice(ranks).pid, signal.SIGKILL)

        until(lambda: all_step(snapshots[-1:], launcher.pid), pause=0.1)
    finally:
        feed.stop()
    assert not any(snapshot.target.ended for snapshot in snapshots)
    abstained = [rule for snapshot in snapshots for rule in snapshot.diagnosis.abstained]
    assert not [rule for rule in abstained if "failed" in rule.reason]


def all_step(newest, launcher) -> bool:
    """Whether the ranks on the screen are those that live, each with steps, numbered from 0."""
    views = newest[0].ranks.ranks if newest and newest[0].ranks else ()
    alive = {child.pid for child in psutil.Process(launcher).children()}
    stepping = [view for view in views if view.step is not None]
    return {view.pid for view in stepping} == alive and [view.rank for view in stepping] == list(range(RANKS))
