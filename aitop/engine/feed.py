"""Where Snapshots come from, live or replayed: the same to everything that shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from aitop.model.event import Event
from aitop.model.snapshot import Snapshot, Target

Publish = Callable[[Snapshot], None]


class Feed(Protocol):
    """A stream of Snapshots. `publish` is called from a thread of the feed, about once a tick."""

    live: bool

    def start(self, publish: Publish) -> None: ...

    def stop(self) -> None:
        """End the stream: hook out, sources and recording closed. Idempotent and bounded in time."""


def own_failure(target: Target, error: Exception, *, time: float, wall: float) -> Snapshot:
    """The last Snapshot of a feed that failed: it says what the error was."""
    words = f"aitop itself failed and stopped watching ({type(error).__name__}: {error})"
    ended = msgspec.structs.replace(target, ended=words)
    return Snapshot(tick=0, time=time, wall=wall, window=0.0, target=ended)


class EventSink(Protocol):
    """Takes every event in order, such as a recording. Must not raise."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


class ReplayMark(NamedTuple):
    """A moment of a recording worth a look, `seconds` after its first tick; `words` say what happened."""

    seconds: float
    words: str


class ReplayPosition(msgspec.Struct, frozen=True):
    """Where a replay stands: `seconds` after its first tick, of `duration`, None before that is known.

    `seeking` is how far (0..1) it is on a long way to another place, None when it is on none. `marks` are known as far
    as the recording has been looked through. `speed` None plays as fast as it goes.
    """

    seconds: float = 0.0
    duration: float | None = None
    speed: float | None = 1.0
    playing: bool = True
    ended: bool = False
    seeking: float | None = None
    marks: tuple[ReplayMark, ...] = ()
