"""How much all of aitop but the hook slows a training run: stacks, /proc, GPU, rules, screen.

aitop, on a terminal, is stopped (with its children) and continued, in random order, so that a slow moment of the
machine affects both; a ratio is of two blocks next to each other. The hook stays in: what it adds to a step is measured
by hook_cost_steps.py. When it continues, aitop makes up for what it missed, so the figure is rather too high. `py-spy
record --nonblocking -r 20` is measured in the same way. All of it is measured where a core is free, and again where
a process of the run keeps each other core busy.

    python tests/bench/everything_cost.py --starts 5 --seconds 60
    python tests/bench/everything_cost.py --cores full
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from hook_cost_models import MODELS
from results import Figure, options, publish
from terminal import OnTerminal
from timed_run import TimedRun, interval

# One turn of the watcher, which has a great deal to do once a second; it begins when what stopping stirs up is over.
BLOCK_SECONDS, SETTLE_SECONDS = 1.0, 0.1
# So many steps tell their mean; one that stands still is counted with the step that it holds up.
LEAST_STEPS, LAST_STEP_SECONDS = 20, 10.0
# Once everything has come in, and how long that may take beside busy cores.
ALL_IN, ALL_IN_SECONDS = "host●.* stacks●.* hook●", 60.0
# How long the start takes, and the most that a step may be longer in it and afterwards.
BARS = {False: (15.0, 1.015, 1.015), True: (6.0, 1.05, 1.02)}


def block(run: TimedRun, since: int) -> float:
    """Milliseconds of a step in the time of one block; `since` is a step not long before."""
    time.sleep(SETTLE_SECONDS)
    began = time.monotonic_ns()
    time.sleep(BLOCK_SECONDS)
    ended, deadline = time.monotonic_ns(), time.monotonic() + LAST_STEP_SECONDS
    while True:
        ends = [end for end, _ in run.steps(since)]
        if ends and ends[-1] >= ended:
            return step_ms(ends, began, ended)
        if time.monotonic() > deadline:
            raise SystemExit("the training run stands still")
        time.sleep(0.01)


def step_ms(ends: Sequence[int], began: int, ended: int) -> float:
    """Milliseconds of a step in this stretch: from the last end before it to the first one after it."""
    first, last = bisect_right(ends, began) - 1, bisect_left(ends, ended)
    if first < 0 or last - first < LEAST_STEPS:
        raise SystemExit(f"{last - max(first, 0)} steps in {(ended - began) / 1e9:.1f} s tell nothing")
    return (ends[last] - ends[first]) / (last - first) / 1e6


def pairs(watcher: OnTerminal, run: TimedRun, seconds: float) -> list[tuple[float, float]]:
    """(step time while the watcher is stopped, and while it goes on) of pairs of blocks."""
    blocks, end = [], time.monotonic() + seconds
    since = len(run.steps())
    while time.monotonic() < end:
        taken = {}
        for number in random.sample((signal.SIGSTOP, signal.SIGCONT), 2):
            send(watcher, number)
            taken[number] = block(run, since)
        blocks.append((taken[signal.SIGSTOP], taken[signal.SIGCONT]))
    send(watcher, signal.SIGCONT)
    return blocks


def send(watcher: OnTerminal, number: signal.Signals) -> None:
    for process in watcher.tree():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def ratio(blocks: list[tuple[float, float]]) -> tuple[float, str]:
    """The median of the pairs, and its interval in words."""
    ratios = [watched / alone for alone, watched in blocks]
    low, high = interval(ratios, statistics.median)
    return statistics.median(ratios), f"{low:.3f}–{high:.3f} of {len(ratios)} pairs"


def measure(
    command: list[str], run: TimedRun, starts: int, start: float, seconds: float, shows: str = ""
) -> dict[str, list[tuple[float, float]]]:
    """Pairs of blocks in the `start` of so many watchers, and `after` it, beside the last one.

    After its start each has to show what matches `shows`, and the last one to be there at the end.
    """
    blocks: dict[str, list[tuple[float, float]]] = {"start": [], "after": []}
    for number in range(starts):
        with OnTerminal(command) as watcher:
            blocks["start"] += pairs(watcher, run, start)
            watcher.must_show(shows, ALL_IN_SECONDS)
            if number == starts - 1:
                blocks["after"] += pairs(watcher, run, seconds)
                watcher.must_show(shows)
            if watcher.ended():
                raise SystemExit(f"{command} has ended with {watcher.code}")
    return blocks


def figures(model: str, full: bool, starts: int, seconds: float) -> Iterator[Figure]:
    start, most_first, most_after = BARS[full]
    cores = len(os.sched_getaffinity(0))
    py_spy = Path(sys.executable).parent / "py-spy"
    sampler = [str(py_spy) if py_spy.exists() else "py-spy", "record", "--nonblocking", "-r", "20", "-d", "3600"]
    with TimedRun(model, cores - 1 if full else 0) as run, tempfile.TemporaryDirectory() as folder:
        ours = measure([sys.executable, "-m", "aitop", "--pid", str(run.pid)], run, starts, start, seconds, ALL_IN)
        theirs = measure([*sampler, "-f", "raw", "-o", f"{folder}/stacks", "-p", str(run.pid)], run, 1, start, seconds)
    alone = statistics.median(pair[0] for pair in ours["after"])
    where = f"{model}, {alone:.2f} ms a step, {'all cores busy' if full else 'a core free'}"
    for name, most in (("start", most_first), ("after", most_after)):
        value, spread = ratio(ours[name])
        when = f"in the first {start:.0f} s" if name == "start" else "afterwards"
        peer, _ = ratio(theirs[name])
        yield Figure(f"step while all of it watches, {when} ({where})", value, "×", most=most, spread=spread,
                     peer="py-spy record at 20 Hz", theirs=peer)  # fmt: skip


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--starts", type=int, default=5, help="so many starts of aitop")
    parser.add_argument("--seconds", type=float, default=60.0, help="to measure after the start")
    parser.add_argument("--model", choices=tuple(MODELS), default="mlp")
    parser.add_argument("--cores", choices=("free", "full"), help="only where a core is free, or only where none is")
    args = parser.parse_args()
    ways = [full for full in BARS if args.cores in (None, "full" if full else "free")]
    measured = [figure for full in ways for figure in figures(args.model, full, args.starts, args.seconds)]
    return publish(args, measured)


if __name__ == "__main__":
    sys.exit(main())
