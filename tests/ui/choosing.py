"""The choice of jobs on the screen, for tests."""

from __future__ import annotations

from contextlib import asynccontextmanager

from eyes import Eyes

from aitop.ui.app import PickerApp
from aitop.ui.widgets.pane import Pane


@asynccontextmanager
async def choosing(find, size=(120, 20)):
    """`async with choosing(find) as eyes`: the choice among the jobs of `find()`, once it has looked for them."""
    app = PickerApp(find)
    async with app.run_test(size=size) as pilot:
        eyes, pane = Eyes(app, pilot), app.screen.query_one("#candidates", Pane)
        await eyes.until_true(lambda: pane.drawn and "looking for" not in eyes.pane("candidates"), "a list of jobs")
        yield eyes
