"""What `/proc` says of a process that is to be entered, and of its main thread."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import time

from aitop.sources import procfs
from aitop.sources.process_status import ProcStatus

KCMP_VM = 1
# kcmp(2) has no function in the C library. None where its number is not known.
SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())

# System calls in which a thread waits for the outside world and holds no lock of the C library: read poll select
# nanosleep accept recvfrom recvmsg wait4 epoll_wait and their variants. futex is not among them: the allocator's locks
# look like any other, and an interrupted wait for one ends by itself.
SLEEPS = {0, 7, 23, 34, 35, 43, 45, 47, 61, 230, 232, 247, 270, 271, 281, 288, 441}
# An interrupted wait with a time limit goes on under this number.
SYS_RESTART = 219

# Programs that embed Python are not started as interpreters.
INTERPRETER = re.compile(r"python(3(\.\d+t?)?)?")


def seconds_old(status: ProcStatus) -> float:
    """The age of the process in seconds, to a hundredth."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - status.started / procfs.TICKS_PER_SECOND


def main_thread_cpu_ns(pid: int) -> int | None:
    """CPU time of the main thread in nanoseconds; None where this kernel does not say or the process is gone."""
    words = (procfs.read(f"{procfs.PROC}/{pid}/task/{pid}/schedstat") or b"").split()
    return int(words[0]) if words else None


def shares_memory(pid: int, other: int) -> bool:
    """Whether two processes share their memory, as a child of vfork does with its parent. False where unknown."""
    if SYS_KCMP is None:
        return False
    answer: int = ctypes.CDLL(None).syscall(SYS_KCMP, pid, other, KCMP_VM, 0, 0)
    return answer == 0


def same_process(status: ProcStatus) -> bool:
    """Whether the pid surely still belongs to the process that `status` was read from, and that one is alive."""
    stat = procfs.stat(status.pid)
    return stat is not None and stat.start == status.started and not stat.ended


def interpreter_of(status: ProcStatus) -> str | None:
    """The path of the target's own Python, None where aitop must not start it.

    It must be a plain interpreter, in the same mount namespace, still the file that runs, and the process must belong
    to our own user: root does not run what a user may have made.
    """
    try:
        program = os.readlink(f"/proc/{status.pid}/exe")
        same_file = os.path.samestat(os.stat(program), os.stat(f"/proc/{status.pid}/exe"))
        same_place = os.readlink(f"/proc/{status.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return None
    # Checked last: then what was read above belongs to this process and not to a later one with its pid.
    ours = {*status.uids} == {os.geteuid()} and same_process(status)
    plain = INTERPRETER.fullmatch(os.path.basename(program)) is not None
    return program if same_file and same_place and ours and plain else None


def may_be_asleep(pid: int) -> bool:
    """Whether the main thread sleeps in one of SLEEPS; also True where the kernel hides it."""
    call = procfs.read(f"{procfs.PROC}/{pid}/task/{pid}/syscall")
    if call is None:
        return not procfs.gone(pid)
    number = (call.split() or [b""])[0]
    return number.isdigit() and int(number) in SLEEPS | {SYS_RESTART}


def let_it_finish(pid: int, cpu_ns: int, least_s: float, most_s: float) -> None:
    """Waits until the main thread has finished something brief: until it sleeps, or has run for `cpu_ns` more.

    Waits at least `least_s` seconds and at most `most_s`. Where the kernel does not count CPU time, it is `least_s`.
    """
    end = time.monotonic() + most_s
    before = main_thread_cpu_ns(pid)
    time.sleep(least_s)
    while before and time.monotonic() < end:
        if (main_thread_cpu_ns(pid) or 0) - before >= cpu_ns or main_thread_state(pid) not in ("R", "D", "T", "t"):
            return
        time.sleep(0.001)


def cannot_be_woken(pid: int) -> bool:
    """Whether the main thread is in an uninterruptible wait (D), in which it could not be stopped either."""
    return main_thread_state(pid) == "D"


def main_thread_state(pid: int) -> str:
    """The letter of the main thread's state, "" where it is gone."""
    stat = procfs.parse_stat(procfs.read(f"{procfs.PROC}/{pid}/task/{pid}/stat") or b"")
    return stat.state if stat is not None else ""


def on_x86_64() -> bool:
    """Whether this machine is x86-64, the only kind whose signal frames are known."""
    return platform.machine() in ("x86_64", "AMD64")
