"""Whether aitop may look into a process, what refuses it (ptrace(2), access modes), and what mends that here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import msgspec

from aitop.sources import procfs
from aitop.sources.process_status import DAC_OVERRIDE, SYS_PTRACE, ProcStatus, parse_status, read_status
from aitop.sources.source import SourceError

ContainerKind = Literal["kubernetes", "docker", "podman", "lxc", "container"]
Cause = Literal["yama", "seccomp", "security module", "capability"]

# The kernel's numbers of its first user and pid namespaces (include/linux/proc_ns.h).
FIRST_USERS, FIRST_PIDS = "user:[4026531837]", "pid:[4026531836]"
SUDO = "run aitop with sudo"
WITHOUT = "start the run with: aitop run -- CMD"
SCOPES = {
    "0": "own processes may be looked into",
    "1": "only a process's ancestors may look into it",
    "2": "only who has CAP_SYS_PTRACE may look into a process",
    "3": "nobody may look into any process until a reboot",
}
"""What Yama's ptrace_scope means."""
_GROUPS: tuple[tuple[str, ContainerKind], ...] = (
    ("kubepods", "kubernetes"),
    ("/docker", "docker"),
    ("libpod", "podman"),
    ("/lxc", "lxc"),
)


class Confinement(msgspec.Struct, frozen=True):
    """Which user aitop runs as, with which effective and `permitted` capabilities, in which container.

    `container` is None where none is seen. `own_pids`: a pid namespace that does not show the machine's processes.
    `own_users`: a user namespace whose root is not the machine's. `tracer` is 0 where nobody traces aitop. `yama` is
    ptrace_scope as text, None without Yama. `profile` is the security module's confinement, None for none.
    """

    uid: int
    capabilities: int
    permitted: int
    seccomp: bool
    tracer: int
    yama: str | None
    container: ContainerKind | None
    own_pids: bool
    own_users: bool
    profile: str | None

    @property
    def capable(self) -> bool:
        """Whether aitop holds CAP_SYS_PTRACE."""
        return bool(self.capabilities & SYS_PTRACE)

    @property
    def everybody(self) -> bool:
        """Whether aitop may look into every user's processes (a process's memory is a file of mode 0600)."""
        return self.capable and bool(self.capabilities & DAC_OVERRIDE)


def read_confinement(root: str = "", environment: Mapping[str, str] = os.environ) -> Confinement:
    """Reads how this process is confined. `root` stands for / and exists for tests."""
    text, link = procfs.text, procfs.link
    own = parse_status(os.getpid(), text(f"{root}/proc/self/status") or "", started=0)
    own_pids = (link(f"{root}/proc/self/ns/pid") or FIRST_PIDS) != FIRST_PIDS
    return Confinement(
        uid=own.uids[1] if len(own.uids) > 1 else os.geteuid(),
        capabilities=own.capabilities,
        permitted=own.permitted,
        seccomp=bool(own.seccomp),
        tracer=own.tracer,
        yama=text(f"{root}/proc/sys/kernel/yama/ptrace_scope"),
        container=_container_kind(root, environment) or ("container" if own_pids else None),
        own_pids=own_pids,
        own_users=(link(f"{root}/proc/self/ns/user") or FIRST_USERS) != FIRST_USERS,
        profile=_profile(text(f"{root}/proc/self/attr/current")),
    )


def _container_kind(root: str, environment: Mapping[str, str]) -> ContainerKind | None:
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    membership = procfs.text(f"{root}/proc/self/cgroup") or ""
    by_group = next((kind for mark, kind in _GROUPS if mark in membership), None)
    if by_group is not None:
        return by_group
    if os.path.exists(f"{root}/run/.containerenv"):
        return "podman"
    return "docker" if os.path.exists(f"{root}/.dockerenv") else None


def _profile(text: str | None) -> str | None:
    """The profile in the text of attr/current: `docker-default (enforce)` (AppArmor), a label (SELinux), or None."""
    words = (text or "").rstrip("\0").strip()
    return None if not words or words.startswith("unconfined") or ":unconfined_t:" in words else words


