"""What somebody at a screen of aitop sees and does, for tests of any of its programs."""

from __future__ import annotations

import asyncio
import time

from aitop.ui.widgets.pane import Pane

LONGEST_WAIT_SECONDS = 60.0


class Eyes:
    """The screen as it is read, and the keys that are pressed at it. Every wait ends: what never comes fails."""

    def __init__(self, app, pilot, feed=None):
        self.app, self.pilot, self.feed = app, pilot, feed

    async def press(self, *keys):
        """Press these keys and wait for all that they set off."""
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def resize(self, columns, rows):
        """Give the terminal another size."""
        await self.pilot.resize_terminal(columns, rows)
        await self.pilot.pause()

    async def give(self, snapshot):
        """Publish a snapshot and wait for it to be handled."""
        self.feed.publish(snapshot)
        await self.pilot.pause()

    async def until(self, text):
        """Wait for `text` to be on the screen."""
        await self.until_true(lambda: text in self.text(), f"{text!r} on the screen")

    async def until_gone(self, text):
        """Wait for `text` to be on the screen no more."""
        await self.until_true(lambda: text not in self.text(), f"no {text!r} on the screen")

    async def until_true(self, condition, wanted):
        """Wait for `condition()` to hold; `wanted` says what that is where it never does."""
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"there never was {wanted}:\n{self.text()}"
            await asyncio.sleep(0.01)
        await self.pilot.pause()

    def text(self):
        """The current screen as it is drawn, with styles left out."""
        return "\n".join("".join(segment.text for segment in row) for row in self.rows())

    def rows(self):
        """The current screen as it is drawn, row by row."""
        return self.app.screen._compositor.render_strips()

    def pane(self, name):
        """The lines of one pane."""
        return "\n".join(line.text for line in self.app.screen.query_one(f"#{name}", Pane).drawn)

    def shown(self):
        """Names of the panes that are displayed."""
        return {pane.id for pane in self.app.screen.query(Pane) if pane.display}
