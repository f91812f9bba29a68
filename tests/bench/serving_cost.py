"""How much aitop slows a server under load: requests per second and p99, with aitop and without it.

One server and its clients, which wait for each answer, run all the time. A pair is two blocks next to each other, in
random order: one without aitop, and one in which `aitop diagnose` (or the screen, on a terminal) starts, attaches,
watches and ends. A ratio is of the two blocks of a pair; the figure is the median of all pairs. vLLM needs
AITOP_VLLM_PYTHON and AITOP_VLLM_MODEL, as in tests/accuracy/serving.

    python tests/bench/serving_cost.py --pairs 6 --seconds 10
    python tests/bench/serving_cost.py embeddings --clients 2
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from everything_cost import interval
from results import Figure, options, publish
from serving_cases import CASE_BY_NAME  # isort: split

from serving_run import Clients, Server, quantile
from serving_verdicts import running, sends_of
from terminal import OnTerminal

LEAST_RATIO, MOST_RATIO = 0.98, 1.02
DEFAULT = ("embeddings", "review_scores", "vllm")
LONGEST_ATTACH = 20.0


@dataclass(frozen=True)
class Block:
    """Requests a second and the p99 (seconds) of a stretch of time."""

    rate: float
    p99: float


def diagnosed(server: Server, seconds: float) -> None:
    """Come, look and go within this time."""
    command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(server.pid), "--for", f"{seconds - 2.0:g}s"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as watcher:
        watcher.wait(seconds + LONGEST_ATTACH)


def on_screen(server: Server, seconds: float) -> None:
    """The screen comes, stays for this time and leaves."""
    with OnTerminal([sys.executable, "-m", "aitop", "--pid", str(server.pid)]):
        time.sleep(seconds)


WATCHERS: dict[str, Callable[[Server, float], None]] = {"diagnose": diagnosed, "screen": on_screen}


def block(clients: Clients, watch: Callable[[], None]) -> Block:
    """What the clients get while `watch` runs."""
    began = time.monotonic()
    watch()
    until = time.monotonic()
    seconds = [answer.seconds for answer in clients.answers(began, until) if answer.status == 200]
    p99 = quantile(seconds, 0.99)
    if p99 is None:
        raise RuntimeError("nothing was answered")
    return Block(len(seconds) / (until - began), p99)


def pairs(server: Server, clients: Clients, watcher: str, count: int, seconds: float) -> Iterator[tuple[Block, Block]]:
    """(without, with) of pairs of blocks."""
    for _ in range(count):
        taken: dict[bool, Block] = {}
        for watched in random.sample((False, True), 2):
            watch = WATCHERS[watcher] if watched else lambda server, seconds: time.sleep(seconds)
            taken[watched] = block(clients, lambda watch=watch: watch(server, seconds))  # type: ignore[misc]
            # What attaching and leaving stir up belongs to no other block.
            time.sleep(1.0)
        yield taken[False], taken[True]


def figures_of(name: str, watcher: str, clients: int, count: int, seconds: float) -> Iterator[Figure]:
    """Both ratios of one server and one way to watch it."""
    case = CASE_BY_NAME[name]
    with running(case) as server:
        sends = [*sends_of(case), "--clients", str(clients), "--seconds", "900"]
        with Clients(server, sends) as load:
            time.sleep(5.0)
            blocks = list(pairs(server, load, watcher, count, seconds))
            failed = sum(answer.status != 200 for answer in load.answers())
    for what, ratios, bars in (
        ("requests a second", [watched.rate / plain.rate for plain, watched in blocks], {"least": LEAST_RATIO}),
        ("p99", [watched.p99 / plain.p99 for plain, watched in blocks], {"most": MOST_RATIO}),
    ):
        low, high = interval(ratios)
        figure = f"{what} of {name} with {watcher}"
        yield Figure(figure, statistics.median(ratios), "×", spread=f"{low:.3f}–{high:.3f} of {count} pairs", **bars)
    yield Figure(f"failed requests of {name} with {watcher}", failed, most=0)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of serving_cases.py (default: {' '.join(DEFAULT)})")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each block")
    parser.add_argument("--clients", type=int, default=2)
    args = parser.parse_args()
    # Being ended must end the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found: list[Figure] = []
    for name in args.names or DEFAULT:
        missing = CASE_BY_NAME[name].missing()
        if missing:
            print(f"{name} left out: {missing}")
            continue
        for watcher in WATCHERS:
            for figure in figures_of(name, watcher, args.clients, args.pairs, args.seconds):
                print(figure.row(), flush=True)
                found.append(figure)
    return publish(args, found, whole=not args.names)


if __name__ == "__main__":
    sys.exit(main())
