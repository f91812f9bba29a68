"""Why the stacks of a process cannot be read, told from the kernel's own files rather than from py-spy's advice."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from aitop.sources import procfs
from aitop.sources.source import SourceError

# The kernel's number of its first user namespace (include/linux/proc_ns.h).
FIRST_USERS = "user:[4026531837]"
SYS_PTRACE, DAC_OVERRIDE = 1 << 19, 1 << 1
YAMA = "/proc/sys/kernel/yama/ptrace_scope"
SUDO = "run aitop with sudo"
CONTAINER = "start the container with --cap-add SYS_PTRACE, or run aitop on the host as root"


def explain(pid: int, complaint: str) -> SourceError:
    """The error for a process that is there but gave no stacks. `complaint` is py-spy's own first line."""
    if "unsupported version" in complaint.lower():
        return SourceError("failed", f"py-spy does not know this Python: {complaint}", "pip install --upgrade py-spy")
    if "permission" in complaint.lower() or "not permitted" in complaint.lower() or not _readable(pid):
        return why_denied(pid)
    state = procfs.status(pid).get("State", "")
    if state.startswith(("T", "t")):
        return SourceError("failed", f"process {pid} is stopped, and py-spy read nothing from it", f"kill -CONT {pid}")
    return SourceError("failed", f"py-spy read no stack of process {pid}: {complaint or 'it gave no reason'}")


def why_denied(pid: int) -> SourceError:
    """Which of the kernel's conditions for reading process `pid` failed."""
    theirs = procfs.status(pid)
    # The files of a process that is closed to all but root belong to root.
    closed = procfs.user_id(pid) not in (None, _effective(theirs))
    boxed = (procfs.link("/proc/self/ns/user") or FIRST_USERS) != FIRST_USERS
    return denied(pid, procfs.status(os.getpid()), theirs, procfs.text(YAMA), closed=closed, boxed=boxed)


def denied(
    pid: int,
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    yama: str | None,
    *,
    closed: bool = False,
    boxed: bool = False,
) -> SourceError:
    """Which of the kernel's conditions for reading another process failed; `ours`, `theirs` from /proc/PID/status.

    `closed`: the process has forbidden it to all but root (PR_SET_DUMPABLE), or changed its user or rights.
    `boxed`: aitop is in a user namespace that is not the machine's.
    """
    user, owner = _effective(ours), _effective(theirs)
    held = _hexadecimal(ours.get("CapEff"))
    capable = bool(held & SYS_PTRACE)
    if user is not None and owner is not None and user != owner and not (capable and held & DAC_OVERRIDE):
        if user == 0:
            missing = "CAP_DAC_OVERRIDE" if capable else "CAP_SYS_PTRACE"
            remedy = CONTAINER.replace("SYS_PTRACE", missing.removeprefix("CAP_"))
            return SourceError("denied", f"process {pid} is another user's, and root lacks {missing}", remedy)
        reason = f"process {pid} belongs to user {_name(owner)}, and aitop runs as {_name(user)}"
        return SourceError("denied", reason, f"run aitop as {_name(owner)} or with sudo")
    if yama == "3":
        return SourceError("denied", "kernel.yama.ptrace_scope is 3: nobody may look into a process until a reboot")
    if yama in ("1", "2") and not capable:
        who = "only a process's ancestors may look into it" if yama == "1" else "only root may look into a process"
        remedy = "sudo sysctl kernel.yama.ptrace_scope=0, or " + SUDO
        return SourceError("denied", f"kernel.yama.ptrace_scope is {yama}: {who}", remedy)
    if not capable and _hexadecimal(theirs.get("CapPrm")) & ~_hexadecimal(ours.get("CapPrm")):
        remedy = CONTAINER if user == 0 else SUDO
        return SourceError("denied", f"process {pid} has capabilities that aitop lacks", remedy)
    if closed and not capable:
        reason = f"process {pid} is closed to all but root: it has forbidden to be looked into, or changed its user"
        return SourceError("denied", reason, CONTAINER if user == 0 else SUDO)
    if boxed:
        reason = f"process {pid} is outside of the user namespace (rootless container) that aitop runs in"
        return SourceError("denied", reason, "run aitop outside of it, as the user of the process")
    if ours.get("Seccomp") == "2":
        return SourceError("denied", "a seccomp filter keeps aitop from reading other processes", CONTAINER)
    return SourceError("denied", f"the system does not let aitop read the memory of process {pid}", SUDO)


def _readable(pid: int) -> bool:
    # Opening asks the kernel the question that reading the memory asks, and touches nothing.
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _effective(status: Mapping[str, str]) -> int | None:
    words = status.get("Uid", "").split()
    return int(words[1]) if len(words) == 4 and words[1].isdigit() else None


def _hexadecimal(value: str | None) -> int:
    try:
        return int(value or "0", 16)
    except ValueError:
        return 0


def _name(user: int | None) -> str:
    if user is None:
        return "?"
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
