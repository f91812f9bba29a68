"""The right to look into other processes: what was tried, and which of the kernel's conditions refused it."""

from __future__ import annotations

import errno
import os
import platform
import shutil
from collections.abc import Mapping
from typing import Literal

import msgspec

from aitop.attach.ways.gdb import fault_of_gdb
from aitop.commands.doctor.ptrace_trial import PtraceTrial
from aitop.commands.doctor.report import Check, fault, not_needed, works
from aitop.sources import procfs
from aitop.sources.access import FIRST_USERS
from aitop.sources.process_status import DAC_OVERRIDE, SYS_PTRACE, parse_status
from aitop.sources.procfs import user_name

ContainerKind = Literal["kubernetes", "docker", "podman", "lxc", "container"]

# The kernel's number of its first pid namespace (include/linux/proc_ns.h).
FIRST_PIDS = "pid:[4026531836]"
_GROUPS: tuple[tuple[str, ContainerKind], ...] = (
    ("kubepods", "kubernetes"),
    ("/docker", "docker"),
    ("libpod", "podman"),
    ("/lxc", "lxc"),
)
WITHOUT = "start the run with: aitop run -- CMD"
WORDS = {
    "docker": "a Docker container",
    "podman": "a Podman container",
    "kubernetes": "a Kubernetes pod",
    "lxc": "an LXC container",
    "container": "a container",
}
CAUSES = ("yama", "seccomp", "security module", "capability")


class Confinement(msgspec.Struct, frozen=True):
    """Which user aitop runs as, with which capabilities, in which container.

    `container` is None where none is seen. `own_pids`: a pid namespace that does not show the machine's processes.
    `own_users`: a user namespace whose root is not the machine's. `tracer` is 0 where nobody traces aitop. `yama` is
    ptrace_scope as text, None without Yama. `profile` is the security module's confinement, None for none.
    """

    uid: int
    capabilities: int
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
    """AppArmor says `docker-default (enforce)` or `unconfined`, SELinux a label."""
    words = (text or "").rstrip("\0").strip()
    return None if not words or words.startswith("unconfined") or ":unconfined_t:" in words else words


def checks(confinement: Confinement, tried: PtraceTrial | OSError) -> list[Check]:
    """The checks of what this user may do here."""
    if isinstance(tried, OSError):
        why = f"{tried.filename}: {tried.strerror}" if tried.filename else tried.strerror
        return [fault("ptrace", f"it cannot be tried: {why}"), *facts(confinement, None), memfd()]
    cause = cause_of(tried, confinement)
    return [ptrace(tried, confinement, cause), *facts(confinement, cause), memfd()]


def cause_of(tried: PtraceTrial, confinement: Confinement) -> str | None:
    """Which of CAUSES refused the trial, None where nothing did."""
    if tried.open is None and (tried.trace is None or confinement.tracer):
        return None
    if confinement.yama == "3" or (
        confinement.yama in ("1", "2") and not confinement.capable and tried.open is not None
    ):
        return "yama"
    if confinement.seccomp and (tried.open is None or tried.trace == "ENOSYS"):
        return "seccomp"
    return "security module" if confinement.profile else "seccomp" if confinement.seccomp else "capability"


def refused(tried: PtraceTrial | OSError, confinement: Confinement) -> str | None:
    """The error with which ptrace itself is refused to aitop whatever the process; None where it is not."""
    return None if isinstance(tried, OSError) or confinement.tracer else tried.trace


def ptrace(tried: PtraceTrial, confinement: Confinement, cause: str | None) -> Check:
    """Whether processes of the same user can be looked into and entered."""
    if cause is None:
        return works("ptrace", "your own processes can be looked into and entered (tried on one)")
    failed = {"opening memory": tried.open, "ptrace": tried.trace}
    lost = (
        "no stacks, no hook in running processes" if tried.open else "no hook in running processes before Python 3.14"
    )
    errors = ", ".join(f"{name}: {error}" for name, error in failed.items() if error)
    because = {
        "yama": f"Yama ptrace_scope is {confinement.yama}",
        "seccomp": "a seccomp filter forbids it",
        "security module": f"the security profile {confinement.profile} forbids it",
        "capability": "the system forbids it",
    }[cause]
    return fault("ptrace", f"{because} ({errors}): {lost}", _remedy(confinement, cause))


def facts(confinement: Confinement, cause: str | None) -> list[Check]:
    """The kernel's conditions, a check each."""
    return [
        _user(confinement),
        _yama(confinement, cause),
        _capability(confinement, cause),
        _seccomp(confinement, cause),
        _container(confinement),
    ]


def memfd() -> Check:
    """Whether there is memory without a file, in which the hook's ring and py-spy's output lie."""
    try:
        handle = os.memfd_create("aitop-doctor", os.MFD_CLOEXEC)
        try:
            os.close(os.open(f"/proc/self/fd/{handle}", os.O_RDWR | os.O_CLOEXEC))
        finally:
            os.close(handle)
    except (OSError, AttributeError) as error:
        words = f"memory without a file cannot be had: {getattr(error, 'strerror', None) or error}"
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return fault("memfd", words, "see descriptors")
        return fault("memfd", words, "sudo sysctl vm.memfd_noexec=1, or a kernel from 3.17 on, or no seccomp filter")
    return works("memfd", "the hook's ring and py-spy's output need no file")


