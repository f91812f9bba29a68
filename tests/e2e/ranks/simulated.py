"""Ranks that only say that they train: small processes that write the events of steps into a ring as the hook does,
without torch. `simulated.py N [--restart]` starts so many, and with --restart, a new one for each that ends.

Twenty steps a second, in which a rank works a while and waits for the last one in an all_reduce; rank 3 is late.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from aitop.hook.ring import Ring
from aitop.protocol import events

STEP_NS, LATE_RANK = 50_000_000, 3


def simulate() -> None:
    """One rank, told its numbers by the environment, until it is killed."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ring = Ring("run")
    facts = {"way": "run", "python": "3", "torch": "2", "rank": rank, "world_size": world, "watches": ["collective"]}
    ring.write_facts(json.dumps({"facts": facts, "allocators": []}).encode())
    number = time.monotonic_ns() // STEP_NS + 1
    while True:
        time.sleep(max(0, (number + 1) * STEP_NS - time.monotonic_ns()) / 1e9)
        ring.write(step(number, late=rank == LATE_RANK % world, own=rank % 7))
        number += 1


def step(number: int, *, late: bool, own: int) -> list[int]:
    """The events of a step that ended with the all_reduce of all ranks at `number` + 1 steps of the clock."""
    begin, end = number * STEP_NS, (number + 1) * STEP_NS
    ready = begin + (34_000_000 if late else 12_000_000 + own * 300_000)
    forward = ready - 8_000_000
    return [
        *(events.NEXT, begin, forward, 1, -1),
        *(events.FORWARD, forward, forward + 3_000_000, 32, -1),
        *(events.BACKWARD, forward + 3_000_000, ready, 1, 0),
        *(events.COLLECTIVE, ready, end - 1_000_000, 4096, -1),
        *(events.OPTIMIZER_ENDS, end - 1_000_000, end, 1, -1),
    ]


def launch(ranks: int, *, restart: bool) -> None:
    """Start the ranks as a script of somebody's own would."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29999", "WORLD_SIZE": str(ranks)}

    def start(rank: int) -> subprocess.Popen[bytes]:
        numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        return subprocess.Popen([sys.executable, __file__], env=os.environ | meeting | numbers)

    running = [start(rank) for rank in range(ranks)]
    print("step 1: all ranks are started", flush=True)
    while any(process.poll() is None for process in running) or restart:
        time.sleep(0.1)
        if restart:
            running = [process if process.poll() is None else start(rank) for rank, process in enumerate(running)]


if __name__ == "__main__":
    if "RANK" in os.environ:
        simulate()
    else:
        launch(int(sys.argv[1]), restart="--restart" in sys.argv)
