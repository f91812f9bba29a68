"""How the CPU of aitop grows with the job: one rank against 64.

Two kinds of ranks: simulated ones, small processes that write the events of steps into a ring as the hook does, twenty
steps a second each (tests/e2e/ranks/simulated.py); and ones that train with torch, four steps a second each, into
which the hook has to be brought and whose stacks change (working_ranks.py).

    python tests/bench/growth.py
"""

from __future__ import annotations

import sys

import peers
from results import Figure, options, publish


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=64, help="of the large job of simulated ranks")
    parser.add_argument("--working", type=int, default=64, help="of the large job of ranks that train")
    parser.add_argument("--start", type=int, default=15, help="seconds that are not measured")
    parser.add_argument("--seconds", type=int, default=20, help="seconds that are measured")
    args = parser.parse_args()
    figures = []
    for kind, script, many in (
        ("simulated", peers.SIMULATED_RANKS, args.ranks),
        ("working", peers.WORKING_RANKS, args.working),
    ):
        cpu = {}
        for ranks in (1, many):
            with peers.job(script, ranks) as pid:
                shows = rf"· {ranks} ranks?\b.*{peers.MEASURES['aitop']}"
                use = peers.use_of(peers.commands(pid)["aitop"], pid, args.start, args.seconds, shows)
                cpu[ranks] = use.mean_cpu()
        spread = f"{cpu[many]:.1%} of a core against {cpu[1]:.1%}"
        what = f"CPU with {many} {kind} ranks, of that with one"
        figures.append(Figure(what, cpu[many] / cpu[1], "×", most=4, spread=spread))
    return publish(args, figures)


if __name__ == "__main__":
    sys.exit(main())
