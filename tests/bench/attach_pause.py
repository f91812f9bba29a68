"""How long a training run pauses at an attach and at a detach, and whether it is harmed, by aitop and by other tools.

A small MLP notes the end of each step. Each tool gets a run of its own, and attaches and detaches at random moments:
aitop, `memray attach`, gdb with PyRun_SimpleString (as pyrasite does), and none. A pause is the longest step between
the request and a moment after the answer. A run counts as harmed if it died, froze, or computed other losses than the
run without any tool.

    python tests/bench/attach_pause.py -n 50
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from results import Figure, options, publish
from timed_run import TimedRun

from aitop.attach.entrance import install, remove
from aitop.attach.refusal import AttachRefused

# What the hook does in its first steps belongs to the attach.
AFTERWARDS, PATIENCE = 0.3, 30.0
# Per cent of the requests to attach and to detach.
MOST_REFUSED = 5.0
# As quick as gdb can be: it loads the symbols of Python alone.
GDB = ("-batch", "-nx", "-iex", "set debuginfod enabled off", "-iex", "set auto-solib-add off")
CALLS = (
    "sharedlibrary libpython",
    "set $state = (int)PyGILState_Ensure()",
    'call (int)PyRun_SimpleString("import sys")',
    "call (void)PyGILState_Release($state)",
)


@dataclass(frozen=True)
class Way:
    """How to get in and out of a process; `leave` None where there is nothing to take out."""

    name: str
    enter: Callable[[int], object]
    leave: Callable[[int], object] | None = None


@dataclass
class Cycles:
    """What the cycles of a way came to, in milliseconds; `harm` is empty where there was none."""

    acks: list[float] = field(default_factory=list)
    entering: list[float] = field(default_factory=list)
    leaving: list[float] = field(default_factory=list)
    refused: int = 0
    harm: str = ""


def call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise ValueError((done.stdout + done.stderr).strip()[-200:])


def ways(folder: str) -> Iterator[Way]:
    """Nobody first, then those whose programs are installed."""
    yield Way("nobody", lambda pid: None, lambda pid: None)
    yield Way("aitop", install, remove)
    if not shutil.which("gdb"):
        return
    if importlib.util.find_spec("memray"):
        memray = (sys.executable, "-m", "memray")

        def attach(pid: int) -> None:
            call(*memray, "attach", "--method", "gdb", "-o", f"{folder}/{time.monotonic()}.bin", str(pid))

        yield Way("`memray attach`", attach, lambda pid: call(*memray, "detach", "--method", "gdb", str(pid)))
    script = [word for line in CALLS for word in ("-ex", line)]
    yield Way("gdb and PyRun_SimpleString", lambda pid: call("gdb", *GDB, "-p", str(pid), *script))


def longest_ms(run: TimedRun, began: int, ended: int) -> float:
    """The longest step that had to do with this window of the clock."""
    run.goes_on()
    ends = [end for end, _ in run.steps()]
    return max((later - end for end, later in pairwise(ends) if later > began and end < ended), default=0) / 1e6


def timed(run: TimedRun, action: Callable[[int], object]) -> tuple[float, float]:
    """Milliseconds until the action was done, and the longest step meanwhile."""
    time.sleep(random.uniform(0.0, 0.2))
    began = time.monotonic_ns()
    action(run.pid)
    took = time.monotonic_ns() - began
    time.sleep(AFTERWARDS)
    return took / 1e6, longest_ms(run, began, time.monotonic_ns())


def measure(way: Way, cycles: int, losses: list[float]) -> Cycles:
    """So many times in and out of a run; `losses` are those of the run that nobody entered, and are filled by it."""
    result = Cycles()
    with TimedRun() as run:
        for _ in range(cycles):
            try:
                ack, pause = timed(run, way.enter)
                result.acks.append(ack)
                result.entering.append(pause)
                if way.leave is not None:
                    result.leaving.append(timed(run, way.leave)[1])
            except (AttachRefused, ValueError):
                result.refused += 1
            except subprocess.TimeoutExpired:
                break
            if run.process.poll() is not None:
                break
        if run.process.poll() is not None:
            result.harm = f"died ({run.process.returncode})"
        elif not run.goes_on():
            result.harm = "froze"
        mine = [loss for _, loss in run.steps()]
        if way.name == "nobody":
            losses += mine
        compared = min(len(mine), len(losses))
        if mine[:compared] != losses[:compared] or not compared:
            result.harm = f"other losses within {compared} steps"
    print(
        f"{way.name}: {len(result.acks)} times in, {result.refused} refused, harm: {result.harm or 'none'}", flush=True
    )
    return result


def figures(cycles_by_way: dict[str, Cycles]) -> Iterator[Figure]:
    ours, alone = cycles_by_way.pop("aitop"), cycles_by_way.pop("nobody")
    most = f"{len(ours.acks)} times, longest step with nobody {max(alone.entering):.1f}"
    yield Figure("longest step at an attach, median", median(ours.entering), "ms", most=5, spread=most)
    yield Figure("longest step at an attach, worst", max(ours.entering, default=None), "ms", most=10)
    yield Figure("longest step at a detach, median", median(ours.leaving), "ms", most=5)
    yield Figure("longest step at a detach, worst", max(ours.leaving, default=None), "ms", most=10)
    yield Figure("runs harmed", int(bool(ours.harm)), most=0, spread=ours.harm)
    asked = len(ours.acks) + len(ours.leaving) + ours.refused
    yield Figure("requests refused", 100 * ours.refused / asked if asked else None, "%", most=MOST_REFUSED,
                 spread=f"of {asked}")  # fmt: skip
    yield Figure("until the code is in, median", median(ours.acks), "ms")
    for name, theirs in cycles_by_way.items():
        yield Figure("longest step at an attach, median", median(ours.entering), "ms", peer=name,
                     theirs=median(theirs.entering))  # fmt: skip
        harm = f", which {theirs.harm}" if theirs.harm else ""
        yield Figure("until the code is in, median", median(ours.acks), "ms", peer=name + harm,
                     theirs=median(theirs.acks))  # fmt: skip


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("-n", "--cycles", type=int, default=50)
    args = parser.parse_args()
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        cycles_by_way = {way.name: measure(way, args.cycles, losses) for way in ways(folder)}
    return publish(args, list(figures(cycles_by_way)))


if __name__ == "__main__":
    sys.exit(main())
