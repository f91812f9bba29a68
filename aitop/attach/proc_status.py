"""What `/proc` says about a process before anybody touches it."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from dataclasses import dataclass, replace

CAP_CHOWN = 0
KCMP_VM = 1
# kcmp(2) has no function in the C library. None where its number is not known.
SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
FORKED_WITHOUT_EXEC = 0x40


@dataclass(frozen=True)
class ProcStatus:
    """One reading of `/proc/PID/status` and `/proc/PID/stat`.

    `uids` and `gids` are real, effective, saved and filesystem ids as seen from here. `inner_pid` is the
    pid the process itself sees (its own pid namespace). `tracer` is 0 where nobody traces it. `seccomp` is
    0, 1 (strict) or 2 (filtered). `started` is the start time in clock ticks after boot: with the pid it names
    one process for good. `forked` means that it has not executed a program since it was forked. `groups` are the
    supplementary groups. `capabilities` are those in effect, `permitted` those that it may put into effect.
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
    """Reads the text of `/proc/PID/status`; fields an older kernel lacks count as zero."""
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
    """The kernel's flags of the process and its start in clock ticks after boot; FileNotFoundError where it is gone."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name in parentheses may itself contain spaces and parentheses.
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[6]), int(fields[19])


def seconds_old(status: ProcStatus) -> float:
    """For how long the process has been there, to a hundredth of a second."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - status.started / os.sysconf("SC_CLK_TCK")


def seconds_run(status: ProcStatus) -> float | None:
    """For how long the main thread has been on a processor; None where this kernel does not say."""
    try:
        with open(f"/proc/{status.pid}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def shares_memory(pid: int, other: int) -> bool:
    """Whether both are at work in one memory, as a child of vfork is in its parent's. False where nobody says."""
    if SYS_KCMP is None:
        return False
    answer: int = ctypes.CDLL(None).syscall(SYS_KCMP, pid, other, KCMP_VM, 0, 0)
    return answer == 0


def same_process(status: ProcStatus) -> bool:
    """Whether the pid still belongs to the process that `status` was read from, and that one is alive."""
    now = read_status(status.pid)
    return now is not None and now.started == status.started and now.state not in "ZX"


def own_status() -> ProcStatus:
    """The status of the process we are."""
    status = read_status(os.getpid())
    if status is None:
        raise OSError("/proc is not mounted")
    return status
