"""Faults at random moments while aitop watches a real training run, none of which may affect the run.

A run counts as harmed if anything differs from before: its losses (compared bit for bit with an undisturbed run), the
attributes that the hook replaces, its open files, threads, signals and processes. A monitor has to recover or to end
cleanly, and to say on its screen what has happened where it can.

    python tests/robustness/faults.py -n 20 [-j LANES] [--seed N] [--resume] [--list] [FAULT ...]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from results import Figure, Pieces, options, publish  # isort: split

import fault_kinds_outside  # noqa: F401 - it adds its faults to the table
from fault_kinds import FAULTS
from fault_scene import SCRIPT, Scene, Target

LEAST_STEPS = 5000
HEAD = f"{'fault':18}{'times':>6}{'hook in':>8}{'harmed':>7}{'monitor':>8}{'shown':>9}{'s each':>8}"


@dataclass
class Result:
    """What came of one time that a fault was done.

    `harm` is what the run noticed, `bad` what a monitor did wrong; `shown` whether the screen said what had happened,
    None where it could not; `losses` were compared.
    """

    name: str
    harm: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    shown: bool | None = None
    hooked: bool = False
    seconds: float = 0.0
    losses: int = 0


def once(name: str, dice: random.Random) -> Result:
    """Do the fault to a run of its own."""
    what, began = FAULTS[name], time.monotonic()
    target = Target(what.kind)
    try:
        with tempfile.TemporaryDirectory(prefix="fault-") as folder:
            scene = Scene(target.ready(), dice, Path(folder))
            try:
                what.do(scene)
            except Exception:
                scene.bad.append(traceback.format_exc())
            scene.clear()
        harm, seconds = target.harm(), time.monotonic() - began
        target.end()
        runs = target.runs()
        harm += other_losses(target.kind, runs)
    finally:
        target.kill()
        target.clear()
    for words in (*harm, *scene.bad, *([scene.not_shown] if scene.not_shown else [])):
        print(f"{name}: {words}", file=sys.stderr, flush=True)
    return Result(name, harm, scene.bad, scene.shown, scene.hooked, seconds, sum(map(len, runs)))


_right: dict[str, list[str]] = {}
_one_at_a_time = threading.Lock()


def other_losses(kind: str, runs: list[list[str]]) -> list[str]:
    """Where a run computed something else than one that nobody watches; that is made once, longer where need be."""
    steps = max(map(len, runs), default=1)
    with _one_at_a_time:
        if len(_right.get(kind, ())) < steps:
            with tempfile.TemporaryDirectory() as folder:
                wanted = str(max(2 * steps, LEAST_STEPS))
                subprocess.run([sys.executable, str(SCRIPT), folder, kind, wanted], check=True)
                _right[kind] = (Path(folder) / "losses").read_text().split()[1:]
        right = _right[kind]
    other = []
    for run in runs:
        wrong = next((at for at, pair in enumerate(zip(run, right, strict=False)) if pair[0] != pair[1]), None)
        other += [] if wrong is None else [f"other losses from step {wrong} on"]
    return other


def show(names: Sequence[str], done: Sequence[Result]) -> None:
    print(HEAD)
    for name in names:
        times = [result for result in done if result.name == name]
        could = [result.shown for result in times if result.shown is not None]
        print(
            f"{name:18}{len(times):6}{sum(result.hooked for result in times):8}"
            f"{sum(bool(result.harm) for result in times):7}"
            f"{sum(bool(result.bad) for result in times):8}{f'{sum(could)}/{len(could)}' if could else '–':>9}"
            f"{sum(result.seconds for result in times) / max(1, len(times)):8.1f}"
        )


def figures(names: Sequence[str], done: Sequence[Result]) -> list[Figure]:
    of = f"of {len(done)}: {len(names)} faults, {sum(result.hooked for result in done)} times with the hook in"
    compared = f"{of}, {sum(result.losses for result in done)} losses compared"
    return [
        Figure("runs harmed", sum(bool(result.harm) for result in done), most=0, spread=compared),
        Figure("monitors that neither recovered nor ended cleanly", sum(bool(result.bad) for result in done), most=0),
        Figure("faults that the screen did not tell", sum(result.shown is False for result in done), most=0),
    ]


def parsed() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("-n", type=int, default=20, help="times for each fault")
    parser.add_argument("-j", type=int, default=3, help="how many side by side, each with a run of its own")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--resume", action="store_true", help="go on where the last one was interrupted")
    parser.add_argument("--list", action="store_true", help="list the faults")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="which (default: all)")
    args = parser.parse_args()
    if unknown := [name for name in args.faults if name not in FAULTS]:
        parser.error(f"there is no fault {unknown[0]}: {' '.join(FAULTS)}")
    return args


def main() -> int:
    args = parsed()
    # Else a shell that put the bench into the background has all monitors ignore an interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if args.list:
        print("\n".join(FAULTS))
        return 0
    names, pieces = args.faults or list(FAULTS), Pieces(resume=args.resume)
    done = [Result(**piece) for piece in pieces.read()]
    times = [(turn, name) for turn in range(args.n) for name in names]
    left = [(turn, name) for turn, name in times if sum(result.name == name for result in done) <= turn]
    with ThreadPoolExecutor(args.j) as lanes:
        try:
            begun = [lanes.submit(once, time[1], random.Random(f"{args.seed} {time}")) for time in left]
            for future in as_completed(begun):
                done.append(future.result())
                pieces.add(asdict(done[-1]))
        except KeyboardInterrupt:
            # Those under way are ended properly, and count no more; the others are not begun.
            lanes.shutdown(cancel_futures=True)
            raise
    show(names, done)
    return publish(args, figures(names, done))


if __name__ == "__main__":
    sys.exit(main())
