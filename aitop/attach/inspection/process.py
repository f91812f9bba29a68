"""Reads from `/proc` what matters about a process that is to be entered, and about its main thread."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import time

from aitop.sources import procfs
from aitop.sources.process_status import ProcStatus

KCMP_VM = 1
# The number of kcmp(2), which has no function in the C library. None if not known for this machine.
SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())

# System calls (x86-64 numbers) in which a thread waits for something outside the process and holds no lock of the C
# library: read poll select nanosleep accept recvfrom recvmsg wait4 epoll_wait and their variants. futex is not among
# them: a wait for one of the allocator's locks looks like any other, and an interrupted futex wait ends by itself.
SLEEPS = {0, 7, 23, 34, 35, 43, 45, 47, 61, 230, 232, 247, 270, 271, 281, 288, 441}
# An interrupted wait with a time limit continues under this number (restart_syscall).
SYS_RESTART = 219

# Names of plain interpreters. A program that embeds Python cannot be started as one.
INTERPRETER = re.compile(r"python(3(\.\d+t?)?)?")


def seconds_old(status: ProcStatus) -> float:
    """Return the age of the process in seconds, to a hundredth."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - status.started / procfs.TICKS_PER_SECOND


def main_thread_cpu_ns(pid: int) -> int | None:
    """Return the main thread's CPU time in nanoseconds; None if the kernel does not say or the process is gone."""
    words = (procfs.read(f"{procfs.PROC}/{pid}/task/{pid}/schedstat") or b"").split()
    return int(words[0]) if words else None


def shares_memory(pid: int, other: int) -> bool:
    """Return whether two processes share their memory, as a child of vfork does with its parent. False if not known."""
    if SYS_KCMP is None:
        return False
    answer: int = ctypes.CDLL(None).syscall(SYS_KCMP, pid, other, KCMP_VM, 0, 0)
    return answer == 0


def same_process(status: ProcStatus) -> bool:
    """Return whether the pid surely still belongs to the process that `status` was read from, and that is alive."""
    stat = procfs.stat(status.pid)
    return stat is not None and stat.start == status.started and not stat.ended


def interpreter_of(status: ProcStatus) -> str | None:
    """Return the path of the target's own Python, None if aitop must not start it.

    It must be a plain interpreter, in our mount namespace, and still the file that the process runs. The process must
    belong to our own user, because root must not run a file that a user may have made.
    """
    try:
        program = os.readlink(f"/proc/{status.pid}/exe")
        same_file = os.path.samestat(os.stat(program), os.stat(f"/proc/{status.pid}/exe"))
        same_place = os.readlink(f"/proc/{status.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return None
    # Checked last, which proves that what was read above is of this process and not of a later one with its pid.
    ours = {*status.uids} == {os.geteuid()} and same_process(status)
    plain = INTERPRETER.fullmatch(os.path.basename(program)) is not None
    return program if same_file and same_place and ours and plain else None


def may_be_asleep(pid: int) -> bool:
    """Return whether the main thread sleeps in one of SLEEPS; also True if the kernel hides its system call."""
    call = procfs.read(f"{procfs.PROC}/{pid}/task/{pid}/syscall")
    if call is None:
        return not procfs.gone(pid)
    number = (call.split() or [b""])[0]
    return number.isdigit() and int(number) in SLEEPS | {SYS_RESTART}


def let_it_finish(pid: int, cpu_ns: int, least_s: float, most_s: float) -> None:
    """Wait until the main thread has finished something brief: until it sleeps, or has run for `cpu_ns` more CPU time.

    Waits at least `least_s` and at most about `most_s` seconds; just `least_s` if the kernel does not count CPU time.
    """
    end = time.monotonic() + most_s
    before = main_thread_cpu_ns(pid)
    time.sleep(least_s)
    while before and time.monotonic() < end:
        if (main_thread_cpu_ns(pid) or 0) - before >= cpu_ns or main_thread_state(pid) not in ("R", "D", "T", "t"):
            return
        time.sleep(0.001)


def cannot_be_woken(pid: int) -> bool:
    """Return whether the main thread is in an uninterruptible wait (state D), in which it cannot be stopped either."""
    return main_thread_state(pid) == "D"


def main_thread_state(pid: int) -> str:
    """Return the letter of the main thread's state, "" if it is gone."""
    stat = procfs.parse_stat(procfs.read(f"{procfs.PROC}/{pid}/task/{pid}/stat") or b"")
    return stat.state if stat is not None else ""


def on_x86_64() -> bool:
    """Return whether this machine is x86-64, the only architecture whose signal frames we can build."""
    return platform.machine() in ("x86_64", "AMD64")
