"""Why the stacks of a process cannot be read, told from the kernel's own files rather than from py-spy's advice."""

from __future__ import annotations

import os

from aitop.model import tracing
from aitop.sources import procfs
from aitop.sources.source import SourceError

# The kernel's number of its first user namespace (include/linux/proc_ns.h).
FIRST_USERS = "user:[4026531837]"
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


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
    ours, theirs = _rights(os.getpid()), _rights(pid)
    # The files of a process that is closed to all but root belong to root.
    closed = _owner_of_files(pid) not in (None, theirs.user)
    boxed = (procfs.link("/proc/self/ns/user") or FIRST_USERS) != FIRST_USERS
    scope = procfs.text(YAMA) or ""
    denial = tracing.why_denied(pid, ours, theirs, int(scope) if scope.isdigit() else 0, closed=closed, boxed=boxed)
    return SourceError("denied", denial.reason, denial.remedy)


def _rights(pid: int) -> tracing.Rights:
    status = procfs.status(pid)
    users = [int(word) for word in status.get("Uid", "").split() if word.isdigit()]
    user = users[1] if len(users) == 4 else None
    capabilities, permitted = (int(status.get(name, "0"), 16) for name in ("CapEff", "CapPrm"))
    return tracing.Rights(
        user=user,
        name=procfs.user_name(user),
        users=frozenset(users[:3]),
        capabilities=capabilities,
        permitted=permitted,
        filtered=status.get("Seccomp") == "2",
        inner_pid=procfs.inner_pid(pid) if "NSpid" in status else None,
    )


def _owner_of_files(pid: int) -> int | None:
    try:
        return os.stat(f"{procfs.PROC}/{pid}").st_uid
    except OSError:
        return None


def _readable(pid: int) -> bool:
    # Opening needs the same permission as reading the memory, and does not touch the process.
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
