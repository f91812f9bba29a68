"""CPU, memory and bytes written of aitop beside its peers, on the same job: python tests/bench/monitor_cost.py.

`--nvitop PATH` names nvitop's program where it is not on the PATH. With `--hour` an hour of samples goes through engine
and screen instead, as fast as they take them, and the memory is told every quarter of it: see monitor_hour.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import monitor_hour
import peers
from in_terminal import InTerminal

START_SECONDS = 20
SECONDS = 25


class Measured(NamedTuple):
    """Of one program: its CPU in cores from second to second and the bytes it wrote in each; bytes of memory."""

    cpu: list[float]
    written: list[float]
    start_cpu: float
    own_memory: int
    memory: int


def measure(command: Sequence[str], environment: dict[str, str], start: int, seconds: int) -> Measured:
    """Run it in a terminal; the first `start` seconds are told as one."""
    with InTerminal(command, environment) as program:
        time.sleep(start)
        start_cpu = program.cpu()
        cpu, written = [], []
        for _ in range(seconds):
            before = time.monotonic(), program.cpu(), program.written
            time.sleep(1.0)
            elapsed = time.monotonic() - before[0]
            cpu.append((program.cpu() - before[1]) / elapsed)
            written.append((program.written - before[2]) / elapsed)
        return Measured(cpu, written, start_cpu, *program.memory())


def table(found: dict[str, Measured], start: int) -> str:
    """What was measured, a program a line."""
    head = f"{'':14} CPU %: mean median  worst   first {start} s CPU s   RSS MB   with children (PSS)   bytes/s"
    lines = [head]
    for name, one in found.items():
        lines.append(
            f"{name:14} {statistics.mean(one.cpu) * 100:11.2f} {statistics.median(one.cpu) * 100:6.2f} "
            f"{max(one.cpu) * 100:6.1f} {one.start_cpu:18.2f} {one.own_memory / 1e6:8.0f} {one.memory / 1e6:21.0f} "
            f"{statistics.mean(one.written):9.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvitop", help="path of nvitop's program")
    parser.add_argument("--only", nargs="+", help="names of the programs to run")
    parser.add_argument("--start", type=int, default=START_SECONDS, help="seconds that count as start-up")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="seconds measured after that")
    parser.add_argument("--scenario", default="h200-starved", help="what the fake NVML plays")
    parser.add_argument("--hour", action="store_true", help="memory over an hour of samples instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    args = parser.parse_args()
    if args.hour:
        asyncio.run(monitor_hour.feed(61))
        return

    found: dict[str, Measured] = {}
    with peers.training() as pid:
        environment = peers.environment(pid, args.scenario)
        known = peers.commands(pid, args.nvitop)
        for name in ("nvitop", "py-spy top"):
            if name not in known:
                print(f"{name} is not installed: it is left out")
        for name, command in known.items():
            if not args.only or name in args.only:
                start = args.start if name == "aitop" else min(args.start, 5)
                found[name] = measure(command, environment, start, args.seconds)
    print(table(found, args.start))
    if args.json is not None:
        args.json.write_text(json.dumps({name: one._asdict() for name, one in found.items()}))
    if {"aitop", "nvitop", "py-spy top"} <= set(found):
        means = {name: statistics.mean(one.cpu) for name, one in found.items()}
        together = means["nvitop"] + means["py-spy top"]
        print(f"aitop / (nvitop + py-spy top): {means['aitop'] / together:.2f}")


if __name__ == "__main__":
    main()
