"""How threads reach the screen: by messages and nothing else; and calls that may be slow or hang, off the UI thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.message import Message
from textual.message_pump import MessagePump

from aitop.model.snapshot import Snapshot


class SnapshotArrived(Message):
    """A new Snapshot. It replaces one that was not handled yet, so a slow screen never lags."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotArrived)


class Failed(Message):
    """The feed could not start, or aitop itself has a fault: the program ends with this error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def deliver(target: MessagePump, message: Message) -> None:
    """Post from any thread; nothing happens if the app has closed in the meantime."""
    try:
        target.post_message(message)
    except RuntimeError:
        # The event loop has ended.
        pass


def in_background(target: MessagePump, name: str, work: Callable[[], Message | None]) -> None:
    """Run `work` in a daemon thread and post what it returns. A thread that hangs does not keep the program alive."""

    def run() -> None:
        message = work()
        if message is not None:
            deliver(target, message)

    threading.Thread(target=run, name=f"aitop-{name}", daemon=True).start()
