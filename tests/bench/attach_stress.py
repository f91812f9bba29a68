"""N attach/detach cycles per kind of target: acknowledgements, how long a thread stood still, harm, leftovers.

    python tests/bench/attach_stress.py [-n CYCLES] [--python PATH] [KIND ...]

A cycle is one install and one remove of a stand-in hook. "harmed" counts targets that died, froze or
computed something wrong; "refused" the requests that were withdrawn in time. The kind `killed` has the
injector killed at a random moment of each cycle.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from attach_targets import KINDS, STAND_IN, Victim, leftovers

from aitop.attach import AttachRefused
from aitop.attach.session import deliver

DEFAULT = [
    *("training", "busy", "c-call", "sleep", "longsleep", "lock", "queue", "select", "epoll"),
    *("allocating", "native-allocating", "importing", "timers", "forking", "vector", "killed"),
]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else float("nan")


def cycle(victim: Victim, pauses: list[float], acks: list[float]) -> int:
    """One install and one remove; returns how many of the two were refused."""
    refused = 0
    for action in ("install", "remove"):
        try:
            done = deliver(victim.pid, action, STAND_IN, timeout=5, torch=False)
        except AttachRefused:
            refused += 1
        else:
            pauses.append(done.pause_us)
            acks.append(done.ack_ms)
    return refused


def killed_cycle(victim: Victim) -> None:
    child = os.fork()
    if not child:
        while True:
            cycle(victim, [], [])
    time.sleep(random.uniform(0, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def stress(kind: str, cycles: int, python: str) -> str:
    victim = Victim("busy" if kind == "killed" else kind, python=python)
    pauses: list[float] = []
    acks: list[float] = []
    refused, harmed, done, since = 0, [], 0, time.monotonic()
    try:
        for _ in range(cycles):
            if kind == "killed":
                killed_cycle(victim)
            else:
                refused += cycle(victim, pauses, acks)
            done += 1
            if victim.process.poll() is not None:
                harmed.append(f"died {victim.process.returncode}")
                break
        if not harmed and not victim.goes_on():
            harmed.append("froze")
        if kind == "killed":
            refused += cycle(victim, pauses, acks)
        code, out, err = victim.end(timeout=60)
        last = out.splitlines()[-1] if out else "nothing"
        if code or err or not last.startswith("bad 0 same True"):
            harmed.append(f"{code} {last} {err[-200:]}")
        left = leftovers(victim.pid)
    finally:
        victim.kill()
    return (
        f"{kind:18}{done:7}{len(acks):7}{refused:9}{statistics.median(acks) if acks else float('nan'):9.1f}"
        f"{percentile(pauses, 0.5):10.0f}{percentile(pauses, 0.99):8.0f}{len(harmed):8}{len(left):6}"
        f"{time.monotonic() - since:8.1f}  {'; '.join(harmed)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--cycles", type=int, default=200)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the targets")
    parser.add_argument("kinds", nargs="*", default=DEFAULT, metavar="KIND", help=f"{', '.join([*KINDS, 'killed'])}")
    chosen = parser.parse_args()
    print("kind               cycles  acked  refused  ack ms  stop µs p50     p99  harmed  left  seconds", flush=True)
    for kind in chosen.kinds:
        print(stress(kind, chosen.cycles, chosen.python), flush=True)


if __name__ == "__main__":
    main()
