"""Whether aitop may look into a process, and which of the kernel's conditions refuses it (ptrace(2), access modes)."""

from __future__ import annotations

import os

from aitop.sources import procfs
from aitop.sources.process_status import DAC_OVERRIDE, SYS_PTRACE, ProcStatus, own_status, read_status
from aitop.sources.source import SourceError

SUDO = "run aitop with sudo"
CONTAINER = "start the container with --cap-add SYS_PTRACE, or run aitop on the host as root"
# The kernel's number of its first user namespace (include/linux/proc_ns.h).
FIRST_USERS = "user:[4026531837]"
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
FILTERED = 2


def readable(pid: int) -> bool:
    """Whether the kernel lets us read the process's memory; asking touches nothing."""
    try:
        os.close(os.open(f"{procfs.PROC}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def why_denied(pid: int) -> SourceError:
    """Which of the kernel's conditions for looking into process `pid` failed."""
    theirs = read_status(pid)
    # The files of a process that is closed to all but root belong to root.
    closed = theirs is not None and _owner_of_files(pid) not in (None, *theirs.uids[:3])
    boxed = (procfs.link("/proc/self/ns/user") or FIRST_USERS) != FIRST_USERS
    scope = procfs.text(YAMA) or ""
    yama = int(scope) if scope.isdigit() else 0
    reason, remedy = condition(pid, own_status(), theirs, yama, closed=closed, boxed=boxed)
    return SourceError("denied", reason, remedy)


def condition(
    pid: int, ours: ProcStatus, theirs: ProcStatus | None, yama: int, *, closed: bool = False, boxed: bool = False
) -> tuple[str, str]:
    """Why aitop may not look into process `pid`, and what would mend it. `yama` is ptrace_scope, 0 without Yama.

    `closed`: the process has forbidden it to all but root (PR_SET_DUMPABLE), or changed its user or rights.
    `boxed`: aitop is in a user namespace that is not the machine's.
    """
    user, capable = ours.uids[1], bool(ours.capabilities & SYS_PTRACE)
    contained = CONTAINER if user == 0 else SUDO
    if theirs is not None and {*theirs.uids[:3]} - {user} and not (capable and ours.capabilities & DAC_OVERRIDE):
        return _of_another_user(theirs, user, capable)
    if yama >= 3:
        return "this system lets nobody look into a process until a reboot (Yama ptrace_scope 3)", "aitop run -- CMD"
    if yama >= 1 and not capable:
        who = "only parents look into their children" if yama == 1 else "only root look into a process"
        remedy = f"sudo sysctl kernel.yama.ptrace_scope=0, or {SUDO}" if yama == 1 else SUDO
        return f"this system lets {who} (Yama ptrace_scope {yama})", remedy
    if theirs is not None and not capable and theirs.permitted & ~ours.permitted:
        return f"process {pid} has capabilities that aitop lacks", contained
    if closed and not capable:
        reason = f"process {pid} is closed to all but root: it has forbidden to be looked into, or changed its user"
        return reason, contained
    if theirs is not None and theirs.inner_pid != pid:
        reason = f"process {pid} runs in a container, where it is {theirs.inner_pid}, and aitop may not look into it"
        return reason, f"{SUDO}, or inside of that container"
    if boxed:
        reason = f"process {pid} is outside of the user namespace (rootless container) that aitop runs in"
        return reason, "run aitop outside of it, as the user of the process"
    if ours.seccomp == FILTERED:
        return "a seccomp filter keeps aitop from looking into other processes", CONTAINER
    return f"a security module or a container's profile keeps aitop from looking into process {pid}", contained


def _of_another_user(theirs: ProcStatus, user: int, capable: bool) -> tuple[str, str]:
    name = procfs.user_name(theirs.uids[1])
    whose = f"process {theirs.pid} belongs to user {name}"
    if user == 0:
        missing = "DAC_OVERRIDE" if capable else "SYS_PTRACE"
        remedy = f"run aitop as {name}, or {CONTAINER.replace('SYS_PTRACE', missing)}"
        return f"{whose}, and root lacks CAP_{missing}", remedy
    return f"{whose}, and aitop runs as {procfs.user_name(user)}", f"run aitop as {name} or with sudo"


def _owner_of_files(pid: int) -> int | None:
    try:
        return os.stat(f"{procfs.PROC}/{pid}").st_uid
    except OSError:
        return None
