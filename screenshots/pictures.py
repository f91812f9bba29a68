"""Pictures of the screen as SVG, without a terminal: for screenshots and tests. Times of day in them are of UTC."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from textual.pilot import Pilot
from textual.screen import Screen

from aitop.diagnosis.fix_edit import SourceAround
from aitop.engine.feed import Publish
from aitop.model.job import Candidate
from aitop.model.settings import Settings
from aitop.model.snapshot import Snapshot
from aitop.sources.prometheus.fleet import FleetReader
from aitop.ui.app import AitopApp, FleetApp, MonitorApp, PickerApp
from aitop.ui.screens.fleet import TableScreen
from aitop.ui.screens.monitor import MonitorScreen
from aitop.ui.screens.picker import CandidatesPane, PickerScreen
from aitop.ui.widgets.pane import Pane

POLL_SECONDS = 0.01
NEVER_SECONDS = 1e6
ScreenName = Literal["monitor", "evidence", "help", "tree", "flame", "stacks", "processes", "hang"]
KEYS: dict[ScreenName, tuple[str, ...]] = {
    "monitor": (),
    "evidence": ("enter",),
    "help": ("question_mark",),
    "tree": ("t",),
    "flame": ("f",),
    "stacks": ("S",),
    "processes": ("T",),
    "hang": ("h",),
}


READING = ("aitop-source", "aitop-edits")
"""Threads that read source for a screen."""


class StillFeed:
    """A feed of one picture."""

    def __init__(self, snapshot: Snapshot, *, live: bool = True) -> None:
        self.live = live
        self._snapshot = snapshot

    def start(self, publish: Publish) -> None:
        publish(self._snapshot)

    def stop(self) -> None:
        """Nothing runs."""


def svg(
    snapshot: Snapshot,
    size: tuple[int, int],
    *,
    screen: ScreenName = "monitor",
    keys: tuple[str, ...] = (),
    live: bool = True,
    source_around: SourceAround | None = None,
    settings: Settings | None = None,
    zoom: str | None = None,
) -> str:
    """The screen at `size` (columns, rows) as SVG; `keys` are pressed after those that lead to `screen`.

    `zoom` names a pane that fills it.
    """
    app = MonitorApp(StillFeed(snapshot, live=live), source_around=source_around, settings=settings)
    return _draw(app, size, (*KEYS[screen], *keys), zoom)


def picker_svg(candidates: list[Candidate], size: tuple[int, int], settings: Settings | None = None) -> str:
    """The screen that lets choose one of these jobs, as SVG."""
    return _draw(PickerApp(lambda: candidates, settings), size)


def fleet_svg(
    cluster: FleetReader, size: tuple[int, int], settings: Settings | None = None, keys: tuple[str, ...] = ()
) -> str:
    """The screen of a cluster's jobs, as SVG, after these keys."""
    return _draw(FleetApp(cluster, NEVER_SECONDS, settings), size, keys)


def _draw(app: AitopApp[Any], size: tuple[int, int], keys: tuple[str, ...] = (), zoom: str | None = None) -> str:
    with _utc():
        return asyncio.run(_drawn(app, size, keys, zoom))


@contextmanager
def _utc() -> Iterator[None]:
    """A picture is the same wherever it is drawn."""
    zone = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        if zone is not None:
            os.environ["TZ"] = zone
        time.tzset()


async def _drawn(app: AitopApp[Any], size: tuple[int, int], keys: tuple[str, ...], zoom: str | None) -> str:
    async with app.run_test(size=size) as pilot:
        await _settled(app, pilot)
        if zoom is not None and isinstance(app.screen, MonitorScreen):
            app.screen.action_zoom_pane(zoom)
            pane, rows = app.screen.query_one(f"#{zoom}", Pane), size[1] - 2
            while len(pane.drawn) < rows:
                await pilot.pause(POLL_SECONDS)
        for key in keys:
            await pilot.press(key)
            await _settled(app, pilot)
        await pilot.pause()
        return app.export_screenshot()


async def _settled(app: AitopApp[Any], pilot: Pilot[Any]) -> None:
    """Wait until the screen has what it shows."""
    await pilot.pause()
    while _waits(app.screen):
        await pilot.pause(POLL_SECONDS)


def _waits(screen: Screen[Any]) -> bool:
    if isinstance(screen, MonitorScreen):
        return screen.view.snapshot is None
    if isinstance(screen, TableScreen):
        return screen.answer is None
    if isinstance(screen, PickerScreen):
        return not screen.query_one(CandidatesPane).searched
    return any(thread.name in READING for thread in threading.enumerate())
