"""How much `aitop export --all` slows a training run.

The exporter (with its children) is stopped and continued in blocks of some seconds, in random order within each pair of
blocks, so that a slow moment of the machine affects both. It samples a run now and then, so the figure is one of means:
the time of a step in all blocks beside it, over that in all blocks without. When it continues, it makes up for what it
missed: what it took of a core in the blocks beside it stands in the figure, and is rather more than usual. Being alone,
the run gets all of the budget that jobs share. Measured where a core is free, and again where another process of the
run keeps each other core busy.

    python tests/bench/export_slowdown.py
    python tests/bench/export_slowdown.py --resume                  go on where this was interrupted
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from os import sched_getaffinity
from typing import NamedTuple

import psutil
from export_cost import Watched, in_own_namespace
from results import Figure, Pieces, options, publish
from timed_run import TimedRun

MOST_PERCENT = 1.0
BLOCK_SECONDS, SETTLE_SECONDS = 12.0, 0.2
# Of the exporter beside a new run, which it looks at more closely.
START_SECONDS = 60.0


class Pair(NamedTuple):
    """Milliseconds of a step without the exporter and beside it, and the cores that it took then.

    `full`: no core was free.
    """

    full: bool
    alone: float
    beside: float
    cores: float


def block(run: TimedRun, watched: Watched, number: signal.Signals) -> tuple[float, float]:
    """Milliseconds of a step while the exporter is stopped, or goes on; and the cores that it takes."""
    for process in (watched.process, *watched.process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    time.sleep(SETTLE_SECONDS)
    since, began, used = len(run.steps()), time.monotonic(), watched.cpu()
    time.sleep(BLOCK_SECONDS)
    ends, seconds = [end for end, _ in run.steps(since)], time.monotonic() - began
    if seconds > 2 * BLOCK_SECONDS or len(ends) < 2:
        raise SystemExit(f"the run stood still: {len(ends)} steps in {seconds:.1f} s, {number}")
    return (ends[-1] - ends[0]) / (len(ends) - 1) / 1e6, (watched.cpu() - used) / seconds


def pair(run: TimedRun, watched: Watched, *, full: bool) -> Pair:
    """A block of each kind, in random order."""
    took = {number: block(run, watched, number) for number in random.sample((signal.SIGSTOP, signal.SIGCONT), 2)}
    (alone, _), (beside, cores) = took[signal.SIGSTOP], took[signal.SIGCONT]
    return Pair(full, alone, beside, cores)


def measure(pieces: Pieces, pairs: int, *, full: bool) -> None:
    """Add so many pairs of blocks to the pieces."""
    watched = Watched()
    try:
        watched.wait()
        with TimedRun(burners=len(sched_getaffinity(0)) - 1 if full else 0) as run:
            time.sleep(START_SECONDS)
            if not watched.scrape().count("aitop_up{"):
                raise SystemExit("the exporter does not watch the run")
            for _ in range(pairs):
                pieces.add(pair(run, watched, full=full))
                print(pieces.read()[-1], flush=True)
    finally:
        watched.process.send_signal(signal.SIGCONT)
        watched.stop()


def percent(pairs: Sequence[Pair]) -> float:
    """How much longer a step is beside the exporter than without it, in percent."""
    return (sum(one.beside for one in pairs) / sum(one.alone for one in pairs) - 1.0) * 100


def figure(pairs: Sequence[Pair]) -> Figure:
    """How much longer, with where nineteen of twenty lie that are drawn from the pairs."""
    drawn = sorted(percent(random.choices(pairs, k=len(pairs))) for _ in range(2000))
    alone, cores = (statistics.fmean(getattr(one, name) for one in pairs) for name in ("alone", "cores"))
    where = "no core free" if pairs[0].full else "a core free"
    spread = f"{drawn[50]:.2f} to {drawn[1949]:.2f} in {len(pairs)} pairs; it took {cores * 100:.1f} % of a core"
    what = f"how much longer a step is beside `export --all` (mlp, {alone:.2f} ms a step, {where})"
    return Figure(what, percent(pairs), "%", most=MOST_PERCENT, spread=spread)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--pairs", type=int, default=14, help="of blocks, with a core free and without")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run of this commit ended")
    args = parser.parse_args()
    if shutil.which("unshare"):
        in_own_namespace()
    pieces = Pieces(resume=args.resume)
    done: dict[bool, list[Pair]] = {}
    for full in (False, True):
        left = args.pairs - sum(one[0] == full for one in pieces.read())
        if left > 0:
            measure(pieces, left, full=full)
        done[full] = [Pair(*one) for one in pieces.read() if one[0] == full]
    return publish(args, [figure(pairs) for pairs in done.values()])


if __name__ == "__main__":
    sys.exit(main())
