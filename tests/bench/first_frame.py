"""Seconds from Enter to the first frame, the first measured figure and the first verdict on the screen.

Each program starts in a process of its own on a terminal of 120 × 36 cells and watches a job of about 25 steps a
second. aitop's modules are compiled to bytecode beforehand, as after a first start.

    python tests/bench/first_frame.py
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Iterator

import peers
from results import Figure, options, publish
from terminal import OnTerminal

PATIENCE = 15.0
# What tells the first frame, the first figure that was measured and, of aitop, the first verdict.
FIRST = {
    "aitop": (r"Verdict", r"machine +\d+%", r"-BOUND"),
    "nvitop": (r"NVITOP", r"\d+(\.\d+)?[MG]iB"),
    "py-spy top": (r"Collecting|Total Samples", r"Samples +[1-9]|\d+\.\d\ds +\d+\.\d\ds"),
}
WHAT = ("until the first frame", "until the first measured figure", "until the first verdict")
BARS = (0.5, None, 3.0)


def seconds_until(command: list[str], environment: dict[str, str], words: tuple[str, ...]) -> list[float | None]:
    """Seconds until each of `words` (patterns) stood on the screen, None for one that did not come."""
    first: dict[str, float] = {}
    began = time.monotonic()
    with OnTerminal(command, environment) as program:
        while len(first) < len(words) and time.monotonic() - began < PATIENCE:
            # Not in what was written: a program may write a line in pieces, and only those that changed.
            text = program.screen.text()
            first |= {word: time.monotonic() - began for word in words if word not in first and re.search(word, text)}
            time.sleep(0.02)
    return [first.get(word) for word in words]


def figures(rounds: int) -> Iterator[Figure]:
    starts_of: dict[str, list[list[float | None]]] = {}
    with peers.job(peers.FOUR_WORKERS) as pid:
        for name, command in peers.commands(pid).items():
            starts_of[name] = [seconds_until(command, peers.environment(pid), FIRST[name]) for _ in range(rounds)]
    for number, what in enumerate(WHAT):
        times = [PATIENCE if (took := start[number]) is None else took for start in starts_of["aitop"]]
        ours, worst = statistics.median(times), f"worst of {rounds} starts {max(times):.2f}"
        yield Figure(what, ours, "s", most=BARS[number], spread=worst)
        for name, starts in starts_of.items():
            if name != "aitop" and number < len(FIRST[name]):
                seen = [took for start in starts if (took := start[number]) is not None]
                yield Figure(what, ours, "s", peer=name, theirs=statistics.median(seen) if seen else None)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    return publish(args, list(figures(args.rounds)))


if __name__ == "__main__":
    sys.exit(main())
