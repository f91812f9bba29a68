"""CPU, memory and bytes written of aitop beside its peers, each watching the same job with four loader workers.

Each program runs on a terminal of 120 × 36 cells at 1 Hz, for as long as the others; the CPU of its children counts.
What is measured from the first second on includes the start, of aitop as of the others.

    python tests/bench/monitor_cost.py
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

import peers
from results import Figure, options, publish


def figures(start: int, seconds: int) -> Iterator[Figure]:
    with peers.job(peers.FOUR_WORKERS) as pid:
        commands = peers.commands(pid)
        uses = {name: peers.use_of(command, pid, 0, start + seconds) for name, command in commands.items()}
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


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--start", type=int, default=20, help="seconds that count as the start")
    parser.add_argument("--seconds", type=int, default=25, help="seconds measured after that")
    args = parser.parse_args()
    return publish(args, list(figures(args.start, args.seconds)))


if __name__ == "__main__":
    sys.exit(main())
