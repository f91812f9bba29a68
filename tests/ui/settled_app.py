"""Waiting for an application to have done all that it was given, without waiting any longer."""

from __future__ import annotations

import asyncio
import threading
import time

from textual._context import active_app

THREAD_SECONDS = 0.02  # for work off the UI thread, which some tests let hang
LONGEST_SECONDS = 1.0
LONGEST_HANDLER_SECONDS = 60.0
MANY_TURNS = 500  # of the event loop, after which a handler is waited for at leisure


async def settled(min_sleep: float = 0.0, max_sleep: float = LONGEST_SECONDS) -> None:
    """Wait until the application has nothing left to do, in place of the toolkit's wait_for_idle.

    That is: no message is waiting or being handled anywhere, nothing is left to be drawn, and no call is under way in
    the background (for these it waits at most THREAD_SECONDS). The toolkit's sleeps until the process uses no time for
    a while.
    """
    app = active_app.get()
    began = time.monotonic()
    # A key reaches the queue of the application by way of the event loop.
    for _ in range(5):
        await asyncio.sleep(0)
    while time.monotonic() - began < max_sleep:
        if in_the_background() and time.monotonic() - began < THREAD_SECONDS:
            await asyncio.sleep(0.001)
            continue
        await all_handled(app)
        if not to_do(app):
            return
        app.screen._on_timer_update()
        await asyncio.sleep(0.001)


def in_the_background() -> bool:
    """Whether a call of the screen is under way in a thread."""
    return any(
        getattr(getattr(thread, "_target", None), "__module__", "") == "aitop.ui.messages"
        for thread in threading.enumerate()
    )


async def all_handled(app) -> None:
    """Wait until the application and each of its widgets have handled all messages and wait for the next one."""
    turns, deadline = 0, time.monotonic() + LONGEST_HANDLER_SECONDS
    while app._exception is None and app.is_running and any(map(is_busy, (app, *app._registry))):
        turns += 1
        assert time.monotonic() < deadline, "a message is never done with"
        await asyncio.sleep(0 if turns < MANY_TURNS else 0.001)


def is_busy(pump) -> bool:
    """Whether this part of the application has or handles a message."""
    return pump.is_running and bool(
        pump._message_queue.qsize()
        or pump._pending_message is not None
        or pump._next_callbacks
        or not pump._message_queue.ready_event._waiters
    )


async def screen_handled(pilot, timeout: float = 0.0) -> bool:
    """In place of Pilot._wait_for_screen, which sends a message of its own to each widget."""
    await all_handled(pilot.app)
    return True


def to_do(app) -> bool:
    """Whether a message waits for anybody, or something for the next drawing."""
    if app._exception is not None or not app.is_running:
        return False
    if any(map(is_busy, (app, *app._registry))):
        return True
    screen = app.screen
    return bool(
        getattr(app, "_resize_event", None)
        or screen._layout_required
        or screen._scroll_required
        or screen._repaint_required
        or screen._recompose_required
        or screen._dirty_widgets
        or screen._callbacks
    )
