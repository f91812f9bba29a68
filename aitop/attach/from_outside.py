"""What a thread is doing, as far as `/proc` tells: nothing is stopped for it."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass

# Calls in which a thread waits for the world outside and holds no lock of the C library:
# read poll select nanosleep accept recvfrom recvmsg wait4 epoll_wait, and their kin. No futex: a wait for a
# lock ends by itself when interrupted, and the allocator's locks look just like it.
SLEEPS = {0, 7, 23, 34, 35, 43, 45, 47, 61, 230, 232, 247, 270, 271, 281, 288, 441}
# An interrupted wait with a time limit goes on under this number.
SYS_RESTART = 219


@dataclass(frozen=True)
class SystemCall:
    """A system call that a thread sleeps in: its number, arguments and place, as `/proc/PID/syscall` has them."""

    number: int
    text: str


def sleeping_in(pid: int) -> SystemCall | None:
    """The system call that the main thread sleeps in, None where it runs.

    Raises OSError where the kernel does not tell.
    """
    with open(f"/proc/{pid}/task/{pid}/syscall", encoding="ascii") as file:
        text = file.read()
    number = text.split(None, 1)[0]
    return SystemCall(int(number), text) if number.lstrip("-").isdigit() and int(number) >= 0 else None


def may_be_asleep(pid: int) -> bool:
    """Whether the main thread sleeps in one of SLEEPS; True as well where the kernel does not tell."""
    try:
        call = sleeping_in(pid)
    except OSError:
        return os.path.isdir(f"/proc/{pid}")
    return call is not None and (call.number in SLEEPS or call.number == SYS_RESTART)


def let_it_finish(pid: int, cpu_ns: int, least_s: float, most_s: float) -> None:
    """Waits until the main thread is through with what it is doing briefly: it sleeps, or has run for `cpu_ns` more.

    Where the kernel does not count that, `least_s` is all the wait there is; `most_s` is the longest.
    """
    end = time.monotonic() + most_s
    before = _time_run(pid)
    time.sleep(least_s)
    while before and time.monotonic() < end:
        if _time_run(pid) - before >= cpu_ns or _state(pid) not in ("R", "D", "T", "t"):
            return
        time.sleep(0.001)


def _time_run(pid: int) -> int:
    """Nanoseconds for which the main thread has run, 0 where that is not known."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def cannot_be_woken(pid: int) -> bool:
    """Whether the main thread is in an uninterruptible wait, in which it could not be stopped either."""
    return _state(pid) == "D"


def _state(pid: int) -> str:
    """The letter of the main thread's state, "" where it is gone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def on_x86_64() -> bool:
    """Whether this machine is of the one kind whose signal frames and registers are known."""
    return platform.machine() in ("x86_64", "AMD64")
