"""Pictures of the screen as SVG, without a terminal: for screenshots and tests."""

from __future__ import annotations

import asyncio
from typing import Literal

from aitop.engine.feed import Publish
from aitop.model.snapshot import Snapshot
from aitop.ui.app import MonitorApp
from aitop.ui.screens.evidence import EvidenceScreen, SourceAround
from aitop.ui.screens.monitor import MonitorScreen

POLL_SECONDS = 0.01

ScreenName = Literal["monitor", "evidence", "help", "tree"]

KEYS: dict[ScreenName, tuple[str, ...]] = {
    "monitor": (),
    "evidence": ("enter",),
    "help": ("question_mark",),
    "tree": ("t",),
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
) -> str:
    """The screen at `size` (columns, rows) as SVG; `keys` are pressed after those that lead to `screen`."""
    app = MonitorApp(StillFeed(snapshot, live=live), source_around=source_around)
    return asyncio.run(_draw(app, size, (*KEYS[screen], *keys)))


async def _draw(app: MonitorApp, size: tuple[int, int], keys: tuple[str, ...]) -> str:
    async with app.run_test(size=size) as pilot:
        monitor = app.screen
        assert isinstance(monitor, MonitorScreen)
        while monitor.view.snapshot is None:
            await pilot.pause(POLL_SECONDS)
        await pilot.press(*keys)
        while isinstance(app.screen, EvidenceScreen) and app.screen.reading:
            await pilot.pause(POLL_SECONDS)
        await pilot.pause()
        return app.export_screenshot()
