"""How much aitop slows a server under load: requests per second and p99, with aitop and without it.

One server and its clients, which wait for each answer, run all the time. A pair is two blocks next to each other, in
random order: one without aitop, and one in which `aitop diagnose` (or the screen, on a terminal) starts, attaches,
watches and ends. A ratio is of the two blocks of a pair; the figure is the median of all pairs. Beside it, in a third
block: a loop in Python that takes as much CPU time as aitop has just taken, at once, and does nothing else. vLLM needs
AITOP_VLLM_PYTHON and AITOP_VLLM_MODEL, as in tests/accuracy/serving.

    python tests/bench/serving_cost.py --pairs 6 --seconds 10
    python tests/bench/serving_cost.py embeddings --clients 2
"""

from __future__ import annotations

import json
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from results import Figure, options, publish
from serving_cases import CASE_BY_NAME  # isort: split

from serving_run import Clients, Server, quantile
from serving_verdicts import running, sends_of
from terminal import OnTerminal
from timed_run import interval

LEAST_RATIO, MOST_RATIO = 0.98, 1.02
DEFAULT = ("embeddings", "review_scores", "vllm")
LONGEST_ATTACH = 20.0
# Of the looks: where all cores are busy some end before the hook is in.
LEAST_HOOKED = 50.0
COMPUTING = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass"


@dataclass(frozen=True)
class Block:
    """Requests a second and the p99 (seconds) of a stretch of time, and the CPU seconds of who watched in it.

    `hooked` says whether the hook was in the server.
    """

    rate: float
    p99: float
    cpu: float
    hooked: bool


@dataclass(frozen=True)
class Round:
    """A block without aitop, one with it, and one beside a loop that takes as much CPU time."""

    plain: Block
    watched: Block
    beside: Block


def diagnosed(server: Server, seconds: float) -> bool:
    """Come, look and go within this time; whether the hook was in."""
    file = server.folder / "diagnosed.json"
    file.unlink(missing_ok=True)
    command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(server.pid), "--for", f"{seconds - 2.0:g}s"]
    command += ["--format", "json", "-o", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + LONGEST_ATTACH, check=False)
    if done.returncode:
        raise SystemExit(f"diagnose left with {done.returncode}: {done.stderr[-500:]}")
    return bool(json.loads(file.read_text())["sources"]["hook"]["state"] == "ok")


def on_screen(server: Server, seconds: float) -> bool:
    """The screen comes, stays for this time and leaves; whether the hook came in."""
    with OnTerminal([sys.executable, "-m", "aitop", "--pid", str(server.pid)]) as program:
        time.sleep(seconds)
        program.must_show("host●")
        return program.until("hook●", 0.0) is not None


def nobody(server: Server, seconds: float) -> bool:
    """Nobody looks for this time."""
    time.sleep(seconds)
    return False


def computed(cpu: float, seconds: float) -> bool:
    """A process takes this much CPU time at once; the whole lasts `seconds`. Nobody looks."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", COMPUTING, str(cpu)], check=True)
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    return False


WATCHERS: dict[str, Callable[[Server, float], bool]] = {"diagnose": diagnosed, "screen": on_screen}


def block(clients: Clients, watch: Callable[[], bool]) -> Block:
    """What the clients get while `watch` runs."""
    began, cpu = time.monotonic(), _cpu_of_children()
    hooked = watch()
    until = time.monotonic()
    seconds = [answer.seconds for answer in clients.answers(began, until) if answer.status == 200]
    p99 = quantile(seconds, 0.99)
    if p99 is None:
        raise RuntimeError("nothing was answered")
    return Block(len(seconds) / (until - began), p99, _cpu_of_children() - cpu, hooked)


def _cpu_of_children() -> float:
    """CPU seconds of the children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def rounds(server: Server, clients: Clients, watcher: str, count: int, seconds: float) -> Iterator[Round]:
    """Two blocks in random order, and the third one."""
    for _ in range(count):
        taken: dict[bool, Block] = {}
        for watched in random.sample((False, True), 2):
            taken[watched] = block(clients, partial(WATCHERS[watcher] if watched else nobody, server, seconds))
            # What attaching and leaving stir up belongs to no other block.
            time.sleep(1.0)
        beside = block(clients, partial(computed, taken[True].cpu, seconds))
        time.sleep(1.0)
        yield Round(taken[False], taken[True], beside)


def figures_of(name: str, watcher: str, clients: int, count: int, seconds: float) -> Iterator[Figure]:
    """Both ratios of one server and one way to watch it."""
    case = CASE_BY_NAME[name]
    with running(case) as server:
        sends = [*sends_of(case), "--clients", str(clients), "--seconds", "900"]
        with Clients(server, sends) as load:
            time.sleep(5.0)
            taken = list(rounds(server, load, watcher, count, seconds))
            failed = sum(answer.status != 200 for answer in load.answers())
    measures: tuple[tuple[str, Callable[[Block], float], float | None, float | None], ...] = (
        ("requests a second", lambda block: block.rate, LEAST_RATIO, None),
        ("p99", lambda block: block.p99, None, MOST_RATIO),
    )
    cpu = statistics.median(each.watched.cpu for each in taken)
    for what, of, least, most in measures:
        ratios = [of(each.watched) / of(each.plain) for each in taken]
        low, high = interval(ratios, statistics.median)
        yield Figure(
            f"{what} of {name} with {watcher}",
            statistics.median(ratios),
            "×",
            spread=f"{low:.3f}–{high:.3f} of {count} pairs",
            peer=f"{cpu:.1f} s of CPU time at once",
            theirs=statistics.median(of(each.beside) / of(each.plain) for each in taken),
            least=least,
            most=most,
        )
    yield Figure(f"failed requests of {name} with {watcher}", failed, most=0)
    share, what = (
        statistics.fmean(each.watched.hooked for each in taken),
        f"looks at {name} with {watcher} and the hook",
    )
    yield Figure(what, 100 * share, "%", least=LEAST_HOOKED, spread=f"of {count}")


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of serving_cases.py (default: {' '.join(DEFAULT)})")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each block")
    parser.add_argument("--clients", type=int, default=2)
    args = parser.parse_args()
    # Being ended must end the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measured: list[Figure] = []
    for name in args.names or DEFAULT:
        missing = CASE_BY_NAME[name].missing()
        if missing:
            print(f"{name} left out: {missing}")
            measured.append(Figure(f"requests a second of {name}", None, "×", least=LEAST_RATIO, without=missing))
            continue
        for watcher in WATCHERS:
            for figure in figures_of(name, watcher, args.clients, args.pairs, args.seconds):
                print(figure.row(), flush=True)
                measured.append(figure)
    return publish(args, measured)


if __name__ == "__main__":
    sys.exit(main())
