"""Runs as a script of its own beside an attach. Argument: the folder that holds the package `aitop`.

Its input says into which processes a hook is being brought: `+PID START`, and `-PID START` when it is in or given up.
Where the input ends with some of them left, the monitor was killed: they are asked to forget what came.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack

# For how long all of them are waited for, and how long one at a time.
PATIENCE_S, TURN_S = 60.0, 0.05


def left_over() -> list[tuple[int, int]]:
    """Reads to the end of the input: (pid, start in clock ticks after boot) of those left in the middle."""
    left: list[tuple[int, int]] = []
    for line in sys.stdin:
        pid, started = map(int, line[1:].split())
        if line.startswith("+"):
            left.append((pid, started))
        else:
            left.remove((pid, started))
    return left


def clear_up(left: list[tuple[int, int]]) -> None:
    """Asks each until it has taken the request, is gone, or cannot be reached."""
    # Nobody needs the rest of the package as long as all goes well.
    from aitop.attach.attempt import Attempt, Limit  # noqa: PLC0415
    from aitop.attach.refusal import AttachRefused  # noqa: PLC0415
    from aitop.attach.session import begin_dropping  # noqa: PLC0415

    until = time.monotonic() + PATIENCE_S
    with ExitStack() as under_way:
        asked: dict[tuple[int, int], Attempt] = {}
        while left and time.monotonic() < until:
            for one in list(left):
                try:
                    if one not in asked:
                        asked[one] = begin_dropping(*one)
                        under_way.callback(asked[one].close)
                    if asked[one].wait(Limit(time.monotonic() + TURN_S)) is None:
                        continue
                    left.remove(one)
                except AttachRefused as refused:
                    if not refused.passing:
                        left.remove(one)
                if one in asked:
                    asked.pop(one).close()
            time.sleep(TURN_S)


if __name__ == "__main__":
    unfinished = left_over()
    if unfinished:
        sys.path.append(sys.argv[1])
        clear_up(unfinished)
