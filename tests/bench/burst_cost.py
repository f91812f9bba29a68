"""Whether a run is as fast after a burst of torch.profiler as before: steps timed before, and after each of several.

    python tests/bench/burst_cost.py [--bursts 5] [--model mlp|transformer]

One process trains with the hook in; a thread asks for bursts as the monitor would. On a machine with a GPU the model
and its data are on it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time

import torch
from hook_cost_models import MODELS, steps_of

import aitop.hook
from aitop.engine.burst import Taken, take_profile


def timed(run, count: int) -> list[float]:
    """Seconds of each of `count` steps."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        next(run)
        times.append(time.perf_counter() - start)
    return times


def burst(run, steps: int) -> Taken:
    """Train until a profile of so many steps has been taken."""
    taken: list[Taken] = []
    asking = threading.Thread(target=lambda: taken.append(take_profile(os.getpid(), steps)))
    asking.start()
    while asking.is_alive():
        next(run)
    return taken[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--model", choices=tuple(MODELS), default="mlp")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    make, count = MODELS[options.model]
    run = steps_of(make(), device)
    aitop.hook.remove()
    assert aitop.hook.install("run") == "installed"
    timed(run, count)
    before = statistics.median(timed(run, 2 * count))
    print(f"{options.model} on {device}: median step before {before * 1e6:.1f} µs")
    print("burst  events  held ms (start  stop  save)  µs a step in it  after: µs a step  after/before")
    for number in range(options.bursts):
        taken = burst(run, 5)
        timed(run, 10)
        after = statistics.median(timed(run, 2 * count))
        profile, holds = taken.profile, taken.profile.holds
        parts = f"{holds.start * 1e3:5.1f} {holds.stop * 1e3:5.1f} {holds.save * 1e3:5.1f}"
        inside = profile.seconds / profile.steps
        print(
            f"{number + 1:5}{profile.events:8}{holds.total * 1e3:9.1f} ({parts}){inside * 1e6:17.0f}{after * 1e6:18.1f}"
            f"{after / before:14.3f}"
        )
    aitop.hook.remove()


if __name__ == "__main__":
    main()
