"""Memory of engine and screen over an hour of samples, fed as they take them: python tests/bench/monitor_hour.py.

The samples are those of a recorded run, again and again with their times moved on, so that every second of the hour
brings other figures than the one before. A screen of 120 × 36 cells draws each of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from aitop.engine.core import Engine
from aitop.engine.feed import Publish
from aitop.model.event import Event
from aitop.model.snapshot import Tick
from aitop.model.steps import HookSample
from aitop.sources.replay import Recording
from aitop.ui.app import MonitorApp
from aitop.ui.screens.monitor import MonitorScreen

RECORDING = Path(__file__).resolve().parents[1] / "recordings" / "simulated-gpu.jsonl.gz"
QUARTERS = (0, 15, 30, 45, 60)


class PushedFeed:
    """A feed that publishes when it is told to."""

    live = True

    def __init__(self) -> None:
        self.publish: Publish | None = None

    def start(self, publish: Publish) -> None:
        self.publish = publish

    def stop(self) -> None:
        """Nothing runs."""


def samples(minutes: int) -> Iterator[Event]:
    """The recording over and over, each time after the one before; decoded anew, as what comes from a live run is."""
    shift, ends = 0.0, None
    while ends is None or shift < minutes * 60:
        first = last = None
        for event in Recording(RECORDING).events():
            first = event.time if first is None else first
            last = max(event.time, last or event.time)
            yield moved(event, shift)
        assert first is not None and last is not None, "the recording is empty"
        ends = last
        shift += last - first + 1.0


def moved(event: Event, seconds: float) -> Event:
    """The same event so much later."""
    if isinstance(event, HookSample):
        steps = tuple(msgspec.structs.replace(step, end=step.end + seconds) for step in event.steps)
        return msgspec.structs.replace(event, time=event.time + seconds, steps=steps)
    return msgspec.structs.replace(event, time=event.time + seconds)


async def feed(minutes: int) -> dict[str, float]:
    """Feed it all; print the memory at each quarter. Gives MB at the end and milliseconds of CPU of a tick."""
    me = psutil.Process()
    memory = 0.0
    with_screen = PushedFeed()
    app = MonitorApp(with_screen)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = app.screen
        assert isinstance(screen, MonitorScreen)
        while with_screen.publish is None:
            await pilot.pause(0.01)
        engine = Engine(Recording(RECORDING).header.target)
        due = [quarter for quarter in QUARTERS if quarter <= minutes]
        began, start, ticks, cpu = None, time.monotonic(), 0, time.process_time()
        for event in samples(minutes):
            began = event.time if began is None else began
            snapshot = engine.handle(event)
            if not isinstance(event, Tick) or snapshot is None:
                continue
            with_screen.publish(snapshot)
            ticks += 1
            # Messages are handled and lines are drawn before the next one comes.
            await asyncio.sleep(0)
            if ticks % 20 == 0:
                await asyncio.sleep(0.02)
            minute = (event.time - began) / 60
            if due and minute >= due[0]:
                gc.collect()
                memory = me.memory_info().rss / 1e6
                print(f"{due.pop(0):3} min: {memory:5.1f} MB", flush=True)
        used = (time.process_time() - cpu) / max(1, ticks)
        print(f"{ticks} ticks in {time.monotonic() - start:.0f} s; {used * 1e3:.1f} ms CPU a tick, engine and screen")
    return {"minutes": minutes, "memory_mb": memory, "tick_ms": used * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=61, help="how much to feed (default: a little over an hour)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    figures = asyncio.run(feed(args.minutes))
    if args.json is not None:
        args.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
