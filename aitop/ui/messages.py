"""How threads reach the screen: by messages and nothing else; and calls that may be slow or hang, off the UI thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from textual.message import Message
from textual.message_pump import MessagePump

from aitop.model.snapshot import Snapshot

Answer = TypeVar("Answer")


@dataclass
class SnapshotArrived(Message):
    """A new Snapshot. It replaces one that was not handled yet, so a slow screen never lags."""

    snapshot: Snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotArrived)


@dataclass
class Failed(Message):
    """The feed could not start, or aitop itself has a fault: the program ends with this error."""

    error: BaseException


def in_background(
    target: MessagePump, name: str, work: Callable[[], Answer], done: Callable[[Answer | Exception], None]
) -> None:
    """Call `work` in a daemon thread, then `done` in a message of `target`, with what it returned or raised.

    A thread that hangs does not keep the program alive.
    """

    def run() -> None:
        answer: Answer | Exception
        try:
            answer = work()
        except Exception as error:
            answer = error
        deliver(target.call_later, done, answer)

    threading.Thread(target=run, name=f"aitop-{name}", daemon=True).start()


def deliver(post: Callable[..., object], *arguments: object) -> None:
    """Post something from any thread; nothing happens if the event loop has ended in the meantime."""
    try:
        post(*arguments)
    except RuntimeError:
        pass
