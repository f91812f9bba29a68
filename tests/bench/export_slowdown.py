"""How much `aitop export --all` slows a training run.

The exporter does something in some stretches of time only: a tick, or two seconds of py-spy. The steps of the run in
each stretch are held against those just before and after it, in which the exporter sleeps, so that a machine which is
slower for some seconds affects both. What all stretches cost is the figure, as a part of the whole time. Being alone,
the run gets all of the budget that jobs share, after its first minute. Measured where a core is free, and again where
another process of the run keeps each other core busy.

    python tests/bench/export_slowdown.py
    python tests/bench/export_slowdown.py --resume                  go on where this was interrupted
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from os import sched_getaffinity
from statistics import fmean

import msgspec
from export_cost import Exporter, in_own_namespace
from results import Figure, Pieces, options, publish
from timed_run import TimedRun, interval

MOST_PERCENT = 1.0
# Of the exporter beside a new run, which it looks at more closely.
START_SECONDS = 60.0
LOOK_SECONDS, BESIDE_SECONDS = 0.05, 1.0


class Slowdown(msgspec.Struct, frozen=True):
    """Of `seconds` of a run: what each stretch took more than the steps beside it, how long all stretches were, in
    seconds, and the mean step in milliseconds. `full`: no core was free.
    """

    full: bool
    seconds: float
    excess: list[float]
    active: float
    step: float

    def percent(self, excess: Sequence[float]) -> float:
        """How much longer a step is, in percent, if the stretches had cost this."""
        return sum(excess) / (self.seconds - sum(excess)) * 100


def active_stretches(exporter: Exporter, done: threading.Event) -> list[tuple[float, float]]:
    """Where the exporter or a child of its took CPU, as (begin, end) in monotonic seconds."""
    stretches: list[tuple[float, float]] = []
    before, used = time.monotonic(), exporter.cpu()
    while not done.wait(LOOK_SECONDS):
        active = bool(exporter.process.children())
        now, total = time.monotonic(), exporter.cpu()
        if active or total > used:
            joined = stretches and before - stretches[-1][1] < 2 * LOOK_SECONDS
            stretches.append((stretches.pop()[0] if joined else before, now))
        before, used = now, total
    return stretches


def slowdown(ends: Sequence[float], stretches: Sequence[tuple[float, float]], *, full: bool) -> Slowdown:
    """What the stretches cost a run whose steps ended at these times."""
    lengths = [after - before for before, after in pairwise(ends)]

    def steps(begin: float, end: float) -> slice:
        return slice(max(0, bisect_left(ends, begin) - 1), bisect_left(ends, end))

    alone: list[float | None] = list(lengths)
    for begin, end in stretches:
        part = steps(begin, end)
        alone[part] = [None] * len(lengths[part])
    excess = []
    for begin, end in stretches:
        within, around = lengths[steps(begin, end)], alone[steps(begin - BESIDE_SECONDS, end + BESIDE_SECONDS)]
        beside = [length for length in around if length is not None]
        if beside and within:
            excess.append(sum(within) - len(within) * fmean(beside))
    active = sum(end - begin for begin, end in stretches)
    return Slowdown(full, ends[-1] - ends[0], excess, active, fmean(lengths) * 1e3)


def measure(seconds: float, *, full: bool) -> Slowdown:
    """Watch a run for so long."""
    exporter = Exporter()
    try:
        exporter.wait()
        with TimedRun(burners=len(sched_getaffinity(0)) - 1 if full else 0) as run:
            time.sleep(START_SECONDS)
            if not exporter.scrape().count("aitop_up{"):
                raise SystemExit("the exporter does not watch the run")
            done, since = threading.Event(), len(run.steps())
            threading.Timer(seconds, done.set).start()
            stretches = active_stretches(exporter, done)
            return slowdown([end / 1e9 for end, _ in run.steps(since)], stretches, full=full)
    finally:
        exporter.stop()


def figure(slower: Slowdown) -> Figure:
    """How much longer a step is, with where nineteen of twenty lie that are drawn from the stretches."""
    low, high = interval(slower.excess, slower.percent)
    where = "no core free" if slower.full else "a core free"
    words = f"{len(slower.excess)} stretches, {slower.active / slower.seconds:.0%} of {slower.seconds:.0f} s"
    what = f"how much longer a step is beside `export --all` (mlp, {slower.step:.2f} ms a step, {where})"
    spread = f"{low:.2f} to {high:.2f}; {words}"
    return Figure(what, slower.percent(slower.excess), "%", most=MOST_PERCENT, spread=spread)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=160.0, help="with a core free, and as many without")
    parser.add_argument("--resume", action="store_true", help="go on where an interrupted run of this commit ended")
    args = parser.parse_args()
    in_own_namespace()
    pieces = Pieces(resume=args.resume)
    for full in (False, True):
        if not any(piece["full"] == full for piece in pieces.read()):
            pieces.add(msgspec.to_builtins(measure(args.seconds, full=full)))
    return publish(args, [figure(msgspec.convert(piece, Slowdown)) for piece in pieces.read()])


if __name__ == "__main__":
    sys.exit(main())