def readable(pid: int) -> bool:
    """Whether the kernel lets us read the process's memory; asking touches nothing."""
    try:
        os.close(os.open(f"{procfs.PROC}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def why_denied(pid: int) -> SourceError:
    """The error that says which of the kernel's conditions for looking into process `pid` failed."""
    theirs = read_status(pid)
    # The files of a process that is closed to all but root belong to root.
    closed = theirs is not None and _owner_of_files(pid) not in (None, *theirs.uids[:3])
    reason, remedy = condition(pid, read_confinement(), theirs, closed=closed)
    return SourceError("denied", reason, remedy)


def condition(pid: int, here: Confinement, theirs: ProcStatus | None, *, closed: bool = False) -> tuple[str, str]:
    """Why aitop, confined as it is `here`, may not look into process `pid`, and what would mend it.

    `closed`: the process has forbidden it to all but root (PR_SET_DUMPABLE), or changed its user or rights.
    """
    cause, user = cause_of(here), here.uid
    more_rights = remedy_of(here, "capability") if user == 0 else SUDO
    if theirs is not None and {*theirs.uids[:3]} - {user} and not here.everybody:
        return _of_another_user(theirs, here)
    if theirs is not None and cause != "yama":
        if not here.capable and theirs.permitted & ~here.permitted:
            return f"process {pid} has capabilities that aitop lacks", more_rights
        if closed and not here.capable:
            reason = f"process {pid} is closed to all but root: it has forbidden to be looked into, or changed its user"
            return reason, more_rights
        if theirs.inner_pid != pid:
            where = f"runs in a container, where it is {theirs.inner_pid}"
            return f"process {pid} {where}, and aitop may not look into it", f"{SUDO}, or inside of that container"
    if here.own_users and cause != "yama":
        reason = f"process {pid} is outside of the user namespace (rootless container) that aitop runs in"
        return reason, "run aitop outside of it, as the user of the process"
    return f"process {pid} may not be looked into: {words_of(here, cause)}", remedy_of(here, cause)


def _of_another_user(theirs: ProcStatus, here: Confinement) -> tuple[str, str]:
    name = procfs.user_name(theirs.uids[1])
    whose = f"process {theirs.pid} belongs to user {name}"
    if here.uid == 0:
        missing = "DAC_OVERRIDE" if here.capable else "SYS_PTRACE"
        remedy = f"run aitop as {name}, or {remedy_of(here, 'capability', missing)}"
        return f"{whose}, and root lacks CAP_{missing}", remedy
    return f"{whose}, and aitop runs as {procfs.user_name(here.uid)}", f"run aitop as {name} or with sudo"


def _owner_of_files(pid: int) -> int | None:
    try:
        return os.stat(f"{procfs.PROC}/{pid}").st_uid
    except OSError:
        return None


def cause_of(here: Confinement, *, opens: bool = False, unknown: bool = False) -> Cause:
    """Which condition keeps aitop from looking into other processes of its user, as far as the system tells.

    `opens`: their memory can be opened, and only ptrace is refused. `unknown`: ptrace was refused with
    ENOSYS, as if the kernel had no such call; a seccomp filter may do that.
    """
    if here.yama == "3" or (here.yama in ("1", "2") and not here.capable and not opens):
        return "yama"
    if here.seccomp and (opens or unknown):
        return "seccomp"
    return "security module" if here.profile else "seccomp" if here.seccomp else "capability"


def words_of(here: Confinement, cause: Cause) -> str:
    """What refuses it, in words."""
    return {
        "yama": f"{SCOPES.get(here.yama or '', 'the system forbids it')} (Yama ptrace_scope {here.yama})",
        "seccomp": "a seccomp filter forbids it",
        "security module": f"the security profile {here.profile} forbids it",
        "capability": "the system forbids it",
    }[cause]


def remedy_of(here: Confinement, cause: Cause, capability: str = "SYS_PTRACE") -> str:
    """The command that mends this cause here with the fewest rights; `capability` is the one that is missing."""
    boxed = here.container if here.own_pids else None
    if here.yama == "3":
        return f"only a reboot without kernel.yama.ptrace_scope=3 in /etc/sysctl.d; until then {WITHOUT}"
    if cause == "security module":
        return f"run it outside of the profile {here.profile} (docker run --security-opt apparmor=unconfined)"
    # A capability added to a container is given only to its root; Podman gives it to other users as well.
    if boxed == "kubernetes":
        root = "runAsUser: 0, " if here.uid else ""
        return f"in the container's spec: securityContext: {{{root}capabilities: {{add: [{capability}]}}}}"
    if boxed in ("docker", "podman"):
        root = "--user 0 " if here.uid and boxed == "docker" else ""
        filtered = " --security-opt seccomp=unconfined" * (cause == "seccomp")
        return f"{boxed} run {root}--cap-add {capability} …{filtered}"
    if boxed:
        return f"give the container CAP_{capability}"
    if cause == "yama" and here.yama == "1":
        return "sudo sysctl kernel.yama.ptrace_scope=0"
    if cause == "seccomp":
        return f"run aitop outside of the sandbox that filters it, or {WITHOUT}"
    if here.uid == 0:
        return f"start aitop from a root shell that holds CAP_{capability} (capsh --print shows what it holds)"
    # As this user, with that capability and no other.
    who = f"--reuid={here.uid} --regid={os.getegid()} --init-groups"
    return f"sudo setpriv {who} --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace $(command -v aitop) …"
