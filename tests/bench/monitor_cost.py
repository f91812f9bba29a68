"""CPU, memory and bytes written of aitop beside its peers, each watching the same job with four loader workers.

Each program runs on a terminal of 120 × 36 cells at 1 Hz, for as long as the others; the CPU of its children counts.
What is measured from the first second on includes the start, of aitop as of the others. They take turns, in one order
and then in the other: a shared machine may be twice as slow for minutes.

    python tests/bench/monitor_cost.py
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

import peers
from results import Figure, options, publish


def figures(start: int, seconds: int, rounds: int) -> Iterator[Figure]:
    uses: dict[str, peers.Use] = {}
    with peers.job(peers.FOUR_WORKERS) as pid:
        commands = list(peers.commands(pid).items())
        for turn in range(rounds):
            for name, command in reversed(commands) if turn % 2 else commands:
                use = peers.use_of(command, pid, 0, start + seconds, peers.MEASURES[name])
                uses[name] = use if name not in uses else mean_of(turn, uses[name], use)
    whole = uses.pop("aitop")
    ours, cpu = whole.mean_cpu(), {name: use.mean_cpu() for name, use in uses.items()}
    median = (
        f"median second {statistics.median(whole.cpu):.1%}, after the start {statistics.fmean(whole.cpu[start:]):.1%}"
    )
    yield Figure("CPU from the first second on", ours * 100, "% of a core", spread=median)
    missing = " and ".join(sorted({"nvitop", "py-spy top"} - set(cpu)))
    together = None if missing else cpu["nvitop"] + cpu["py-spy top"]
    yield Figure("the same, as a part of nvitop and py-spy top together", ours / together if together else None, "×",
                 most=0.8, without=missing)  # fmt: skip
    for name, use in uses.items():
        yield Figure("CPU from the first second on", ours * 100, "% of a core", peer=name, theirs=use.mean_cpu() * 100)
        yield Figure("CPU after the start", statistics.fmean(whole.cpu[start:]) * 100, "% of a core", peer=name,
                     theirs=statistics.fmean(use.cpu[start:]) * 100)  # fmt: skip
        yield Figure("memory", whole.memory / 1e6, "MB", peer=name, theirs=use.memory / 1e6)
        written = statistics.fmean(whole.written[start:]), statistics.fmean(use.written[start:])
        yield Figure("written to the terminal", written[0] / 1e3, "kB/s", peer=name, theirs=written[1] / 1e3)


def mean_of(turns: int, before: peers.Use, use: peers.Use) -> peers.Use:
    """The mean of so many turns before and one more, second by second, and the most memory of any."""
    cpu, written = (
        [(turns * mean + new) / (turns + 1) for mean, new in zip(means, values, strict=True)]
        for means, values in ((before.cpu, use.cpu), (before.written, use.written))
    )
    return peers.Use(cpu, written, max(before.memory, use.memory))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--start", type=int, default=20, help="seconds that count as the start")
    parser.add_argument("--seconds", type=int, default=25, help="seconds measured after that")
    parser.add_argument("--rounds", type=int, default=2, help="how often each program is measured")
    args = parser.parse_args()
    return publish(args, list(figures(args.start, args.seconds, args.rounds)))


if __name__ == "__main__":
    sys.exit(main())
