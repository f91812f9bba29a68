"""What watching costs a training run: steps/s under each way of doing it, side by side in one run.

    python tests/bench/hook_cost.py [--rounds 12] [--seconds 1.5] [--model mlp|transformer|both] [--only hook,removed,…]

One training run goes on in this process. Each round takes the variants in an order of its own, each for some seconds
after a warm-up, between two plain stretches as long; a ratio is to the mean of these two, so that a slow moment of the
machine meets all. Step times are those of the thread's wall clock; `cpu` is the CPU time of the thread, which other
programs disturb less. What `removed` comes to is the noise. Microseconds are told from single steps, at the end, by
hook_cost_steps.py.

  plain        nothing
  hook         the step hook alone
  removed      after its removal
  everything   `aitop record --pid` of this process: hook and stacks at 1 Hz, written to a file nobody reads
  py-spy       `py-spy record --nonblocking -r 20`
  profiler     torch.profiler, host side, without shapes
  traceml      TraceML (package traceml-ai), if it can be imported: in a process of its own launcher's, after as many
               plain rounds there
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from hook_cost_models import MODELS, steps_of

import aitop.hook

WARM_SECONDS = 0.3
# Finding the root module, the time before the hook counts steps, a monitor's or a sampler's start are over by then.
START_SECONDS = {"hook": 2.0, "everything": 4.0, "py-spy": 2.0}


def run_for(run, seconds: float) -> tuple[float, float]:
    """Let the run go on: microseconds of a step, by wall clock (median) and by CPU time of the thread (mean)."""
    times, until = [], time.perf_counter() + seconds
    cpu = time.thread_time_ns()
    while time.perf_counter() < until:
        start = time.perf_counter_ns()
        next(run)
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1000, (time.thread_time_ns() - cpu) / len(times) / 1000


def nothing() -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext()


@contextlib.contextmanager
def hook() -> Iterator[None]:
    assert aitop.hook.install("run") == "installed"
    try:
        yield
    finally:
        own.append(aitop.hook._session._cost.us_per_step())
        assert aitop.hook.remove() == "removed"


@contextlib.contextmanager
def child(command: list[str]) -> Iterator[None]:
    """A program that watches this process, in the background; it ends as with Ctrl-C."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"{command[0]} ended too soon: {process.communicate()[1].strip()[-300:]}")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def everything() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "aitop", "record", "--pid", str(os.getpid()), "-o", f"{folder}/run.jsonl"]
        with child(command):
            yield
    end = time.monotonic() + 10
    while aitop.hook.remove() == "busy" and time.monotonic() < end:
        next(current)


@contextlib.contextmanager
def py_spy() -> Iterator[None]:
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else "py-spy"
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "record", "--nonblocking", "-r", "20", "-d", "3600", "-p", str(os.getpid())]
        with child([*command, "-f", "raw", "-o", f"{folder}/stacks"]):
            yield


@contextlib.contextmanager
def profiler() -> Iterator[None]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        yield


VARIANTS = {
    "plain": nothing,
    "hook": hook,
    "removed": nothing,
    "everything": everything,
    "py-spy": py_spy,
    "profiler": profiler,
}
own: list[float | None] = []
current: Iterator[None] = iter(())


# Wall and CPU microseconds of a step; and such a pair with that of the plain run beside it.
Taken = tuple[float, float]
Beside = tuple[Taken, Taken]


def measure(run, names: list[str], rounds: int, seconds: float) -> dict[str, list[Beside]]:
    """What a step took by variant, once a round, each beside the plain stretches before and after it."""
    times: dict[str, list[Beside]] = {name: [] for name in names}
    order = [name for name in names if name != "plain"]
    shuffle = random.Random(0).shuffle
    before = run_for(run, seconds)
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            with VARIANTS[name]():
                run_for(run, START_SECONDS.get(name, WARM_SECONDS))
                taken = run_for(run, seconds)
            run_for(run, WARM_SECONDS)
            after = run_for(run, seconds)
            times[name].append((taken, ((before[0] + after[0]) / 2, (before[1] + after[1]) / 2)))
            times["plain"].append((after, after))
            before = after
    return times


def measure_traceml(model: str, rounds: int, seconds: float) -> dict[str, list[Beside]]:
    """Plain rounds, then as many with TraceML, in a process of its launcher's; empty where it is not installed."""
    if importlib.util.find_spec("traceml_ai") is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        asked = {"model": model, "rounds": rounds, "seconds": seconds, "file": f"{folder}/figures.json"}
        launch = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"
        script = Path(__file__).with_name("hook_cost_traceml.py")
        command = [sys.executable, "-c", launch, "run", "--logs-dir", f"{folder}/logs", str(script)]
        paths = os.pathsep.join([str(script.parent), *filter(None, sys.path)])
        environment = {**os.environ, "HOOK_COST": json.dumps(asked), "PYTHONPATH": paths}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        figures = Path(asked["file"])
        if not figures.exists():
            raise RuntimeError(f"TraceML did not run: {(done.stdout + done.stderr)[-500:]}")
        found = json.loads(figures.read_text())
        return {name: list(zip(found[name], found["plain"], strict=True)) for name in ("plain", "traceml")}


Figures = dict[str, dict[str, float]]


def report(title: str, times: dict[str, list[Beside]]) -> Figures:
    print(f"{title}: median step time and its ratio to the plain stretches beside it")
    figures = Figures()
    for name, values in times.items():
        ratios = sorted(taken[0] / base[0] for taken, base in values)
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        added = [statistics.median(taken[i] - base[i] for taken, base in values) for i in (0, 1)]
        wall = statistics.median(taken[0] for taken, _ in values)
        figures[name] = {"step_us": wall, "ratio": statistics.median(ratios), "low": low, "high": high}
        figures[name] |= {"added_us": added[0], "added_cpu_us": added[1]}
        print(
            f"  {name:11s} {1e6 / wall:8.1f} steps/s {wall:9.1f} us  ratio {statistics.median(ratios):.4f}"
            f" ({low:.4f}-{high:.4f})  added {added[0]:+8.1f} us, {added[1]:+8.1f} us of CPU"
        )
    known = [value for value in own if value is not None]
    if known:
        print(f"  the hook says of itself: {statistics.median(known):.1f} us per step")
        figures["hook"]["own_us"] = statistics.median(known)
    own.clear()
    return figures


def main() -> None:
    global current
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--model", choices=(*MODELS, "both"), default="both")
    parser.add_argument("--only", help="names of variants, with commas")
    parser.add_argument("--steps", type=float, default=30.0, help="seconds for hook_cost_steps.py at the end")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    aitop.hook.remove()
    asked = options.only.split(",") if options.only else list(VARIANTS)
    names = ["plain", *(name for name in asked if name in VARIANTS and name != "plain")]
    wanted = [name for name in MODELS if options.model in ("both", name)]
    figures: dict[str, Figures] = {}
    for name in wanted:
        model = MODELS[name][0]()
        current = run = steps_of(model)
        run_for(run, 2.0)
        figures[name] = report(name, measure(run, names, options.rounds, options.seconds))
    if not options.only or "traceml" in options.only:
        for name in wanted:
            times = measure_traceml(name, options.rounds, options.seconds)
            if times:
                figures[name]["traceml"] = report(f"{name}, TraceML", times)["traceml"]
            else:
                print("TraceML is not installed")
    if options.steps:
        sys.stdout.flush()
        beside = Path(__file__).with_name("hook_cost_steps.py")
        subprocess.run([sys.executable, str(beside), "--seconds", str(options.steps), "--only", "run"], check=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
