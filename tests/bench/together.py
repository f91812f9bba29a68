"""Stops and continues processes of other sessions along with the program that began them: `together.py PID [PID...]`.

The first pid is watched; while it is stopped (a job that is put aside), so are the others with all their children, or
where no others are named, its own. Ends when the first one does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

LOOK_SECONDS = 0.2


def state_and_parent(pid: int) -> tuple[str, int]:
    """The kernel's letter, X for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "X", 0
    return fields[0].decode(), int(fields[1])


def tree(tops: list[int]) -> list[int]:
    """These and all below them."""
    parents = {int(name): state_and_parent(int(name))[1] for name in os.listdir("/proc") if name.isdigit()}
    found = list(tops)
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def beside(*pids: int) -> subprocess.Popen[bytes]:
    """Begin to watch the calling process for these, or for all that it starts. To be killed by the caller."""
    command = [sys.executable, "-S", __file__, str(os.getpid()), *map(str, pids)]
    return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)


def end_below() -> None:
    """From now on let SIGTERM end whatever the calling process has begun, and then itself."""

    def end(*_: object) -> None:
        for pid in tree([os.getpid()])[1:]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)


def main() -> None:
    first, *others = map(int, sys.argv[1:])
    held: list[int] = []
    while (state := state_and_parent(first)[0]) not in "XZ":
        if state == "T" and not held:
            held = [pid for pid in tree(others or [first]) if pid not in (first, os.getpid())]
            send(signal.SIGSTOP, held)
        elif state != "T" and held:
            send(signal.SIGCONT, held)
            held = []
        time.sleep(LOOK_SECONDS)
    send(signal.SIGCONT, held)


if __name__ == "__main__":
    main()
