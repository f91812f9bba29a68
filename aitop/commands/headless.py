"""Watches without a screen."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aitop.engine.feed import of_own_failure
from aitop.errors import OwnFailureError
from aitop.model.snapshot import Snapshot, Target

if TYPE_CHECKING:
    from aitop.commands.alert import Alert
    from aitop.model.settings import Options
    from aitop.outputs.recording import RecordingWriter

SIGNAL_CHECK_SECONDS = 0.25


class Watcher:
    """Holds the newest Snapshot of a feed, and knows when the target has ended."""

    def __init__(self, recording: RecordingWriter | None, alert: Alert | None = None) -> None:
        self.snapshot: Snapshot | None = None
        self.failed: str | None = None
        """Why aitop itself could not go on; the Snapshot is then the last one before."""
        self._alert = alert
        self._ended = threading.Event()
        self._recording = recording

    def publish(self, snapshot: Snapshot) -> None:
        """Take a Snapshot; called from the feed's thread. The one of a failed feed says nothing else."""
        self.failed = of_own_failure(snapshot)
        if self.failed is None:
            self.snapshot = snapshot
        if snapshot.target.ended is not None:
            self._ended.set()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def recording_failed(self) -> str | None:
        return self._recording.failed if self._recording is not None else None

    def wait(
        self, seconds: float | None, words: str = "", until: Callable[[Snapshot], bool] = lambda snapshot: False
    ) -> None:
        """Wait until the target has ended, the time is over or `until` is true of the newest Snapshot.

        Meanwhile `words` are shown with the seconds that have passed, if stderr is a terminal.
        """
        shown = words and sys.stderr.isatty()
        started = time.monotonic()
        try:
            while not self.ended and not (self.snapshot is not None and until(self.snapshot)):
                self._consider()
                elapsed = time.monotonic() - started
                left = SIGNAL_CHECK_SECONDS if seconds is None else min(SIGNAL_CHECK_SECONDS, seconds - elapsed)
                if left <= 0:
                    return
                if shown:
                    print(f"\r\x1b[2K{words} {elapsed:.0f} s", end="", file=sys.stderr, flush=True)
                self._ended.wait(left)
        finally:
            if shown:
                print("\r\x1b[2K", end="", file=sys.stderr, flush=True)

    def _consider(self) -> None:
        if self._alert is not None and self.snapshot is not None:
            self._alert.consider(self.snapshot)

    def finish(self) -> None:
        """Run the alert's command for the last Snapshot if that asks for it, and wait for the command."""
        if self._alert is not None:
            self._alert.finish(self.snapshot)


@contextlib.contextmanager
def watching(
    targets: Sequence[Target], options: Options, record: Path | None = None, alert: Alert | None = None
) -> Iterator[Watcher]:
    """Watch these processes while the block runs, and stop (and take the hook out) however the block ends.

    The Watcher's last Snapshot is made when the block has ended. A command of the `alert` does not outlive the
    watching. Raises OwnFailureError at the end where aitop itself failed.
    """
    from aitop.engine.live import LiveFeed
    from aitop.outputs.recording import RecordingWriter

    recording = RecordingWriter(record, targets[0]) if record is not None else None
    watcher, feed = Watcher(recording, alert), LiveFeed(targets, options, recording)
    try:
        feed.start(watcher.publish)
        yield watcher
        feed.conclude()
    except BaseException:
        if alert is not None:
            alert.stop()
        raise
    finally:
        feed.stop()
    watcher.finish()
    if watcher.failed is not None:
        kept = watcher.recording_failed or f"what was seen until then is in {record}"
        raise OwnFailureError(watcher.failed if record is None else f"{watcher.failed}; {kept}")
