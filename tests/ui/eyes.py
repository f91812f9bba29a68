"""Somebody at the screen, for tests of any of the programs."""

from __future__ import annotations

import time

from aitop.ui.widgets.pane import Pane


class Eyes:
    """What somebody at the screen sees and does."""

    def __init__(self, app, pilot, feed=None):
        self.app, self.pilot, self.feed = app, pilot, feed

    async def press(self, *keys):
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, text):
        """Wait for `text` to be on the screen; a hang ends the test."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
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
