"""CPU of aitop beside its peers on a job of many simulated ranks: python tests/bench/many_ranks.py [--ranks 1 64].

A simulated rank is a small Python process that writes the events of steps into a ring as the hook does, without torch:
twenty steps a second, in which it works a while and waits for the last one in an all_reduce. Rank 3 is late.
`--serve N` only runs the job, for whoever wants to look at it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import monitor_cost
import peers

from aitop.hook import journal
from aitop.hook.ring import Ring

STEP_NS, LATE_RANK = 50_000_000, 3
START_SECONDS, SECONDS = 15, 15
ROOM_SECONDS = 4.0


def simulate() -> None:
    """One rank, told its numbers by the environment, until it is killed."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ring = Ring("run")
    facts = {"way": "run", "python": "3", "torch": "2", "rank": rank, "world_size": world, "watches": ["collective"]}
    ring.write_facts(json.dumps({"facts": facts, "allocators": []}).encode())
    number = time.monotonic_ns() // STEP_NS + 1
    while True:
        wait_until((number + 1) * STEP_NS)
        ring.write(step(number, late=rank == LATE_RANK % world, own=rank % 7))
        number += 1


def wait_until(moment: int) -> None:
    time.sleep(max(0, moment - time.monotonic_ns()) / 1e9)


def step(number: int, *, late: bool, own: int) -> list[int]:
    """The events of a step that ended with the all_reduce of all ranks at `number` + 1 steps of the clock."""
    begin, end = number * STEP_NS, (number + 1) * STEP_NS
    ready = begin + (34_000_000 if late else 12_000_000 + own * 300_000)
    forward = ready - 8_000_000
    return [
        *(journal.NEXT, begin, forward, 1, -1),
        *(journal.FORWARD, forward, forward + 3_000_000, 32, -1),
        *(journal.BACKWARD, forward + 3_000_000, ready, 1, 0),
        *(journal.COLLECTIVE, ready, end - 1_000_000, 4096, -1),
        *(journal.OPTIMIZER_ENDS, end - 1_000_000, end, 1, -1),
    ]


@contextlib.contextmanager
def job(ranks: int) -> Iterator[int]:
    """The pid of the launcher of so many ranks."""
    command = [sys.executable, __file__, "--launch", str(ranks)]
    with subprocess.Popen(command, start_new_session=True) as launcher:
        try:
            time.sleep(ROOM_SECONDS)
            yield launcher.pid
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)


def launch(ranks: int) -> None:
    """Start the ranks as a script of somebody's own would, and wait for them."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999", "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--simulate"],
            env=os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]
    for process in processes:
        process.wait()


def measure(counts: list[int], nvitop: str | None) -> None:
    """A table of all programs for each number of ranks, and the ratios."""
    means: dict[int, dict[str, float]] = {}
    for count in counts:
        with job(count) as pid:
            found = {}
            for name, command in peers.commands(pid, nvitop).items():
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--nvitop", help="path of nvitop's program")
    parser.add_argument("--serve", type=int)
    parser.add_argument("--launch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--simulate", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.simulate:
        simulate()
    elif args.launch:
        launch(args.launch)
    elif args.serve:
        with job(args.serve) as pid:
            print(pid, flush=True)
            signal.pause()
    else:
        measure(args.ranks, args.nvitop)


if __name__ == "__main__":
    main()
