"""What a training script under test writes down: its own times and losses, without knowing anything of aitop.

A run goes on until the file `NAME.stop` lies in its folder; then the same run is made once more, undisturbed and
without its pauses, and ends after as many steps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from originals import Originals

# Seconds that a step spends in each phase at the least, so that a misplaced phase shows.
PAUSES = {"data_wait": 0.006, "forward": 0.005, "backward": 0.007, "optimizer": 0.003}
# After so many steps torch has put in what it changes of itself. A hook comes later.
SETTLED = 2


class Diary:
    """One run's notes: a line of JSON for each step (`end` in monotonic seconds, `losses` as hexadecimal floats,
    `slept` seconds by phase, `dynamo` its counters, `changed` what is not as it was after the first steps).
    """

    def __init__(self, folder: Path, name: str, rank: str, steps: int | None = None) -> None:
        self.stop = folder / f"{name}.stop"
        self.steps_wanted = steps
        self.steps = 0
        self._file = (folder / f"{name}{rank}.{'steps' if steps is None else 'again'}").open("w")
        self._originals: Originals | None = None
        self._losses: list[str] = []
        self._slept = dict.fromkeys(PAUSES, 0.0)

    def pause(self, phase: str) -> None:
        """Spend a known time in a phase; none in the undisturbed run."""
        if self.steps_wanted is None:
            start = time.monotonic()
            time.sleep(PAUSES[phase])
            self._slept[phase] += time.monotonic() - start

    def loss(self, loss: torch.Tensor) -> None:
        self._losses.append(float(loss.detach()).hex())

    def step(self) -> None:
        """The optimizers of this step are done."""
        line = {
            "end": time.monotonic(),
            "losses": self._losses,
            "slept": self._slept,
            "dynamo": dynamo_counters(),
            "changed": self._originals.changed() if self._originals else [],
        }
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        self.steps += 1
        if self.steps == SETTLED and self.steps_wanted is None:
            self._originals = Originals()
        self._losses = []
        self._slept = dict.fromkeys(PAUSES, 0.0)

    def over(self) -> bool:
        """Whether this was the last step. Asked once a step."""
        if self.steps_wanted is not None:
            return self.steps >= self.steps_wanted
        return self.stop.exists()


def twice(folder: Path, name: str, run: Callable[[Diary], None], rank: str = "") -> None:
    """A run to be watched, and the same once more to compare with. The ranks of a job keep a diary each."""
    watched = Diary(folder, name, rank)
    run(watched)
    run(Diary(folder, name, rank, watched.steps))
    (folder / f"{name}{rank}.done").touch()


def dynamo_counters() -> dict[str, int]:
    """What torch.compile has done so far; empty where it was not used."""
    module = sys.modules.get("torch._dynamo.utils")
    if module is None:
        return {}
    counters = module.counters
    return {
        "frames": counters["frames"]["total"],
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "recompiles": sum(counters["recompiles"].values()),
        "compilations": len(module.get_compilation_metrics()),
        "frames_of_the_hook": len(frames_of_the_hook()),
    }


def frames_of_the_hook() -> list[str]:
    """The functions of the hook that torch.compile has looked at, of those that are still there."""
    codes = [reference() for reference in sys.modules["torch._dynamo.convert_frame"].input_codes.seen]
    return [code.co_name for code in codes if code is not None and code.co_filename.startswith("<aitop hook>")]
