"""Messages, the only way for threads to reach the screen, and a way to make slow calls off the UI thread."""

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
    """A new Snapshot. It replaces one that is still in the queue, so that a slow screen does not fall behind."""

    snapshot: Snapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotArrived)


@dataclass
class Failed(Message):
    """The feed could not start, or aitop has a bug: the program ends with this error."""

    error: BaseException


def in_background(
    target: MessagePump, name: str, work: Callable[[], Answer], done: Callable[[Answer | Exception], None]
) -> None:
    """Call `work` in a daemon thread, then call `done` on the UI thread, via `target`, with its result or exception.

    As a daemon, a thread that hangs does not keep the program alive.
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
    """Call `post` from any thread, and ignore that the event loop may have ended in the meantime."""
    try:
        post(*arguments)
    except RuntimeError:
        pass
