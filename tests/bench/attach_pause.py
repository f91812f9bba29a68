"""For how long a run stands still when the hook comes in and when it leaves.

    python tests/bench/attach_pause.py [-n CYCLES]

A small MLP trains in a loop that takes the time of each of its turns. "longest" is the longest turn from the request
until WINDOW_S after its answer, which the hook's first steps are part of; "pause" is that without the usual (median)
turn. "nothing" are windows of the same length in the same run, before each attach, in which nothing is done: what the
machine itself does to such a loop. "stop" is how long the thread was stopped from outside.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from aitop.attach.entrance import deliver
from aitop.attach.payload.bundle import hook_sources

# The clock goes to a file at the end of each turn, eight bytes each.
TARGET = """
import sys, time, torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(net.parameters())
x, y = torch.randn(64, 64), torch.randn(64, 8)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        file.write(time.monotonic_ns().to_bytes(8, "little"))
"""
WARM_S = 5.0
WINDOW_S = 0.3


@dataclass
class Windows:
    """What was done, the moments (ns) between which it shows, and the stops (µs)."""

    what: str
    moments: list[tuple[int, int]] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)


def watch(pid: int, cycles: int) -> list[Windows]:
    nothing, attach, detach = Windows("nothing"), Windows("attach"), Windows("detach")
    for _ in range(cycles):
        for windows in (nothing, attach, detach):
            began = time.monotonic_ns()
            if windows is attach:
                done = deliver(pid, "install", hook_sources(), timeout=5)
                windows.stops.append(done.pause_us)
            elif windows is detach:
                windows.stops.append(deliver(pid, "remove", (), timeout=5).pause_us)
            time.sleep(WINDOW_S)
            windows.moments.append((began, time.monotonic_ns()))
    return [nothing, attach, detach]


def longest_turns(ends: list[int], moments: list[tuple[int, int]]) -> list[float]:
    """The longest turn in each window, in ms."""
    turns = list(pairwise(ends))
    longest = []
    for first, last in moments:
        within = [end - begin for begin, end in turns if end > first and begin < last]
        longest.append(max(within) / 1e6)
    return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", "--cycles", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "turns")
        process = subprocess.Popen([sys.executable, "-c", TARGET, str(path)])
        try:
            time.sleep(WARM_S)
            seen = watch(process.pid, options.cycles)
        finally:
            process.kill()
            process.wait()
        raw = path.read_bytes()
    ends = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw) // 8 * 8, 8)]
    usual = statistics.median(end - begin for begin, end in pairwise(ends)) / 1e6
    print(f"a turn takes {usual:.2f} ms; {options.cycles} cycles")
    print(f"{'':10}{'longest ms p50':>16}{'worst':>8}{'pause ms p50':>14}{'worst':>8}{'stop ms p50':>13}{'worst':>8}")
    for windows in seen:
        longest = sorted(longest_turns(ends, windows.moments))
        middle, worst = statistics.median(longest), longest[-1]
        stops = [us / 1e3 for us in windows.stops] or [0.0]
        print(
            f"{windows.what:10}{middle:16.1f}{worst:8.1f}{middle - usual:14.1f}{worst - usual:8.1f}"
            f"{statistics.median(stops):13.2f}{max(stops):8.2f}"
        )


if __name__ == "__main__":
    main()
