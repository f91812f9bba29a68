"""CPU of a tick with 1 and with 64 processes in the tree, and their ratio: python tests/bench/tree_cost.py.

A tick is a read of the host source, the engine's part with its rules, and the screen at 200x50 with the process pane.
The processes sleep: what grows with their number is aitop's own work.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aitop.engine.core import Engine
from aitop.engine.feed import Publish
from aitop.model.snapshot import Target, Tick
from aitop.sources.host import HostSource
from aitop.ui.app import MonitorApp

SIZE = (200, 50)
TICKS = 25
SETTLING = 5
TREE = """
import os, sys, time
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
print("ready", flush=True)
time.sleep(600)
"""


class Handed:
    """A feed that shows what it is handed."""

    live = True
    publish: Publish | None = None

    def start(self, publish: Publish) -> None:
        self.publish = publish

    def stop(self) -> None:
        pass


async def measure(processes: int) -> dict[str, float]:
    """CPU milliseconds of a tick by part, medians."""
    argv = [sys.executable, "-S", "-c", TREE, str(processes)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as top:
        try:
            assert top.stdout is not None
            top.stdout.readline()
            return await _ticks(top.pid, processes)
        finally:
            os.killpg(top.pid, signal.SIGKILL)


async def _ticks(pid: int, processes: int) -> dict[str, float]:
    source, feed = HostSource([pid]), Handed()
    engine = Engine(Target(pid=pid, command="python train.py"))
    source.open()
    app = MonitorApp(feed)
    spent: dict[str, list[float]] = {"source": [], "engine": [], "screen": []}
    async with app.run_test(size=SIZE) as pilot:
        while feed.publish is None:
            await pilot.pause(0.01)
        for tick in range(SETTLING + TICKS):
            await asyncio.sleep(0.05)
            sample, read = timed(source.read)
            made: list[Any] = []

            def handle(events: list[Any] = sample, made: list[Any] = made) -> None:
                for event in events:
                    engine.handle(event)
                made.append(engine.handle(Tick(time=time.monotonic(), wall=time.time(), monitor_cpu=0.01)))

            _, judged = timed(handle)
            before = time.process_time()
            feed.publish(made[0])
            await pilot.pause()
            drawn = time.process_time() - before
            if tick >= SETTLING:
                for name, seconds in (("source", read), ("engine", judged), ("screen", drawn)):
                    spent[name].append(seconds * 1e3)
    assert len(source.tree()) == processes
    return {name: statistics.median(values) for name, values in spent.items()}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the CPU seconds it took."""
    before = time.process_time()
    result = work()
    return result, time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    found = {processes: asyncio.run(measure(processes)) for processes in (1, 64)}
    print(f"{'':14}" + "".join(f"{name:>10}" for name in (*found[1], "a tick")) + "   CPU ms")
    for processes, parts in found.items():
        values = "".join(f"{value:10.2f}" for value in (*parts.values(), sum(parts.values())))
        print(f"{processes:3} processes {values}")
    ratios = [found[64][name] / found[1][name] for name in found[1]]
    total = sum(found[64].values()) / sum(found[1].values())
    print("ratio         " + "".join(f"{value:9.1f}×" for value in (*ratios, total)))
    if args.json is not None:
        args.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
