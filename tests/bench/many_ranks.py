"""CPU of aitop beside its peers on a job of many simulated ranks: python tests/bench/many_ranks.py [--ranks 1 64]
[--without-peers].

What a simulated rank is: see tests/ranks/simulated.py. `--serve N` only runs the job, for whoever wants to look at it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import monitor_cost
import peers
import together

SIMULATED = Path(__file__).parents[1] / "ranks" / "simulated.py"
START_SECONDS, SECONDS = 15, 15
ROOM_SECONDS = 4.0


@contextlib.contextmanager
def job(ranks: int) -> Iterator[int]:
    """The pid of the launcher of so many ranks."""
    command = [sys.executable, str(SIMULATED), str(ranks)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as launcher:
        try:
            time.sleep(ROOM_SECONDS)
            yield launcher.pid
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)


def measure(counts: list[int], nvitop: str | None, *, beside: bool) -> None:
    """A table of all programs for each number of ranks, and the ratios."""
    means: dict[int, dict[str, float]] = {}
    for count in counts:
        with job(count) as pid:
            found = {}
            for name, command in peers.commands(pid, nvitop).items():
                if name != "aitop" and not beside:
                    continue
                start = START_SECONDS if name == "aitop" else 5
                environment = peers.environment(pid, "h200-starved")
                found[name] = monitor_cost.measure(command, environment, start, SECONDS)
        print(f"{count} ranks\n{monitor_cost.table(found, START_SECONDS)}", flush=True)
        means[count] = {name: statistics.mean(one.cpu) for name, one in found.items()}
    for count, one in means.items():
        for peer in ("py-spy top", "py-spy top -s"):
            if {"nvitop", peer} <= set(one):
                print(f"{count} ranks: aitop / (nvitop + {peer}): {one['aitop'] / (one['nvitop'] + one[peer]):.2f}")
    if len(counts) > 1:
        print(f"aitop, {counts[-1]} ranks / {counts[0]}: {means[counts[-1]]['aitop'] / means[counts[0]]['aitop']:.2f}")


def main() -> None:
    together.end_below()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--nvitop", help="path of nvitop's program")
    parser.add_argument("--without-peers", action="store_true", help="aitop alone")
    parser.add_argument("--serve", type=int)
    args = parser.parse_args()
    if args.serve:
        with job(args.serve) as pid:
            print(pid, flush=True)
            signal.pause()
    else:
        measure(args.ranks, args.nvitop, beside=not args.without_peers)


if __name__ == "__main__":
    main()
