"""Faults at random moments while aitop watches a real training run: what the run notices has to be nothing.

    python tests/bench/faults.py [-n TIMES] [-j LANES] [--seed N] [--minutes M] [--keep FILE] [--list] [FAULT ...]

"harmed" counts the times after which the target was not as before: its losses (bit for bit those of an undisturbed
run), what a hook replaces, open files, threads, signals, its processes. "monitor" counts those in which the monitor
neither recovered nor ended cleanly; "told" those in which the screen said what had happened, of those in which it
could; "hook in" those in which the hook was seen in the target. With --keep, what came of each time is added to a file,
those that are in it count, and the table is of all of them: so it can be done in pieces.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field, fields
from pathlib import Path

import fault_kinds_outside  # noqa: F401 - it adds its faults to the table
import together
from fault_kinds import FAULTS
from fault_scene import SCRIPT, Scene, Target

# A target is held against the undisturbed run after so many faults, and then another one begins.
TIMES_A_TARGET = 8
LEAST_STEPS = 5000
HEAD = f"{'fault':18}{'times':>6}{'hook in':>8}{'harmed':>7}{'monitor':>8}{'told':>9}{'s each':>8}"


@dataclass
class Result:
    """What came of one time that a fault was done. `losses` were compared."""

    name: str
    harm: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    told: bool | None = None
    hooked: bool = False
    seconds: float = 0.0
    losses: int = 0


@dataclass
class Time(Result):
    """The same with the target, and its steps before and after."""

    target: Target | None = None
    first: int = 0
    last: int = 0


class Lane:
    """Does one fault after another, on a target that is kept as long as it is fit."""

    def __init__(self, jobs: queue.SimpleQueue[str], done: list[Time], options: argparse.Namespace) -> None:
        self._jobs, self._done, self._seed, self._file = jobs, done, options.seed, options.keep
        self._until = time.monotonic() + options.minutes * 60
        self._times: list[Time] = []
        self._target: Target | None = None
        self._used = 0

    def run(self) -> None:
        while time.monotonic() < self._until:
            try:
                name = self._jobs.get_nowait()
            except queue.Empty:
                break
            dice = random.Random(f"{self._seed} {name} {len(self._done)} {threading.get_ident()}")
            self._once(name, dice)
        self._drop()

    def _fit(self, kind: str) -> Target:
        if self._target is None or self._target.kind != kind or self._used >= TIMES_A_TARGET:
            self._drop()
            self._target, self._used = Target(kind).ready(), 0
        self._used += 1
        return self._target

    def _drop(self) -> None:
        """End the target, and hold what it computed against what it had to."""
        target, times = self._target, self._times
        self._target, self._times = None, []
        if target is not None:
            target.end()
            compare(target, times)
            if self._file is not None:
                keep(self._file, times)

    def _once(self, name: str, dice: random.Random) -> None:
        what = FAULTS[name]
        target = self._fit(what.kind)
        one, began = Time(name, target=target, first=target.steps()), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fault-") as folder:
            scene = Scene(target, dice, Path(folder))
            try:
                what.do(scene)
            except Exception:
                scene.bad.append(traceback.format_exc())
            scene.clear()
        one.harm, one.bad, one.told, one.hooked = target.harm(), scene.bad, scene.told, scene.hooked
        one.last, one.seconds = target.steps(), time.monotonic() - began
        self._times.append(one)
        self._done.append(one)
        for words in (*one.harm, *one.bad, *([scene.untold] if scene.untold else [])):
            print(f"{name}: {words}", file=sys.stderr, flush=True)
        if one.harm or what.spends:
            target.kill()
            self._drop()


_right: dict[str, list[str]] = {}
_one_at_a_time = threading.Lock()


def right_losses(kind: str, steps: int) -> list[str]:
    """So many losses of a run that nobody watches; it is made once, and again where more are asked for."""
    with _one_at_a_time:
        if len(_right.get(kind, ())) < steps:
            _right[kind] = undisturbed(kind, max(2 * steps, LEAST_STEPS))
        return _right[kind]


def undisturbed(kind: str, steps: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(SCRIPT), folder, kind, str(steps)], check=True)
        return (Path(folder) / "losses").read_text().split()[1:]


def compare(target: Target, times: list[Time]) -> None:
    """Note for each time on this target how many losses it took, and whether they went another way during it."""
    runs = target.runs()
    right = right_losses(target.kind, max((len(run) for run in runs), default=1))
    before = 0
    for run in runs:
        pairs = zip(run, right, strict=False)
        wrong = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        if wrong is not None:
            blamed = [one for one in times if one.first <= before + wrong][-1]
            blamed.harm.append(f"other losses from step {wrong} on")
            print(f"{blamed.name}: {blamed.harm[-1]}", file=sys.stderr)
        before += len(run)
    for one in times:
        one.losses = max(0, one.last - one.first)
    target.clear()


def kept(path: Path | None) -> list[Result]:
    """The results of earlier pieces."""
    if path is None or not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def keep(path: Path, done: list[Time]) -> None:
    """Add results to the file."""
    names = [one.name for one in fields(Result)]
    with path.open("a") as file:
        for one in done:
            file.write(json.dumps({name: getattr(one, name) for name in names}) + "\n")


def show(names: list[str], done: list[Result]) -> bool:
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores\n{HEAD}")
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
        f"{sum(one.losses for one in done)} losses compared; target harmed {harmed}, "
        f"monitor neither recovered nor ended cleanly {failed}, not told {untold}"
    )
    return not (harmed or failed or untold)


def in_turn(left: dict[str, int], dice: random.Random) -> list[str]:
    """The faults as often as is left of them, those first of which most is left; each kind of target in one go."""
    wanted = []
    for turn in range(max(left.values(), default=0), 0, -1):
        names = [name for name in left if left[name] >= turn]
        dice.shuffle(names)
        wanted += names
    return sorted(wanted, key=lambda name: FAULTS[name].kind != "steady")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=20, help="times for each fault")
    parser.add_argument("-j", type=int, default=3, help="how many side by side, each with a target of its own")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing more after so many")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="add to the results in this file")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="which (default: all)")
    options = parser.parse_args()
    unknown = [name for name in options.faults if name not in FAULTS]
    if unknown:
        parser.error(f"there is no fault {unknown[0]}: {' '.join(FAULTS)}")
    return options


def main() -> int:
    options = parsed()
    # Else a shell that put the bench into the background has all monitors ignore an interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.list:
        print("\n".join(FAULTS))
        return 0
    names = options.faults or list(FAULTS)
    before = kept(options.keep)
    left = {name: options.n - sum(one.name == name for one in before) for name in names}
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in in_turn(left, random.Random(options.seed)):
        jobs.put(name)
    done: list[Time] = []
    lanes = [threading.Thread(target=Lane(jobs, done, options).run) for _ in range(options.j)]
    shadow = together.beside()
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    shadow.kill()
    shadow.wait()
    return 0 if show(names, [*before, *done]) else 1


if __name__ == "__main__":
    sys.exit(main())
