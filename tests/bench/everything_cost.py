"""What is taken from a training run by all that aitop does beside it: stacks, /proc, GPU, rules, screen.

    python tests/bench/everything_cost.py [--seconds 90] [--model mlp|transformer|both]

The run goes on in a process of its own. The watcher, in a terminal of 120x36, is stopped (SIGSTOP, with its children)
and let go on by turns, in an order of chance, so that a slow moment of the machine meets both; a ratio is of two blocks
next to each other. The hook stays in all the time: what it costs is measured by hook_cost_steps.py, and both together
are everything. What a watcher missed while it was stopped it does when it goes on: the figure is rather too high.
Beside it the same for `py-spy record --nonblocking -r 20` alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from in_terminal import InTerminal

# One turn of the watcher, which has a great deal to do once a second.
BLOCK_SECONDS = 1.0
# A block begins when what stopping and going on stirs up is over.
SETTLE_SECONDS = 0.1
START_SECONDS = 15.0
STATE = struct.Struct("qq")
RUN = """\
import mmap, struct, sys, time
import torch
from hook_cost_models import MODELS, steps_of
torch.set_num_threads(1)
with open(sys.argv[2], "r+b") as file:
    state, count = mmap.mmap(file.fileno(), 0), 0
for _ in steps_of(MODELS[sys.argv[1]][0]()):
    count += 1
    struct.pack_into("qq", state, 0, count, time.monotonic_ns())
"""


@contextlib.contextmanager
def training(model: str) -> Iterator[tuple[int, mmap.mmap]]:
    """A training run: its pid, and where it writes how many steps there were and when the last one ended."""
    with tempfile.TemporaryFile() as file:
        file.truncate(STATE.size)
        state = mmap.mmap(file.fileno(), STATE.size)
        command = [sys.executable, "-c", RUN, model, f"/proc/{os.getpid()}/fd/{file.fileno()}"]
        environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}
        with subprocess.Popen(command, env=environment) as run:
            try:
                while STATE.unpack(state[:])[0] < 3:
                    if run.poll() is not None:
                        raise SystemExit("the training run did not start")
                    time.sleep(0.1)
                yield run.pid, state
            finally:
                run.kill()


def block(state: mmap.mmap) -> float:
    """Microseconds of a step in the time of one block."""
    time.sleep(SETTLE_SECONDS)
    steps, since = STATE.unpack(state[:])
    time.sleep(BLOCK_SECONDS)
    later, now = STATE.unpack(state[:])
    return (now - since) / max(1, later - steps) / 1000


def turns(watcher: InTerminal, state: mmap.mmap, seconds: float) -> list[tuple[float, float]]:
    """(step time while the watcher is stopped, and while it goes on), of pairs of blocks."""
    pairs, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        taken = {}
        for number in random.sample((signal.SIGSTOP, signal.SIGCONT), 2):
            for pid in watcher.tree():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            taken[number] = block(state)
        pairs.append((taken[signal.SIGSTOP], taken[signal.SIGCONT]))
    for pid in watcher.tree():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return pairs


def interval(ratios: list[float]) -> tuple[float, float]:
    """Where nineteen of twenty medians lie of samples drawn from the ratios."""
    medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0, help="for each watcher")
    parser.add_argument("--model", choices=("mlp", "transformer", "both"), default="both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    chosen = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    beside = Path(sys.executable).parent / "py-spy"
    sampler = [str(beside) if beside.exists() else "py-spy", "record", "--nonblocking", "-r", "20", "-d", "3600"]
    for model in ("mlp", "transformer") if chosen.model == "both" else (chosen.model,):
        with training(model) as (pid, state), tempfile.TemporaryDirectory() as folder:
            watchers = {
                "aitop": [sys.executable, "-m", "aitop", "--pid", str(pid)],
                "py-spy": [*sampler, "-f", "raw", "-o", f"{folder}/stacks", "-p", str(pid)],
            }
            for name, command in watchers.items():
                with InTerminal(command) as watcher:
                    time.sleep(START_SECONDS)
                    used, started = watcher.cpu(), time.monotonic()
                    pairs = turns(watcher, state, chosen.seconds)
                    cpu = (watcher.cpu() - used) / (time.monotonic() - started) * 2
                ratios = [watched / alone for alone, watched in pairs]
                low, high = interval(ratios)
                step = statistics.median(alone for alone, _ in pairs)
                figures.setdefault(model, {})[name] = {
                    "step_us": step, "ratio": statistics.median(ratios), "low": low, "high": high, "cpu": cpu
                }  # fmt: skip
                print(
                    f"{model:12}{name:8} step {step:10.1f} us alone,"
                    f" ratio {statistics.median(ratios):.4f} ({low:.4f}-{high:.4f} of {len(ratios)} pairs),"
                    f" {cpu:.1%} of a core while it goes on",
                    flush=True,
                )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
