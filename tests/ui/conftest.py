"""Makes the fabricated snapshots importable, and runs the screen without a terminal."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from eyes import Eyes
from settled_app import settled

from aitop.engine.feed import LazyFeed
from aitop.errors import AitopError
from aitop.ui.app import MonitorApp, ReplayApp


def pytest_addoption(parser):
    parser.addoption("--new-pictures", action="store_true", help="draw the pictures of tests/ui/snapshots anew")


class ScriptedFeed:
    """A feed that publishes what the test hands it, and notes what it was asked to do."""

    def __init__(self, *snapshots, live=True):
        self.live = live
        self.first = snapshots
        self.publish = None
        self.asked = []

    def start(self, publish):
        self.publish = publish
        for snapshot in self.first:
            publish(snapshot)

    def stop(self):
        self.asked.append("stop")


class RunFeed(ScriptedFeed, LazyFeed):
    """A live run that can be asked for more; `problem` is why it refuses."""

    problem = None
    has_hook = is_out = True

    def made(self):
        return self

    def detach(self):
        if not self.has_hook:
            raise AitopError("there is no hook to take out")
        self.asked.append("detach")
        if self.problem:
            raise RuntimeError(self.problem)
        self.has_hook = False
        return self.is_out

    def profile(self, steps, progress):
        raise RuntimeError("no profile here")

    def dump(self):
        raise RuntimeError("no stacks here")

    def native(self, pids):
        raise RuntimeError("nothing below Python here")

    def marked(self):
        return None

    def mark(self, snapshot):
        self.asked.append("mark")


@pytest.fixture(autouse=True)
def _pilot_waits_for_the_application(monkeypatch):
    """Keys are waited for until all has been done that they set off, rather than for the process to have a rest."""
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", settled)


@pytest.fixture
def look_at():
    """`async with look_at(snapshot, size=(120, 36)) as eyes`: the monitor on that picture."""

    @asynccontextmanager
    async def watch(*snapshots, size=(120, 36), feed=None, source_around=None, title=None):
        feed = feed or ScriptedFeed(*snapshots)
        app = (ReplayApp if hasattr(feed, "seek_to") else MonitorApp)(feed, title, source_around)
        async with app.run_test(size=size) as pilot:
            eyes = Eyes(app, pilot, feed)
            scripted = isinstance(feed, ScriptedFeed)
            while scripted and (feed.publish is None or (feed.first and app.screen.view.snapshot is None)):
                await pilot.pause(0.01)
            await pilot.pause()
            yield eyes

    return watch


@pytest.fixture
def feeds():
    """The kinds of feed: scripted, and one that can be asked for more."""
    return {"scripted": ScriptedFeed, "run": RunFeed}