def attach() -> Check:
    """Whether there is a way into running processes on this kind of machine."""
    machine, system = platform.machine(), platform.system()
    if system == "Linux" and machine in ("x86_64", "AMD64"):
        return works("attach", f"Linux on {machine}: the step hook can be put into a running process")
    if system != "Linux":
        return fault("attach", f"{system}: the step hook cannot be put into a running process here", WITHOUT)
    program = shutil.which("gdb")
    only = f"Linux on {machine}: the hook gets only into Python 3.14"
    if program is None:
        return fault("attach", f"{only}; for older ones gdb is missing", f"install gdb, or {WITHOUT}")
    broken = fault_of_gdb(program)
    if broken is not None:
        return fault("attach", f"{only}; for older ones {broken.reason}", broken.remedy)
    return works("attach", f"Linux on {machine}: the hook can be put into a running process with {program}")


def _user(confinement: Confinement) -> Check:
    if confinement.uid != 0:
        words = f"{user_name(confinement.uid)} ({confinement.uid}): others' processes need their user, or sudo"
        return works(
            "user", words if not confinement.everybody else f"{user_name(confinement.uid)}, who may look at all users'"
        )
    if confinement.everybody:
        return works("user", "root: processes of every user" + (" of this container" if confinement.own_users else ""))
    missing = "CAP_DAC_OVERRIDE" if confinement.capable else "CAP_SYS_PTRACE"
    return works("user", f"root without {missing}: only root's own processes")


def _yama(confinement: Confinement, cause: str | None) -> Check:
    if confinement.yama is None:
        return works("yama", "this kernel has no Yama")
    words = {
        "0": "ptrace_scope 0: own processes may be looked into",
        "1": "ptrace_scope 1: only a process's ancestors may look into it",
        "2": "ptrace_scope 2: only who has CAP_SYS_PTRACE may look into a process",
        "3": "ptrace_scope 3: nobody may look into any process until a reboot",
    }.get(confinement.yama, f"ptrace_scope {confinement.yama}")
    if cause == "yama":
        return fault("yama", words, _remedy(confinement, "yama"))
    return works("yama", words + (", but aitop holds CAP_SYS_PTRACE" if confinement.yama in ("1", "2") else ""))


def _capability(confinement: Confinement, cause: str | None) -> Check:
    if confinement.capable:
        return works("capability", "CAP_SYS_PTRACE is held")
    if cause is None:
        return not_needed("capability", "CAP_SYS_PTRACE is not held; your own processes do not need it")
    # Docker's filter lets through what this capability allows; other filters and profiles do not ask for it.
    of_use = cause in ("yama", "capability") or (cause == "seccomp" and confinement.own_pids)
    if confinement.yama == "3" or not of_use:
        return not_needed("capability", "CAP_SYS_PTRACE is not held, and would not help")
    return fault("capability", "CAP_SYS_PTRACE is not held, and here it is needed", _remedy(confinement, "capability"))


def _seccomp(confinement: Confinement, cause: str | None) -> Check:
    if not confinement.seccomp:
        return works("seccomp", "no filter around aitop")
    if cause == "seccomp":
        return fault("seccomp", "a filter around aitop forbids looking into processes", _remedy(confinement, "seccomp"))
    return works("seccomp", "a filter around aitop, which " + ("lets it work" if cause is None else "is not the cause"))


def _container(confinement: Confinement) -> Check:
    if confinement.container is None:
        return works("container", "none")
    if not confinement.own_pids:
        return works("container", f"{WORDS[confinement.container]}, which sees the processes of the machine")
    return works("container", f"{WORDS[confinement.container]}: only the processes in it are seen")


def _remedy(confinement: Confinement, cause: str) -> str:
    """The command that mends this cause here with the fewest rights."""
    boxed = confinement.container if confinement.own_pids else None
    if confinement.yama == "3":
        return f"only a reboot without kernel.yama.ptrace_scope=3 in /etc/sysctl.d; until then {WITHOUT}"
    if cause == "security module":
        return f"run it outside of the profile {confinement.profile} (docker run --security-opt apparmor=unconfined)"
    # What is added to a container is given to its root alone; Podman gives it to other users as well.
    if boxed == "kubernetes":
        root = "runAsUser: 0, " if confinement.uid else ""
        return f"in the container's spec: securityContext: {{{root}capabilities: {{add: [SYS_PTRACE]}}}}"
    if boxed in ("docker", "podman"):
        root = "--user 0 " if confinement.uid and boxed == "docker" else ""
        filtered = " --security-opt seccomp=unconfined" * (cause == "seccomp")
        return f"{boxed} run {root}--cap-add SYS_PTRACE …{filtered}"
    if boxed:
        return "give the container CAP_SYS_PTRACE"
    if cause == "yama" and confinement.yama == "1":
        return "sudo sysctl kernel.yama.ptrace_scope=0"
    if cause == "seccomp":
        return f"run aitop outside of the sandbox that filters it, or {WITHOUT}"
    return _ambient(confinement)


def _ambient(confinement: Confinement) -> str:
    """The command that runs aitop as this user with CAP_SYS_PTRACE and no other capability."""
    if confinement.uid == 0:
        return "start aitop from a root shell that holds CAP_SYS_PTRACE (capsh --print shows what it holds)"
    who = f"--reuid={confinement.uid} --regid={os.getegid()} --init-groups"
    return f"sudo setpriv {who} --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace $(command -v aitop) …"
