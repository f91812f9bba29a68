"""kill -9 of the monitor at random moments: what the training runs notice of it, which has to be nothing.

Targets train side by side, each with its own `aitop diagnose`, which is killed and started anew until there were enough
kills. After each the target has two lease periods to be as it was: it compares every attribute of torch that might be
replaced with what it was in its first steps, after each step. At the end it repeats its run undisturbed.

    python tests/bench/kill_monitor.py [-n 100] [--targets 6]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aitop.sources.ring.reader import LEASE_SECONDS

SCRIPT = Path(__file__).parents[1] / "frameworks" / "loops.py"
KINDS = ("plain", "accumulate", "amp", "gan", "loaders", "compiled")
LONGEST_LIFE = 8.0
PATIENCE = 90.0
LONGEST_REPETITION = 900.0
# The target's first steps, in which torch changes itself.
SETTLED = 5
# A step and the look after the lease come on top of it.
SLACK = 1.0


@dataclass
class Target:
    """A training run and the monitor on it. `kills` are (seconds that the monitor lived, whether the hook was in,
    seconds until nothing was changed any more, None if that never came).
    """

    kind: str
    folder: Path
    process: subprocess.Popen[bytes]
    read: int = 0
    last: dict[str, Any] | None = None
    kills: list[tuple[float, bool, float | None]] = field(default_factory=list)

    def notes(self, what: str) -> list[dict[str, Any]]:
        path = self.folder / f"{self.kind}.{what}"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def newest(self) -> dict[str, Any] | None:
        """The newest step; reads only what was added to the file."""
        path = self.folder / f"{self.kind}.steps"
        if path.exists():
            with path.open() as file:
                file.seek(self.read)
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):
                        break
                    self.last = json.loads(line)
                    self.read += len(line)
        return self.last


def start(kind: str, folder: Path) -> Target:
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["nice", sys.executable, str(SCRIPT), str(folder), kind], stdout=log, stderr=log, start_new_session=True
        )
    return Target(kind, folder, process)


def monitor(target: Target) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "aitop", "diagnose", "--pid", str(target.process.pid), "--for", "60s"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def wait(target: Target, come: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not come(target.newest()):
        if target.process.poll() is not None:
            raise SystemExit(f"{target.kind} ended:\n{(target.folder / 'log').read_text()[-2000:]}")
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def one_round(targets: list[Target], dice: random.Random) -> None:
    """A monitor for each target, killed after a while of its own; then each target is looked at until it is clean."""
    began = time.monotonic()
    running = [(target, monitor(target), dice.uniform(0.05, LONGEST_LIFE)) for target in targets]
    killed: list[tuple[Target, float, float, bool]] = []
    for target, process, life in sorted(running, key=lambda item: item[2]):
        time.sleep(max(0.0, began + life - time.monotonic()))
        process.kill()
        process.wait()
        moment = time.monotonic()
        wait(target, lambda step, moment=moment: step is not None and step["end"] > moment, PATIENCE)
        changed = bool(target.last and target.last["changed"])
        killed.append((target, life, moment, changed))
    for target, life, moment, changed in killed:
        left = moment + 2 * LEASE_SECONDS + SLACK - time.monotonic()
        clean = wait(target, lambda step: not step["changed"], max(0.1, left))
        took = target.last["end"] - moment if clean and target.last else None
        target.kills.append((life, changed, took))


def finish(target: Target) -> bool:
    """Wait until the target has repeated its run alone; whether all losses are the same."""
    target.process.wait(LONGEST_REPETITION)
    losses = [[step["losses"] for step in target.notes(what)] for what in ("steps", "again")]
    return target.process.returncode == 0 and bool(losses[0]) and losses[0] == losses[1]


def show(targets: list[Target], same: dict[str, bool]) -> bool:
    print(f"{'target':12} {'steps':>6} {'kills':>5} {'hook in':>7} {'clean after, s: median':>23} {'max':>5} losses")
    good = True
    for target in targets:
        took = sorted(seconds for _, changed, seconds in target.kills if changed and seconds is not None)
        stayed = sum(seconds is None for _, _, seconds in target.kills)
        hooked = sum(changed for _, changed, _ in target.kills)
        middle, most = (f"{took[len(took) // 2]:.1f}", f"{took[-1]:.1f}") if took else ("-", "-")
        print(
            f"{target.kind:12} {len(target.notes('steps')):6} {len(target.kills):5} {hooked:7} {middle:>23} {most:>5} "
            f"{'the same' if same[target.kind] else 'DIFFER'}{f', {stayed} NEVER CLEAN' if stayed else ''}"
        )
        good = good and same[target.kind] and not stayed
    total = sum(len(target.kills) for target in targets)
    print(f"{total} kills, lease {LEASE_SECONDS:g} s: {'nothing noticed' if good else 'FAILED'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=100, help="kills in all")
    parser.add_argument("--targets", type=int, default=len(KINDS), help="training runs side by side")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        targets = [start(kind, Path(folder) / kind) for kind in KINDS[: options.targets]]
        try:
            for target in targets:
                wait(target, lambda step, target=target: target.read and len(target.notes("steps")) > SETTLED, PATIENCE)
            left = options.n
            while left > 0:
                one_round(targets[:left], dice)
                left -= min(left, len(targets))
            for target in targets:
                (target.folder / f"{target.kind}.stop").touch()
            same = {target.kind: finish(target) for target in targets}
            return 0 if show(targets, same) else 1
        finally:
            for target in targets:
                if target.process.poll() is None:
                    os.killpg(target.process.pid, signal.SIGKILL)
                    target.process.wait()


if __name__ == "__main__":
    sys.exit(main())
