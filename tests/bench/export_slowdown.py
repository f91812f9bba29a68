"""How much `aitop export --all` slows a training run.

The exporter (with its children) is stopped and continued in blocks of some seconds, in random order within each pair of
blocks, so that a slow moment of the machine affects both. It samples a run now and then, so the figure is one of means:
the time of a step in all blocks beside it, over that in all blocks without. Being alone, the run gets all of the budget
that jobs share. Measured where a core is free, and with --full where another process of the run keeps each core busy.

    python tests/bench/export_slowdown.py [--full]
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import sys
import time

import psutil
from export_cost import Watched, in_own_namespace
from results import Figure, options, publish
from timed_run import TimedRun

MOST = 1.01
BLOCK_SECONDS, SETTLE_SECONDS = 12.0, 0.2
# Of the exporter beside a new run, which it looks at more closely.
START_SECONDS = 45.0


def block(run: TimedRun, watched: Watched, number: signal.Signals) -> float:
    """Milliseconds of a step while the exporter is stopped, or goes on."""
    for process in (watched.process, *watched.process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    time.sleep(SETTLE_SECONDS)
    since, began = len(run.steps()), time.monotonic()
    time.sleep(BLOCK_SECONDS)
    ends = [end for end, _ in run.steps(since)]
    if time.monotonic() - began > 2 * BLOCK_SECONDS or len(ends) < 2:
        raise SystemExit(f"the run stood still: {len(ends)} steps in {time.monotonic() - began:.1f} s, {number}")
    return (ends[-1] - ends[0]) / (len(ends) - 1) / 1e6


def ratio(pairs: list[dict[signal.Signals, float]]) -> float:
    """The time of a step beside the exporter over that without it."""
    return statistics.fmean(pair[signal.SIGCONT] for pair in pairs) / statistics.fmean(
        pair[signal.SIGSTOP] for pair in pairs
    )


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--full", action="store_true", help="no core is free")
    args = parser.parse_args()
    if shutil.which("unshare"):
        in_own_namespace()
    burners = len(os.sched_getaffinity(0)) - 1 if args.full else 0
    watched = Watched()
    try:
        watched.wait()
        with TimedRun(burners=burners) as run:
            time.sleep(START_SECONDS)
            if not watched.scrape().count("aitop_up{"):
                raise SystemExit("the exporter does not watch the run")
            pairs = [
                {number: block(run, watched, number) for number in random.sample((signal.SIGSTOP, signal.SIGCONT), 2)}
                for _ in range(args.pairs)
            ]
            watched.process.send_signal(signal.SIGCONT)
    finally:
        watched.process.send_signal(signal.SIGCONT)
        watched.stop()
    drawn = sorted(ratio(random.choices(pairs, k=len(pairs))) for _ in range(2000))
    alone = statistics.fmean(pair[signal.SIGSTOP] for pair in pairs)
    where = "no core free" if args.full else "a core free"
    what = f"step beside `export --all` (mlp, {alone:.2f} ms a step, {where})"
    spread = f"{drawn[50]:.3f}–{drawn[1949]:.3f} of {len(pairs)} pairs"
    return publish(args, [Figure(what, ratio(pairs), "×", most=MOST, spread=spread)], whole=not args.full)


if __name__ == "__main__":
    sys.exit(main())
