"""The child process of watchdog.py, a script of its own. Argument: the folder that holds the package `aitop`.

Its input says to which processes a hook is on its way: `+PID START`, and `-PID START` when the attach has ended. Where
the input ends with some of them left, the monitor was killed: they are asked to drop what arrived. The script is a file
of its own to import little: it is started at every attach, and nearly always ended without having had to do anything.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

# Seconds to wait for all of them together, and for one at a time.
PATIENCE_S, TURN_S = 60.0, 0.05


def left_over() -> list[tuple[int, int]]:
    """Reads the input to its end: (pid, start in clock ticks after boot) of the attaches that were not finished."""
    left: list[tuple[int, int]] = []
    for line in sys.stdin:
        pid, started = map(int, line[1:].split())
        if line.startswith("+"):
            left.append((pid, started))
        else:
            left.remove((pid, started))
    return left


def clean_up(left: list[tuple[int, int]]) -> None:
    """Asks each process until it has dropped its parts, is gone, or cannot be reached."""
    # Not at the top: rarely needed.
    from aitop.attach.attempt import Attempt, Limit  # noqa: PLC0415
    from aitop.attach.entrance import begin_dropping  # noqa: PLC0415
    from aitop.attach.refusal import AttachRefused  # noqa: PLC0415

    until = time.monotonic() + PATIENCE_S
    with ExitStack() as under_way:
        asked: dict[tuple[int, int], Attempt] = {}
        while left and time.monotonic() < until:
            for process in list(left):
                try:
                    if process not in asked:
                        asked[process] = begin_dropping(*process)
                        under_way.callback(asked[process].close)
                    if asked[process].wait(Limit(time.monotonic() + TURN_S)) is None:
                        continue
                    left.remove(process)
                except AttachRefused as refused:
                    if not refused.passing:
                        left.remove(process)
                if process in asked:
                    asked.pop(process).close()
            time.sleep(TURN_S)


if __name__ == "__main__":
    unfinished = left_over()
    if unfinished:
        sys.path.append(sys.argv[1])
        clean_up(unfinished)
