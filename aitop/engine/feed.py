"""Where Snapshots come from, live or replayed: the same to everything that shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aitop.model.event import Event
from aitop.model.snapshot import Snapshot

Publish = Callable[[Snapshot], None]


class Feed(Protocol):
    """A stream of Snapshots. `publish` is called from a thread of the feed, about once a tick."""

    live: bool

    def start(self, publish: Publish) -> None: ...

    def stop(self) -> None:
        """End the stream: hook out, sources and recording closed. Idempotent and bounded in time."""


class EventSink(Protocol):
    """Takes every event in order, such as a recording. Must not raise."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...
