"""Makes the fabricated snapshots importable, and runs the screen without a terminal."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from settled_app import settled

from aitop.ui.app import MonitorApp
from aitop.ui.widgets.pane import Pane


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


class RunFeed(ScriptedFeed):
    """A live run that can be asked for more; `problem` is why it refuses."""

    problem = None

    def detach(self):
        self.asked.append("detach")
        if self.problem:
            raise RuntimeError(self.problem)

    def profile(self, steps, progress):
        raise RuntimeError("no profile here")

    def dump(self):
        raise RuntimeError("no stacks here")

    def native(self, pids):
        raise RuntimeError("nothing below Python here")


class Eyes:
    """What somebody at the screen sees and does."""

    def __init__(self, app, pilot, feed):
        self.app, self.pilot, self.feed = app, pilot, feed

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, text):
        """Wait for `text` to be on the screen; a hang ends the test."""
        for _ in range(400):
            if text in self.text():
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"{text!r} never came up in:\n{self.text()}")

    def text(self):
        """The current screen as it is drawn, with styles left out."""
        return "\n".join("".join(segment.text for segment in row) for row in self.rows())

    def rows(self):
        return self.app.screen._compositor.render_strips()

    def pane(self, name):
        """The lines of one pane."""
        return "\n".join(line.text for line in self.app.screen.query_one(f"#{name}", Pane).drawn)

    def shown(self):
        """Names of the panes that are displayed."""
        return {pane.id for pane in self.app.screen.query(Pane) if pane.display}

    async def give(self, snapshot):
        """Publish a snapshot and wait for it to be handled."""
        self.feed.publish(snapshot)
        await self.pilot.pause()


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
        app = MonitorApp(feed, title, source_around)
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
