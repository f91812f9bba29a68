"""Waits of tests for something to come true, none of them for ever."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

Value = TypeVar("Value")
PATIENCE_SECONDS = 60.0


def until(
    condition: Callable[[], Value],
    seconds: float = PATIENCE_SECONDS,
    pause: float = 0.01,
    why_not: Callable[[], object] = lambda: "it did not come true",
) -> Value:
    """What the condition returns, as soon as that is true. Fails after so many seconds, with what `why_not` says."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {seconds:g} s: {why_not()}"
        time.sleep(pause)
    return value


def line_of(process: subprocess.Popen[Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """The next line that the process prints; empty where it has ended. One that prints none in time is killed."""
    assert process.stdout is not None
    late = threading.Timer(seconds, process.kill)
    late.start()
    try:
        return process.stdout.readline()
    finally:
        late.cancel()
