"""Whether a training run is as fast after a profile as before: steps timed before, and after each of several.

One process trains with the hook in; a thread asks for profiles as the monitor would. With a GPU the model is on it.

    python tests/bench/burst_cost.py --bursts 5
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time

import torch
from hook_cost_models import MODELS, steps_of
from results import Figure, options, publish

import aitop.hook
from aitop.engine.torch_profile import TakenProfile, take_profile

STEPS = 5


def timed(run, count: int) -> float:
    """The median of so many steps, in milliseconds."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        next(run)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def burst(run) -> TakenProfile:
    """Train until a profile has been taken."""
    taken: list[TakenProfile] = []
    asking = threading.Thread(target=lambda: taken.append(take_profile(os.getpid(), STEPS)))
    asking.start()
    while asking.is_alive():
        next(run)
    return taken[0]


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--bursts", type=int, default=5)
    parser.add_argument("--model", choices=tuple(MODELS), default="mlp")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make, count = MODELS[args.model]
    run = steps_of(make(), "cuda" if torch.cuda.is_available() else "cpu")
    aitop.hook.remove()
    assert aitop.hook.install("run") == "installed"
    timed(run, count)
    before, after, held = timed(run, 2 * count), [], []
    for _ in range(args.bursts):
        held.append(burst(run).profile.holds.total * 1e3)
        timed(run, 10)
        after.append(timed(run, 2 * count))
    aitop.hook.remove()
    ratios = [each / before for each in after]
    spread = f"{min(ratios):.3f}–{max(ratios):.3f} of {args.bursts}, {args.model}, {before:.2f} ms a step"
    return publish(
        args,
        [
            Figure("a step after a profile, of one before", statistics.median(ratios), "×", most=1.05, spread=spread),
            Figure(f"the run held up by a profile of {STEPS} steps", statistics.median(held), "ms"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
