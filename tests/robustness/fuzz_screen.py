"""One screen that stays up and is handed one Snapshot after another, for fuzz.py: quick to feed."""

from __future__ import annotations

import asyncio
import atexit
import zlib

from handed_feed import HandedFeed

from aitop.model.snapshot import Snapshot
from aitop.ui.app import MonitorApp

SIZE = (160, 48)
# One of these for each snapshot; all of them lead back.
KEYS = (
    *((), (), (), ("enter", "escape"), ("T", "escape"), ("S", "escape"), ("h", "escape"), ("t", "enter", "t")),
    *(("f", "enter", "f"), ("z", "tab", "z"), ("m", "m"), ("question_mark", "escape"), ("w", "W", "C")),
)


class Screen:
    """The monitor without a terminal. After something has gone wrong in it (which is raised), take a new one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._asked: asyncio.Queue[tuple[Snapshot, tuple[str, ...]] | None] = asyncio.Queue()
        self._answers: asyncio.Queue[list[str]] = asyncio.Queue()
        self._task = self._loop.create_task(self._run())
        atexit.register(self.close)

    def show(self, snapshot: Snapshot, data: bytes) -> list[str]:
        """The lines of every screen that was passed; `data` chooses which keys are pressed."""
        return self._loop.run_until_complete(self._show(snapshot, KEYS[zlib.crc32(data) % len(KEYS)]))

    async def _show(self, snapshot: Snapshot, keys: tuple[str, ...]) -> list[str]:
        self._asked.put_nowait((snapshot, keys))
        answer = asyncio.ensure_future(self._answers.get())
        await asyncio.wait({answer, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            self._task.result()
        return await answer

    async def _run(self) -> None:
        feed = HandedFeed()
        app = MonitorApp(feed)
        async with app.run_test(size=SIZE) as pilot:
            while feed.publish is None:
                await pilot.pause(0.01)
            while (asked := await self._asked.get()) is not None:
                feed.publish(asked[0])
                await pilot.pause()
                lines = lines_of(app)
                for key in asked[1]:
                    await pilot.press(key)
                    lines += lines_of(app)
                if app._exception is not None:
                    raise app._exception
                self._answers.put_nowait(lines)

    def close(self) -> None:
        """Leave it. What it still has to say has been said."""
        if self._loop.is_closed():
            return
        self._asked.put_nowait(None)
        self._loop.run_until_complete(asyncio.wait({self._task}))
        self._task.exception()
        self._loop.close()


def lines_of(app: MonitorApp) -> list[str]:
    """What stands on its screen."""
    return ["".join(piece.text for piece in row) for row in app.screen._compositor.render_strips()]
