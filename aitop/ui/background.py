"""Calls that may be slow or hang, off the UI thread: their result comes back as a message."""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.message import Message
from textual.message_pump import MessagePump


def deliver(target: MessagePump, message: Message) -> None:
    """Post from any thread; an app that has closed in the meantime does not want it any more."""
    try:
        target.post_message(message)
    except RuntimeError:
        # The event loop is gone: nobody is there to be told.
        pass


def in_background(target: MessagePump, name: str, work: Callable[[], Message | None]) -> None:
    """Run `work` in a daemon thread and post what it returns. A thread that hangs does not keep the program alive."""

    def run() -> None:
        message = work()
        if message is not None:
            deliver(target, message)

    threading.Thread(target=run, name=f"aitop-{name}", daemon=True).start()
