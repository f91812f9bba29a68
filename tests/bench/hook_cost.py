"""How much the hook slows a training run, compared with torch.profiler and TraceML, which also time a step's phases.

One training run goes on in this process. Each round takes the variants in random order, each for some seconds between
two equally long stretches without any of them; a ratio is to the mean of these two, so that a slow moment of the
machine affects both. The run after the hook has left is the control: its difference from 1 is noise, and where that is
larger than what the hook may cost, the cost is not known. Microseconds per step are measured by hook_cost_steps.py.
TraceML runs in a process that its own launcher starts, after as many rounds without it.

    python tests/bench/hook_cost.py --rounds 7
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from hook_cost_models import MODELS, steps_of
from results import Figure, options, publish

import aitop.hook

WARM_SECONDS = 0.3
# Until the hook has its root module and counts steps.
HOOK_SECONDS = 2.0


def step_us(run, seconds: float) -> float:
    """Let the run go on: microseconds of a step, the median."""
    times, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter_ns()
        next(run)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000


@contextlib.contextmanager
def hook() -> Iterator[None]:
    assert aitop.hook.install("run") == "installed"
    try:
        yield
    finally:
        assert aitop.hook.remove() == "removed"


def profiler() -> contextlib.AbstractContextManager[object]:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


# What the hook may add to a step in the mean.
MOST_RATIO = 1.01
LEAST_CONTROL, MOST_CONTROL = 0.99, 1.01
Variant = Callable[[], AbstractContextManager[object]]
VARIANTS: dict[str, Variant] = {"hook": hook, "removed": contextlib.nullcontext, "torch.profiler": profiler}


def measure(run, rounds: int, seconds: float) -> dict[str, list[float]]:
    """The ratios of a step to the plain steps before and after it, by variant, one a round."""
    ratios: dict[str, list[float]] = {name: [] for name in VARIANTS}
    before = step_us(run, seconds)
    for _ in range(rounds):
        for name in random.sample(list(VARIANTS), len(VARIANTS)):
            with VARIANTS[name]():
                step_us(run, HOOK_SECONDS if name == "hook" else WARM_SECONDS)
                taken = step_us(run, seconds)
            step_us(run, WARM_SECONDS)
            after = step_us(run, seconds)
            ratios[name].append(2 * taken / (before + after))
            before = after
    return ratios


def measure_traceml(model: str, rounds: int, seconds: float) -> list[float]:
    """Ratios under TraceML in a process of its launcher's; empty where it is not installed."""
    if importlib.util.find_spec("traceml_ai") is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        asked = {"model": model, "rounds": rounds, "seconds": seconds, "file": str(file)}
        launch = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"
        script = Path(__file__).with_name("hook_cost_traceml.py")
        command = [sys.executable, "-c", launch, "run", "--logs-dir", f"{folder}/logs", str(script)]
        paths = os.pathsep.join([str(script.parent), *filter(None, sys.path)])
        environment = {**os.environ, "HOOK_COST": json.dumps(asked), "PYTHONPATH": paths}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        if not file.exists():
            raise RuntimeError(f"TraceML did not run: {(done.stdout + done.stderr)[-500:]}")
        measured = json.loads(file.read_text())
        return [traced / plain for traced, plain in zip(measured["traceml"], measured["plain"], strict=True)]


def figures(model: str, rounds: int, seconds: float) -> Iterator[Figure]:
    torch.set_num_threads(1)
    run = steps_of(MODELS[model][0]())
    # The first step imports a good part of torch.
    next(run)
    step = step_us(run, 2.0)
    ratios = measure(run, rounds, seconds)
    control = statistics.median(ratios["removed"])
    known = LEAST_CONTROL <= control <= MOST_CONTROL
    ours = statistics.median(ratios["hook"]) if known else None
    spread = f"{min(ratios['hook']):.3f}–{max(ratios['hook']):.3f} of {rounds} rounds"
    spread += "" if known else ", the control is off"
    what = f"step with the hook ({model}, {step / 1000:.2f} ms)"
    for name, theirs in (
        ("torch.profiler", ratios["torch.profiler"]),
        ("TraceML", measure_traceml(model, rounds, seconds)),
    ):
        median = statistics.median(theirs) if theirs else None
        yield Figure(what, ours, "×", most=MOST_RATIO, spread=spread, peer=name, theirs=median)
    yield Figure(f"step after the hook has left ({model})", control, "×", most=MOST_CONTROL, least=LEAST_CONTROL)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--model", choices=(*MODELS, "both"), default="both")
    args = parser.parse_args()
    aitop.hook.remove()
    models = MODELS if args.model == "both" else (args.model,)
    return publish(args, [figure for model in models for figure in figures(model, args.rounds, args.seconds)])


if __name__ == "__main__":
    sys.exit(main())
