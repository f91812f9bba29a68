"""What `/proc` says of a process and of its main thread."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import time
from dataclasses import dataclass, replace

CAP_CHOWN = 0
KCMP_VM = 1
# kcmp(2) has no function in the C library. None where its number is not known.
SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
FORKED_WITHOUT_EXEC = 0x40

# System calls in which a thread waits for the outside world and holds no lock of the C library: read poll select
# nanosleep accept recvfrom recvmsg wait4 epoll_wait and their variants. futex is not among them: the allocator's locks
# look like any other, and an interrupted wait for one ends by itself.
SLEEPS = {0, 7, 23, 34, 35, 43, 45, 47, 61, 230, 232, 247, 270, 271, 281, 288, 441}
# An interrupted wait with a time limit goes on under this number.
SYS_RESTART = 219

# Programs that embed Python are not started as interpreters.
INTERPRETER = re.compile(r"python(3(\.\d+t?)?)?")


@dataclass(frozen=True)
class ProcStatus:
    """One reading of `/proc/PID/status` and `/proc/PID/stat`.

    `uids` and `gids` are the real, effective, saved and filesystem ids as seen from here. `inner_pid` is the pid in
    the process's own pid namespace. `tracer` is 0 where nobody traces it. `seccomp` is 0, 1 (strict) or 2 (filtered).
    `started` is the start time in clock ticks after boot, which together with the pid identifies a process. `forked`:
    it has not executed a program since it was forked. `groups` are the supplementary groups. `capabilities` are the
    effective and `permitted` the permitted ones.
    """

    pid: int
    leader: int
    parent: int
    name: str
    state: str
    tracer: int
    uids: tuple[int, ...]
    gids: tuple[int, ...]
    inner_pid: int
    capabilities: int
    seccomp: int
    shadow_stack: bool
    started: int
    forked: bool = False
    groups: tuple[int, ...] = ()
    permitted: int = 0
    no_new_privileges: bool = False

    @property
    def may_give_files(self) -> bool:
        """Whether it holds CAP_CHOWN."""
        return bool(self.capabilities >> CAP_CHOWN & 1)


def read_status(pid: int) -> ProcStatus | None:
    """The process's status, None where there is no such process."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            text = file.read()
        flags, started = _flags_and_start(pid)
        return replace(parse_status(pid, text, started), forked=bool(flags & FORKED_WITHOUT_EXEC))
    except (FileNotFoundError, ProcessLookupError):
        return None


def parse_status(pid: int, text: str, started: int) -> ProcStatus:
    """Parses the text of `/proc/PID/status`; fields that an older kernel lacks count as zero."""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def numbers(key: str) -> tuple[int, ...]:
        return tuple(int(word) for word in fields.get(key, "0").split()) or (0,)

    return ProcStatus(
        pid=pid,
        leader=numbers("Tgid")[0] or pid,
        parent=numbers("PPid")[0],
        name=fields.get("Name", "").strip(),
        state=fields.get("State", "?").strip()[:1],
        tracer=numbers("TracerPid")[0],
        uids=numbers("Uid"),
        gids=numbers("Gid"),
        inner_pid=numbers("NSpid")[-1] or pid,
        capabilities=int(fields.get("CapEff", "0"), 16),
        permitted=int(fields.get("CapPrm", "0"), 16),
        no_new_privileges=bool(numbers("NoNewPrivs")[0]),
        seccomp=numbers("Seccomp")[0],
        shadow_stack="shstk" in fields.get("x86_Thread_features", ""),
        started=started,
        groups=tuple(int(word) for word in fields.get("Groups", "").split()),
    )


def _flags_and_start(pid: int) -> tuple[int, int]:
    """The process's kernel flags and its start in clock ticks after boot. Raises FileNotFoundError where it is gone."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name in parentheses may itself contain spaces and parentheses.
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[6]), int(fields[19])


def seconds_old(status: ProcStatus) -> float:
    """The age of the process in seconds, to a hundredth."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - status.started / os.sysconf("SC_CLK_TCK")


def main_thread_cpu_ns(pid: int) -> int | None:
    """CPU time of the main thread in nanoseconds; None where this kernel does not say or the process is gone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def shares_memory(pid: int, other: int) -> bool:
    """Whether two processes share their memory, as a child of vfork does with its parent. False where unknown."""
    if SYS_KCMP is None:
        return False
    answer: int = ctypes.CDLL(None).syscall(SYS_KCMP, pid, other, KCMP_VM, 0, 0)
    return answer == 0


def same_process(status: ProcStatus) -> bool:
    """Whether the pid still belongs to the process that `status` was read from, and that one is alive."""
    now = read_status(status.pid)
    return now is not None and now.started == status.started and now.state not in "ZX"


def own_status() -> ProcStatus:
    """The status of this process."""
    status = read_status(os.getpid())
    if status is None:
        raise OSError("/proc is not mounted")
    return status


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
    try:
        with open(f"/proc/{pid}/task/{pid}/syscall", encoding="ascii") as file:
            number = (file.read().split() or [""])[0]
    except OSError:
        return os.path.isdir(f"/proc/{pid}")
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
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def on_x86_64() -> bool:
    """Whether this machine is x86-64, the only kind whose signal frames are known."""
    return platform.machine() in ("x86_64", "AMD64")
