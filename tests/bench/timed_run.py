"""A training run that notes the end of each step and its loss: `timed_run.py FILE MODEL BURNERS`.

FILE gets 16 bytes a step: the monotonic clock in nanoseconds and the loss. MODEL is one of hook_cost_models.MODELS.
BURNERS processes keep as many cores busy all the time. Benches start it with `TimedRun`.
"""

from __future__ import annotations

import multiprocessing
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

STEP = struct.Struct("=qd")
WARM_STEPS, PATIENCE = 50, 90.0

ENDS_IN = 20.0


def interval(values: list[float], figure: Callable[[list[float]], float]) -> tuple[float, float]:
    """Where the figure lies in nineteen of twenty samples drawn from the values."""
    drawn = sorted(figure(random.choices(values, k=len(values))) for _ in range(2000))
    return drawn[50], drawn[1949]


class TimedRun:
    """The run in a process of its own, from its first steps on. Use as a context."""

    def __init__(self, model: str = "mlp", burners: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aitop-bench-")
        self._file = Path(self._folder.name, "steps")
        self._file.touch()
        self.process = subprocess.Popen([sys.executable, __file__, str(self._file), model, str(burners)])
        self.pid = self.process.pid

    def __enter__(self) -> TimedRun:
        deadline = time.monotonic() + PATIENCE
        while len(self.steps()) < WARM_STEPS:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise SystemExit("the training run did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        # Not killed: it ends the processes that keep cores busy.
        self.process.terminate()
        try:
            self.process.wait(ENDS_IN)
        except subprocess.TimeoutExpired:
            # What a peer did to it may have stopped it for good.
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def steps(self, since: int = 0) -> list[tuple[int, float]]:
        """(end in ns, loss) of every step from number `since` on."""
        with self._file.open("rb") as file:
            file.seek(since * STEP.size)
            data = file.read()
        return list(STEP.iter_unpack(data[: len(data) // STEP.size * STEP.size]))

    def goes_on(self, seconds: float = 30.0) -> bool:
        """Whether another step comes in time."""
        before, deadline = len(self.steps()), time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if len(self.steps(before)):
                return True
            time.sleep(0.01)
        return False


def burn() -> None:
    while True:
        pass


def main() -> None:
    # Only the run itself needs torch.
    import signal

    import torch
    from hook_cost_models import MODELS, steps_of

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    for _ in range(int(sys.argv[3])):
        multiprocessing.get_context("fork").Process(target=burn, daemon=True).start()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with open(sys.argv[1], "ab", buffering=0) as file:
        for loss in steps_of(MODELS[sys.argv[2]][0]()):
            file.write(STEP.pack(time.monotonic_ns(), float(loss)))


if __name__ == "__main__":
    main()
