"""What `aitop fleet` takes for a thousand nodes with eight ranks each: the first page, and each time it asks again.

The program runs on a terminal of its own and asks a server in the bench's process, which answers as Prometheus does
and has its answers ready: making them is not counted, reading them is. Time is from Enter to the jobs on the screen;
CPU is that of the program for one more page, a mean over some seconds in which it asks once a second.

    python tests/bench/fleet_scale.py
"""

from __future__ import annotations

import compileall
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from results import Figure, options, publish

# isort: split
from fake_prometheus import Cluster, FakePrometheus, large
from terminal import OnTerminal

import aitop

PATIENCE = 15.0
EACH = 8
RANKS_OF_JOB = {"jobs of 32 ranks": 32, "jobs of one rank": 1}
FIRST_PAGE_SECONDS, REFRESH_CPU_SECONDS = 1.0, 0.3


def figures(nodes: int, seconds: float) -> Iterator[Figure]:
    for what, ranks_of_job in RANKS_OF_JOB.items():
        with FakePrometheus(Cluster(large(nodes, EACH, ranks_of_job))) as fake:
            answers = fake.page()
            command = [sys.executable, "-m", "aitop", "fleet", "--prometheus", fake.url, "--every", "1s"]
            began = time.monotonic()
            with OnTerminal(command, dict(os.environ)) as program:
                while f" ranks on {nodes} nodes" not in program.screen.text():
                    if time.monotonic() - began > PATIENCE:
                        raise SystemExit(f"no page came up:\n{program.screen.text()}")
                    time.sleep(0.01)
                first = time.monotonic() - began
                asked, used = len(fake.asked), program.cpu()
                time.sleep(seconds)
                pages = (len(fake.asked) - asked) / len(answers)
                cpu = (program.cpu() - used) / pages if pages else None
        many, size = f"{nodes * EACH:,} ranks, {what}", f"answers of {sum(map(len, answers)) / 1e6:.1f} MB"
        yield Figure(f"first page of {many}", first, "s", most=FIRST_PAGE_SECONDS, spread=size)
        yield Figure(f"CPU of one more page of {many}", cpu, "s", most=REFRESH_CPU_SECONDS)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    compileall.compile_dir(Path(aitop.__file__).parent, quiet=2)
    return publish(args, list(figures(args.nodes, args.seconds)))


if __name__ == "__main__":
    sys.exit(main())
