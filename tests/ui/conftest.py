"""Runs the screen without a terminal."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from eyes import Eyes
from scripted_feeds import ScriptedFeed
from settled_app import screen_handled, settled

from aitop.ui.app import MonitorApp, ReplayApp


def pytest_addoption(parser):
    parser.addoption("--new-pictures", action="store_true", help="draw the pictures of tests/ui/snapshots anew")


@pytest.fixture(autouse=True)
def _pilot_waits_for_the_application(monkeypatch):
    """Keys are waited for until all has been done that they set off, rather than for the process to have a rest."""
    for module in ("app", "pilot"):
        monkeypatch.setattr(f"textual.{module}.wait_for_idle", settled)
    monkeypatch.setattr("textual.pilot.Pilot._wait_for_screen", screen_handled)


@pytest.fixture
def look_at():
    """`async with look_at(snapshot, size=(120, 36)) as eyes`: the monitor on that picture."""

    @asynccontextmanager
    async def watch(*snapshots, size=(120, 36), feed=None, source_around=None, title=None):
        feed = feed or ScriptedFeed(*snapshots)
        app = (ReplayApp if hasattr(feed, "seek_to") else MonitorApp)(feed, title, source_around)
        async with app.run_test(size=size) as pilot:
            eyes = Eyes(app, pilot, feed)
            if isinstance(feed, ScriptedFeed):
                await eyes.until_true(
                    lambda: feed.publish is not None and (not feed.first or app.screen.view.snapshot is not None),
                    "the first picture",
                )
            await pilot.pause()
            yield eyes

    return watch
