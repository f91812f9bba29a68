"""Watches without a screen."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from aitop.engine.feed import Feed
from aitop.model.snapshot import Snapshot

SIGNAL_CHECK_SECONDS = 0.25


class Watcher:
    """Holds the newest Snapshot of a feed, and knows when the target has ended."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self._ended = threading.Event()

    def publish(self, snapshot: Snapshot) -> None:
        """Take a Snapshot; called from the feed's thread."""
        self.snapshot = snapshot
        if snapshot.target.ended is not None:
            self._ended.set()

    @property
    def ended(self) -> bool:
        """True once the target is gone."""
        return self._ended.is_set()

    def wait(
        self,
        seconds: float | None,
        tick: Callable[[float], None] = lambda elapsed: None,
        until: Callable[[Snapshot], bool] = lambda snapshot: False,
    ) -> None:
        """Wait until the target has ended, the time is over or `until` is true of the newest Snapshot.

        `tick` hears the seconds that have passed.
        """
        started = time.monotonic()
        while not self._ended.is_set():
            if self.snapshot is not None and until(self.snapshot):
                return
            elapsed = time.monotonic() - started
            left = SIGNAL_CHECK_SECONDS if seconds is None else min(SIGNAL_CHECK_SECONDS, seconds - elapsed)
            if left <= 0:
                return
            tick(elapsed)
            self._ended.wait(left)


@contextlib.contextmanager
def watching(feed: Feed, watcher: Watcher | None = None) -> Iterator[Watcher]:
    """Run the feed for as long as the block runs, and stop it (hook out) however the block ends."""
    watcher = watcher or Watcher()
    try:
        feed.start(watcher.publish)
        yield watcher
    finally:
        feed.stop()


@contextlib.contextmanager
def progress(words: str) -> Iterator[Callable[[float], None]]:
    """A line on stderr that says how long it has been going on, if a person is there to read it."""
    shown = sys.stderr is not None and sys.stderr.isatty()

    def tick(elapsed: float) -> None:
        if shown:
            sys.stderr.write(f"\r\x1b[2K{words} {elapsed:.0f} s")
            sys.stderr.flush()

    try:
        yield tick
    finally:
        if shown:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
