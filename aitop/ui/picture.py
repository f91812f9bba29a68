"""Pictures of the screen as SVG, without a terminal: for screenshots and tests."""

from __future__ import annotations

import asyncio
from typing import Literal

from aitop.engine.feed import Publish
from aitop.model.candidate import Candidate
from aitop.model.settings import Settings
from aitop.model.snapshot import Snapshot
from aitop.ui.app import FleetApp, MonitorApp, PickerApp
from aitop.ui.screens.evidence import EvidenceScreen
from aitop.ui.screens.fleet.table import Cluster, TableScreen
from aitop.ui.screens.monitor import MonitorScreen
from aitop.ui.screens.source_lines import SourceAround
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
    return asyncio.run(_draw(app, size, (*KEYS[screen], *keys), zoom))


def picker_svg(candidates: list[Candidate], size: tuple[int, int], settings: Settings | None = None) -> str:
    """The screen that lets choose one of these jobs, as SVG."""
    return asyncio.run(_draw_picker(PickerApp(lambda: candidates, settings), size))


def fleet_svg(
    cluster: Cluster, size: tuple[int, int], settings: Settings | None = None, keys: tuple[str, ...] = ()
) -> str:
    """The screen of a cluster's jobs, as SVG, after these keys."""
    return asyncio.run(_draw_fleet(FleetApp(cluster, NEVER_SECONDS, settings), size, keys))


async def _draw_fleet(app: FleetApp, size: tuple[int, int], keys: tuple[str, ...]) -> str:
    async with app.run_test(size=size) as pilot:
        for key in (None, *keys):
            if key is not None:
                await pilot.press(key)
                await pilot.pause()
            while isinstance(app.screen, TableScreen) and app.screen.answer is None:
                await pilot.pause(POLL_SECONDS)
        await pilot.pause()
        return app.export_screenshot()


async def _draw_picker(app: PickerApp, size: tuple[int, int]) -> str:
    async with app.run_test(size=size) as pilot:
        pane = app.screen.query_one("#candidates", Pane)
        while len(pane.drawn) < 2 or "looking for" in "".join(line.text for line in pane.drawn):
            await pilot.pause(POLL_SECONDS)
        return app.export_screenshot()


async def _draw(app: MonitorApp, size: tuple[int, int], keys: tuple[str, ...], zoom: str | None) -> str:
    async with app.run_test(size=size) as pilot:
        monitor = app.screen
        assert isinstance(monitor, MonitorScreen)
        while monitor.view.snapshot is None:
            await pilot.pause(POLL_SECONDS)
        if zoom is not None:
            monitor.action_zoom_pane(zoom)
            pane, rows = monitor.query_one(f"#{zoom}", Pane), size[1] - 2
            while len(pane.drawn) < rows:
                await pilot.pause(POLL_SECONDS)
        await pilot.press(*keys)
        while isinstance(app.screen, EvidenceScreen) and app.screen.reading:
            await pilot.pause(POLL_SECONDS)
        await pilot.pause()
        return app.export_screenshot()
