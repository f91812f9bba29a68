"""Which of the kernel's conditions keeps aitop from looking into a process (ptrace(2), "access mode checking")."""

from __future__ import annotations

from dataclasses import dataclass

SYS_PTRACE, DAC_OVERRIDE = 1 << 19, 1 << 1
SUDO = "run aitop with sudo"
CONTAINER = "start the container with --cap-add SYS_PTRACE, or run aitop on the host as root"


@dataclass(frozen=True)
class Rights:
    """What `/proc/PID/status` says of a process's rights. `user` is its effective user, None where that is not known,
    `name` that user's, `users` also the real and the saved one; `capabilities` the effective and `permitted` the
    permitted ones; `filtered`: a seccomp filter is around it. `inner_pid` is the pid that it goes by itself.
    """

    user: int | None
    name: str = "?"
    users: frozenset[int] = frozenset()
    capabilities: int = 0
    permitted: int = 0
    filtered: bool = False
    inner_pid: int | None = None


@dataclass(frozen=True)
class Denial:
    """`remedy` is what would mend it, None where nothing does."""

    reason: str
    remedy: str | None


def why_denied(
    pid: int, ours: Rights, theirs: Rights, yama: int, *, closed: bool = False, boxed: bool = False
) -> Denial:
    """The condition that failed where aitop may not look into process `pid`; `yama` is ptrace_scope, 0 without Yama.

    `closed`: the process has forbidden it to all but root (PR_SET_DUMPABLE), or changed its user or rights.
    `boxed`: aitop is in a user namespace that is not the machine's.
    """
    capable = bool(ours.capabilities & SYS_PTRACE)
    contained = CONTAINER if ours.user == 0 else SUDO
    if ours.user is not None and theirs.users - {ours.user} and not (capable and ours.capabilities & DAC_OVERRIDE):
        return _of_another_user(pid, ours, theirs, capable)
    if yama >= 3:
        reason = "this system lets nobody look into a process until a reboot (Yama ptrace_scope 3)"
        return Denial(reason, "aitop run -- CMD")
    if yama >= 1 and not capable:
        who = "only parents look into their children" if yama == 1 else "only root look into a process"
        remedy = f"sudo sysctl kernel.yama.ptrace_scope=0, or {SUDO}" if yama == 1 else SUDO
        return Denial(f"this system lets {who} (Yama ptrace_scope {yama})", remedy)
    if not capable and theirs.permitted & ~ours.permitted:
        return Denial(f"process {pid} has capabilities that aitop lacks", contained)
    if closed and not capable:
        reason = f"process {pid} is closed to all but root: it has forbidden to be looked into, or changed its user"
        return Denial(reason, contained)
    if theirs.inner_pid not in (None, pid):
        reason = f"process {pid} runs in a container, where it is {theirs.inner_pid}, and aitop may not look into it"
        return Denial(reason, f"{SUDO}, or inside of that container")
    if boxed:
        reason = f"process {pid} is outside of the user namespace (rootless container) that aitop runs in"
        return Denial(reason, "run aitop outside of it, as the user of the process")
    if ours.filtered:
        return Denial("a seccomp filter keeps aitop from looking into other processes", CONTAINER)
    reason = f"a security module or a container's profile keeps aitop from looking into process {pid}"
    return Denial(reason, contained)


def _of_another_user(pid: int, ours: Rights, theirs: Rights, capable: bool) -> Denial:
    if ours.user == 0:
        missing = "DAC_OVERRIDE" if capable else "SYS_PTRACE"
        reason = f"process {pid} belongs to user {theirs.name}, and root lacks CAP_{missing}"
        return Denial(reason, CONTAINER.replace("SYS_PTRACE", missing))
    reason = f"process {pid} belongs to user {theirs.name}, and aitop runs as {ours.name}"
    return Denial(reason, f"run aitop as {theirs.name} or with sudo")
