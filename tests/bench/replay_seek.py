"""How long a replay of an hour takes to be somewhere else: python tests/bench/replay_seek.py."""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

import monitor_hour
import psutil

from aitop.engine.replay import ReplayFeed
from aitop.model.snapshot import Snapshot
from aitop.outputs.recording import RecordingWriter
from aitop.sources.replay import Recording


class Arrival:
    """Takes what the feed publishes; `after` calls something and waits until the next picture."""

    def __init__(self) -> None:
        self._came = threading.Event()

    def __call__(self, snapshot: Snapshot) -> None:
        self._came.set()

    def after(self, ask: object, *arguments: float) -> float:
        """Seconds from asking to the picture."""
        self._came.clear()
        started = time.monotonic()
        assert callable(ask)
        ask(*arguments)
        self._came.wait(300)
        return time.monotonic() - started


def seek(feed: ReplayFeed, arrival: Arrival, whole: float) -> None:
    """Go to a few places and tell how long each took."""
    places = (("the end", whole), ("the start", 0.0), ("the middle", whole / 2), ("10 s back", whole / 2 - 10))
    for name, seconds in (*places, ("the last quarter", whole * 3 / 4)):
        print(f"  {name}: {arrival.after(feed.seek_to, seconds):.2f} s")


def measure(path: Path, *, whole: bool) -> None:
    """Open the recording as the screen does; seek at once, a little later, and when all of it was looked through."""
    recording = Recording(path)
    feed, arrival = ReplayFeed(recording), Arrival()
    feed.pause()
    started = time.monotonic()
    feed.start(arrival)
    while feed.position().duration is None:
        time.sleep(0.01)
    length = feed.position().duration or 0.0
    print(f"{length / 60:.0f} min, {path.stat().st_size / 1e6:.1f} MB; length known", end=" ")
    print(f"after {time.monotonic() - started:.2f} s")
    print(f"at once, to the tenth minute: {arrival.after(feed.seek_to, 600.0):.2f} s")
    seek(feed, arrival, length)
    if whole:
        while feed._outline._thread.is_alive():
            time.sleep(0.1)
        print(f"once it was looked through ({time.monotonic() - started:.0f} s after the start)")
        seek(feed, arrival, length)
    feed.stop()
    print(f"memory: {psutil.Process().memory_info().rss / 1e6:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--whole", action="store_true", help="also wait until all of it was looked through (minutes)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hour.jsonl.gz"
        writer = RecordingWriter(path, Recording(monitor_hour.RECORDING).header.target)
        for event in monitor_hour.samples(args.minutes):
            writer.write(event)
        writer.close()
        measure(path, whole=args.whole)


if __name__ == "__main__":
    main()
