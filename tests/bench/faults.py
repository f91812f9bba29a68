"""Faults at random moments while aitop watches a real training run: what the run notices has to be nothing.

    python tests/bench/faults.py [-n TIMES] [-j LANES] [--seed N] [--list] [FAULT ...]

"harmed" counts the times after which the target was not as before: its losses (bit for bit those of an undisturbed
run), what a hook replaces, open files, threads, signals, its processes. "monitor" counts those in which the monitor
neither recovered nor ended cleanly; "told" those in which the screen said what had happened, of those in which it
could; "hook in" those in which the hook was seen in the target.
"""

from __future__ import annotations

import argparse
import os
import platform
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import fault_kinds_outside  # noqa: F401 - it adds its faults to the table
from fault_kinds import FAULTS
from fault_scene import SCRIPT, Scene, Target

# A target is held against the undisturbed run after so many faults, and then another one begins.
TIMES_A_TARGET = 12
HEAD = f"{'fault':18}{'times':>6}{'hook in':>8}{'harmed':>7}{'monitor':>8}{'told':>9}{'s each':>8}"


@dataclass
class Time:
    """One time that a fault was done: the target's steps before and after it, and what came of it."""

    name: str
    target: Target
    first: int
    last: int = 0
    harm: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    told: bool | None = None
    hooked: bool = False
    seconds: float = 0.0


class Lane:
    """Does one fault after another, on a target that is kept as long as it is fit."""

    def __init__(self, jobs: queue.SimpleQueue[tuple[str, int]], done: list[Time], seed: int) -> None:
        self._jobs, self._done, self._seed = jobs, done, seed
        self._target: Target | None = None
        self._used = 0

    def run(self) -> None:
        while True:
            try:
                name, number = self._jobs.get_nowait()
            except queue.Empty:
                break
            self._done.append(self._once(name, random.Random(f"{self._seed} {name} {number}")))
        self._drop()

    def _fit(self, kind: str) -> Target:
        if self._target is None or self._target.kind != kind or self._used >= TIMES_A_TARGET:
            self._drop()
            self._target, self._used = Target(kind).ready(), 0
        self._used += 1
        return self._target

    def _drop(self) -> None:
        if self._target is not None:
            self._target.end()
        self._target = None

    def _once(self, name: str, dice: random.Random) -> Time:
        what = FAULTS[name]
        target = self._fit(what.kind)
        one, began = Time(name, target, target.steps()), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fault-") as folder:
            scene = Scene(target, dice, Path(folder))
            try:
                what.do(scene)
            except Exception:
                scene.bad.append(traceback.format_exc())
            scene.clear()
        one.harm, one.bad, one.told, one.hooked = target.harm(), scene.bad, scene.told, scene.hooked
        one.last, one.seconds = target.steps(), time.monotonic() - began
        if one.harm or what.spends:
            target.kill()
            self._drop()
        for words in (*one.harm, *one.bad):
            print(f"{name}: {words}", file=sys.stderr, flush=True)
        return one


def undisturbed(kind: str, steps: int) -> list[str]:
    """The losses of a run that nobody watches."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(SCRIPT), folder, kind, str(steps)], check=True)
        return (Path(folder) / "losses").read_text().split()[1:]


def compare(done: list[Time]) -> int:
    """Note for each time whether the losses went another way during it; how many losses were compared."""
    targets = {id(one.target): one.target for one in done}.values()
    longest: dict[str, int] = {}
    for target in targets:
        longest[target.kind] = max(longest.get(target.kind, 1), *(len(run) for run in target.runs()))
    right = {kind: undisturbed(kind, steps) for kind, steps in longest.items()}
    compared = 0
    for target in targets:
        before = 0
        for run in target.runs():
            wanted = right[target.kind][: len(run)]
            compared += len(run)
            wrong = next((at for at, pair in enumerate(zip(run, wanted, strict=True)) if pair[0] != pair[1]), None)
            if wrong is not None:
                times = [one for one in done if one.target is target and one.first <= before + wrong]
                times[-1].harm.append(f"other losses from step {wrong} on")
                print(f"{times[-1].name}: other losses from step {wrong} on", file=sys.stderr)
            before += len(run)
        target.clear()
    return compared


def show(names: list[str], done: list[Time], compared: int, lanes: int) -> bool:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {lanes} side by side\n{HEAD}")
    for name in names:
        times = [one for one in done if one.name == name]
        could = [one.told for one in times if one.told is not None]
        print(
            f"{name:18}{len(times):6}{sum(one.hooked for one in times):8}{sum(bool(one.harm) for one in times):7}"
            f"{sum(bool(one.bad) for one in times):8}{f'{sum(could)}/{len(could)}' if could else '–':>9}"
            f"{sum(one.seconds for one in times) / max(1, len(times)):8.1f}"
        )
    harmed, failed = sum(bool(one.harm) for one in done), sum(bool(one.bad) for one in done)
    untold = sum(one.told is False for one in done)
    print(
        f"{'all':18}{len(done):6}{sum(one.hooked for one in done):8}{harmed:7}{failed:8}\n"
        f"{compared} losses compared; target harmed {harmed}, monitor neither recovered nor ended cleanly {failed}, "
        f"not told {untold}"
    )
    return not (harmed or failed or untold)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=20, help="times for each fault")
    parser.add_argument("-j", type=int, default=3, help="how many side by side, each with a target of its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="which (default: all)")
    options = parser.parse_args()
    if options.list:
        print("\n".join(FAULTS))
        return 0
    unknown = [name for name in options.faults if name not in FAULTS]
    if unknown:
        parser.error(f"there is no fault {unknown[0]}: {' '.join(FAULTS)}")
    names = options.faults or list(FAULTS)
    jobs: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for name in names:
        for number in range(options.n):
            jobs.put((name, number))
    done: list[Time] = []
    lanes = [threading.Thread(target=Lane(jobs, done, options.seed).run) for _ in range(options.j)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    return 0 if show(names, done, compare(done), options.j) else 1


if __name__ == "__main__":
    sys.exit(main())
