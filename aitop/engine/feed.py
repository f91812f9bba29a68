"""What a screen knows of the feed that its Snapshots come from, live or replayed; usable before a feed is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from aitop.errors import own_error
from aitop.model.event import Event
from aitop.model.snapshot import Snapshot, Target

if TYPE_CHECKING:
    from aitop.engine.live import LiveFeed

PATIENCE_SECONDS = 10.0
Publish = Callable[[Snapshot], None]


class Feed(Protocol):
    """A stream of Snapshots. `publish` is called from a thread of the feed, about once a tick."""

    live: bool

    def start(self, publish: Publish) -> None: ...

    def stop(self) -> None:
        """End the stream: hook out, sources and recording closed. Idempotent and bounded in time."""


class LazyFeed:
    """A LiveFeed that `make` imports and creates only on `start`, so that the screen can come first.

    Importing it takes 0.24 s of CPU, beside 0.39 s for the screen.
    """

    live = True

    def __init__(self, make: Callable[[], LiveFeed]) -> None:
        # Why aitop itself could not go on, in words.
        self.failed: str | None = None
        self._make = make
        self._feed: LiveFeed | None = None
        self._made = threading.Event()
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def start(self, publish: Publish) -> None:
        if self._stopped.is_set():
            return

        def publish_and_note(snapshot: Snapshot) -> None:
            self.failed = of_own_failure(snapshot) or self.failed
            publish(snapshot)

        # Made outside the lock: a `stop` meanwhile need not wait for it.
        feed = self._make()
        with self._lock:
            if self._stopped.is_set():
                return
            self._feed = feed
            feed.start(publish_and_note)
            # Set last: a call during its start would find it half built.
            self._made.set()

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            feed = self._feed
        if feed is not None:
            feed.stop()

    def made(self) -> LiveFeed:
        """The feed itself, for what a screen may ask of it. Waits until it has started."""
        if not self._made.wait(PATIENCE_SECONDS) or self._feed is None:
            raise RuntimeError("the run is not being watched yet")
        return self._feed


def own_failure(target: Target, error: Exception, *, time: float, wall: float) -> Snapshot:
    """The last Snapshot of a feed that failed: it says what the error was."""
    words = f"aitop itself failed and stopped watching ({own_error(error)})"
    ended = msgspec.structs.replace(target, ended=words)
    return Snapshot(tick=0, time=time, wall=wall, window=0.0, target=ended)


def of_own_failure(snapshot: Snapshot) -> str | None:
    """What the last Snapshot of a feed that failed says; None for any other. It alone has no tick."""
    return snapshot.target.ended if snapshot.tick == 0 else None


class EventSink(Protocol):
    """Takes every event in order; a recording is one. Must not raise."""

    def write(self, event: Event) -> None: ...

    def close(self) -> None: ...


class ReplayMark(NamedTuple):
    """A moment of a recording worth a look, `seconds` after its first tick; `words` say what happened."""

    seconds: float
    words: str


class ReplayPosition(msgspec.Struct, frozen=True):
    """Where a replay stands: `seconds` after its first tick, of `duration`, None before that is known.

    `seeking` is the progress (0..1) of a seek, None while there is none. `marks` are those found so far. With `speed`
    None it plays as fast as it can.
    """

    seconds: float = 0.0
    duration: float | None = None
    speed: float | None = 1.0
    playing: bool = True
    ended: bool = False
    seeking: float | None = None
    marks: tuple[ReplayMark, ...] = ()
