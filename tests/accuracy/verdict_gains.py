"""What a fix really gives: the script as it is and mended, in turn, while the other one stands still.

Both are started once and stopped with a signal when it is not their turn, so that a drifting machine meets both alike
and no time goes into starting again. Their steps are counted from what they print.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from expected import Scenario
from launch import Training

START_SECONDS = 120.0
WARM_STEPS = 5
LAST_WORD_SECONDS = 15.0
POLL_SECONDS = 0.01


class Runner:
    """One of the two scripts. `prints` has (seconds that it ran, steps that it printed), from the first turn on."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.ran = 0.0
        self.prints: list[tuple[float, int]] = []

    def turn(self, seconds: float, *, last: bool) -> None:
        """Let it run for a while; the last turn ends with a word about the steps."""
        known = self.training.steps()
        begun = time.monotonic()
        os.killpg(self.training.pid, signal.SIGCONT)
        while True:
            time.sleep(POLL_SECONDS)
            elapsed = time.monotonic() - begun
            steps = self.training.steps()
            news = steps != known
            if news:
                known = steps
                self.prints.append((self.ran + elapsed, steps))
            if not self.training.alive():
                raise RuntimeError(f"{self.training.script.name} has ended:\n{self.training.output()}")
            if elapsed >= seconds and (news or not last or elapsed >= seconds + LAST_WORD_SECONDS):
                break
        os.killpg(self.training.pid, signal.SIGSTOP)
        self.ran += elapsed

    def rate(self) -> float:
        """Steps per second of its own turns."""
        if len(self.prints) < 2:
            raise RuntimeError(f"{self.training.script.name} printed its steps fewer than twice")
        (begun, first), (ended, last) = self.prints[0], self.prints[-1]
        return (last - first) / (ended - begun)

    def stop(self) -> None:
        """End the script; a stopped one has to go on to hear of it."""
        try:
            os.killpg(self.training.pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
        self.training.stop()


def gain(scenario: Scenario, turns: int, seconds: float) -> tuple[float, float]:
    """Steps per second as it is and mended, from that many turns of each."""
    with tempfile.TemporaryDirectory() as folder:
        logs = (Path(folder) / "log-plain", Path(folder) / "log-fixed")
        plain, fixed = in_turns(
            [
                lambda: Training(scenario.script, *scenario.args, log=logs[0]),
                lambda: Training(scenario.script, *scenario.args, *scenario.fix, log=logs[1]),
            ],
            turns,
            seconds,
        )
    return plain, fixed


def write_gains(file: Path, gains: Mapping[str, tuple[float, float]], how: str) -> None:
    """Keep the steps per second of each script as it is and mended, a line each, with the day and how they were got."""
    lines = [f"  {json.dumps(name)}: {json.dumps([round(rate, 3) for rate in gains[name]])}" for name in sorted(gains)]
    about = {"measured": time.strftime("%Y-%m-%d"), "how": f"{how}. Steps per second as it is, and mended."}
    head = ",\n".join(f" {json.dumps(name)}: {json.dumps(words)}" for name, words in about.items())
    file.write_text(f'{{\n{head},\n "gains": {{\n' + ",\n".join(lines) + "\n }\n}\n")


def in_turns(starts: Sequence[Callable[[], Training]], turns: int, seconds: float) -> list[float]:
    """Steps per second of each of these scripts, from that many turns of each."""
    runners: list[Runner] = []
    try:
        for start in starts:
            runners.append(Runner(start()))
        for runner in runners:
            runner.training.wait_steps(WARM_STEPS, timeout=START_SECONDS)
        for runner in runners:
            os.killpg(runner.training.pid, signal.SIGSTOP)
        for turn in range(turns):
            for runner in runners:
                runner.turn(seconds, last=turn == turns - 1)
        return [runner.rate() for runner in runners]
    finally:
        for runner in runners:
            runner.stop()
