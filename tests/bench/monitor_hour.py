"""Memory of engine and screen over an hour of samples, fed as fast as they take them.

The samples are those of a recorded run, again and again with their times moved on, so that every second of the hour
brings other figures than the one before. A screen of 120 × 36 cells draws each of them. The bench's own memory counts.

    python tests/bench/monitor_hour.py
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
from handed_feed import HandedFeed
from results import Figure, options, publish

from aitop.engine.core import Engine
from aitop.model.event import Event
from aitop.model.snapshot import Tick
from aitop.model.steps import HookSample
from aitop.sources.replay import Recording
from aitop.ui.app import MonitorApp

RECORDING = Path(__file__).resolve().parents[1] / "recordings" / "simulated-gpu.jsonl.gz"
QUARTER = 15.0
# A twentieth of the second from one tick to the next.
MOST_TICK_MS = 50.0


def samples(
    seconds: float, pace: float = 1.0, renamed: Callable[[Event, int], Event] = lambda event, loop: event
) -> Iterator[Event]:
    """The recording over and over, each time after the one before; decoded anew, as what comes from a live run is.

    `pace` stretches the time between events; `renamed` gives those of each loop other names.
    """
    shift, loop = 0.0, 0
    while shift < seconds:
        first = last = None
        for event in Recording(RECORDING).events():
            first = event.time if first is None else first
            last = max(event.time, last or event.time)
            yield moved(renamed(event, loop), shift + (event.time - first) * (pace - 1.0))
        assert first is not None and last is not None, "the recording is empty"
        shift += (last - first) * pace + 1.0
        loop += 1


def moved(event: Event, seconds: float) -> Event:
    """The same event so much later."""
    if isinstance(event, HookSample):
        steps = tuple(msgspec.structs.replace(step, end=step.end + seconds) for step in event.steps)
        return msgspec.structs.replace(event, time=event.time + seconds, steps=steps)
    return msgspec.structs.replace(event, time=event.time + seconds)


async def feed(minutes: int) -> list[Figure]:
    """Feed it all, and print the memory at each quarter of an hour."""
    handed, me = HandedFeed(), psutil.Process()
    async with MonitorApp(handed).run_test(size=(120, 36)) as pilot:
        while handed.publish is None:
            await pilot.pause(0.01)
        engine = Engine(Recording(RECORDING).header.target)
        began, due, ticks, cpu = None, 0.0, 0, time.process_time()
        for event in samples(minutes * 60):
            began = event.time if began is None else began
            snapshot = engine.handle(event)
            if not isinstance(event, Tick) or snapshot is None:
                continue
            handed.publish(snapshot)
            ticks += 1
            # Messages are handled and lines are drawn before the next one comes.
            await asyncio.sleep(0.02 if ticks % 20 == 0 else 0)
            minute = (event.time - began) / 60
            if minute >= due:
                gc.collect()
                print(f"{minute:3.0f} min: {me.memory_info().rss / 1e6:5.1f} MB", flush=True)
                due += QUARTER
        used = (time.process_time() - cpu) / max(1, ticks)
    gc.collect()
    return [
        Figure(f"memory after {minutes} min of samples", me.memory_info().rss / 1e6, "MB", most=60),
        Figure("CPU of a tick, engine and screen", used * 1e3, "ms", most=MOST_TICK_MS),
    ]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=int, default=61, help="how much to feed")
    args = parser.parse_args()
    return publish(args, asyncio.run(feed(args.minutes)))


if __name__ == "__main__":
    sys.exit(main())
