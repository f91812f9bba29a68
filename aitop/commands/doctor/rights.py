"""The right to look into other processes: what the trial showed, and which of the kernel's conditions failed."""

from __future__ import annotations

import errno
import os
import platform
import sys
from typing import TYPE_CHECKING

from aitop.attach import trial
from aitop.commands.doctor.check import Check, fault, not_needed, works
from aitop.commands.doctor.place import Place
from aitop.sources.target import user_name

if TYPE_CHECKING:
    from aitop.attach.trial import Trial

WITHOUT = "start the run with: aitop run -- CMD"
WORDS = {
    "docker": "a Docker container",
    "podman": "a Podman container",
    "kubernetes": "a Kubernetes pod",
    "lxc": "an LXC container",
    "container": "a container",
}
CAUSES = ("yama", "seccomp", "security module", "capability")


def tried_out() -> Trial | OSError:
    """What the kernel allows here, or why it could not be tried."""
    try:
        return trial.attempt()
    except OSError as error:
        return error


def checks(place: Place, tried: Trial | OSError) -> list[Check]:
    """What this user may do here."""
    if isinstance(tried, OSError):
        why = f"{tried.filename}: {tried.strerror}" if tried.filename else tried.strerror
        return [fault("ptrace", f"it cannot be tried: {why}"), *facts(place, None), memfd()]
    cause = cause_of(tried, place)
    return [ptrace(tried, place, cause), *facts(place, cause), memfd()]


def cause_of(tried: Trial, place: Place) -> str | None:
    """Which of CAUSES refused the trial, None where nothing did."""
    if tried.open is None and (tried.trace is None or place.tracer):
        return None
    if place.yama == "3" or (place.yama in ("1", "2") and not place.capable and tried.open is not None):
        return "yama"
    if place.seccomp and (tried.open is None or "ENOSYS" in (tried.read, tried.trace)):
        return "seccomp"
    return "security module" if place.profile else "seccomp" if place.seccomp else "capability"


def refused(tried: Trial | OSError, place: Place) -> str | None:
    """The error with which ptrace itself is refused to aitop whatever the process; None where it is not."""
    return None if isinstance(tried, OSError) or place.tracer else tried.trace


def ptrace(tried: Trial, place: Place, cause: str | None) -> Check:
    """Whether processes of the same user can be looked into and entered."""
    if cause is None:
        aside = f"; process_vm_readv is refused ({tried.read}) and not needed" if tried.read else ""
        return works("ptrace", f"your own processes can be looked into and entered (tried on one){aside}")
    failed = {"opening memory": tried.open, "process_vm_readv": tried.read, "ptrace": tried.trace}
    lost = (
        "no stacks, no hook in running processes" if tried.open else "no hook in running processes before Python 3.14"
    )
    said = ", ".join(f"{name}: {error}" for name, error in failed.items() if error)
    because = {
        "yama": f"Yama ptrace_scope is {place.yama}",
        "seccomp": "a seccomp filter forbids it",
        "security module": f"the security profile {place.profile} forbids it",
        "capability": "the system forbids it",
    }[cause]
    return fault("ptrace", f"{because} ({said}): {lost}", _remedy(place, cause))


def facts(place: Place, cause: str | None) -> list[Check]:
    """The conditions one by one."""
    return [_user(place), _yama(place, cause), _capability(place, cause), _seccomp(place, cause), _container(place)]


def memfd() -> Check:
    """Memory without a file: the hook's ring and py-spy's output are kept in it."""
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
    import shutil

    debugger = shutil.which("gdb")
    if debugger:
        return works("attach", f"Linux on {machine}: the hook can be put into a running process with {debugger}")
    words = f"Linux on {machine}: the hook gets only into Python 3.14; for older ones gdb is missing"
    return fault("attach", words, f"install gdb, or {WITHOUT}")


def python() -> Check:
    """The Python that aitop itself runs on."""
    return works("python", f"{platform.python_version()} at {sys.executable}")


def _user(place: Place) -> Check:
    if place.uid != 0:
        words = f"{user_name(place.uid)} ({place.uid}): others' processes need their user, or sudo"
        return works("user", words if not place.everybody else f"{user_name(place.uid)}, who may look at all users'")
    if place.everybody:
        return works("user", "root: processes of every user" + (" of this container" if place.own_users else ""))
    missing = "CAP_DAC_OVERRIDE" if place.capable else "CAP_SYS_PTRACE"
    return works("user", f"root without {missing}: only root's own processes")


def _yama(place: Place, cause: str | None) -> Check:
    if place.yama is None:
        return works("yama", "this kernel has no Yama")
    words = {
        "0": "ptrace_scope 0: own processes may be looked into",
        "1": "ptrace_scope 1: only a process's ancestors may look into it",
        "2": "ptrace_scope 2: only who has CAP_SYS_PTRACE may look into a process",
        "3": "ptrace_scope 3: nobody may look into any process until a reboot",
    }.get(place.yama, f"ptrace_scope {place.yama}")
    if cause == "yama":
        return fault("yama", words, _remedy(place, "yama"))
    return works("yama", words + (", but aitop holds CAP_SYS_PTRACE" if place.yama in ("1", "2") else ""))


def _capability(place: Place, cause: str | None) -> Check:
    if place.capable:
        return works("capability", "CAP_SYS_PTRACE is held")
    if cause is None:
        return not_needed("capability", "CAP_SYS_PTRACE is not held; your own processes do not need it")
    # Docker's filter lets through what this capability allows; other filters and profiles do not ask for it.
    of_use = cause in ("yama", "capability") or (cause == "seccomp" and place.own_pids)
    if place.yama == "3" or not of_use:
        return not_needed("capability", "CAP_SYS_PTRACE is not held, and would not help")
    return fault("capability", "CAP_SYS_PTRACE is not held, and here it is needed", _remedy(place, "capability"))


def _seccomp(place: Place, cause: str | None) -> Check:
    if not place.seccomp:
        return works("seccomp", "no filter around aitop")
    if cause == "seccomp":
        return fault("seccomp", "a filter around aitop forbids looking into processes", _remedy(place, "seccomp"))
    return works("seccomp", "a filter around aitop, which " + ("lets it work" if cause is None else "is not the cause"))


def _container(place: Place) -> Check:
    if place.container is None:
        return works("container", "none")
    if not place.own_pids:
        return works("container", f"{WORDS[place.container]}, which sees the processes of the machine")
    return works("container", f"{WORDS[place.container]}: only the processes in it are seen")


def _remedy(place: Place, cause: str) -> str:
    """The command that mends this cause here; with the fewest rights that do."""
    boxed = place.container if place.own_pids else None
    if place.yama == "3":
        return f"only a reboot without kernel.yama.ptrace_scope=3 in /etc/sysctl.d; until then {WITHOUT}"
    if cause == "security module":
        return f"run it outside of the profile {place.profile} (docker run --security-opt apparmor=unconfined)"
    # What is added to a container is given to its root alone; Podman gives it to other users as well.
    if boxed == "kubernetes":
        root = "runAsUser: 0, " if place.uid else ""
        return f"in the container's spec: securityContext: {{{root}capabilities: {{add: [SYS_PTRACE]}}}}"
    if boxed in ("docker", "podman"):
        root = "--user 0 " if place.uid and boxed == "docker" else ""
        filtered = " --security-opt seccomp=unconfined" * (cause == "seccomp")
        return f"{boxed} run {root}--cap-add SYS_PTRACE …{filtered}"
    if boxed:
        return "give the container CAP_SYS_PTRACE"
    if cause == "yama" and place.yama == "1":
        return "sudo sysctl kernel.yama.ptrace_scope=0"
    if cause == "seccomp":
        return f"run aitop outside of the sandbox that filters it, or {WITHOUT}"
    return _ambient(place)


def _ambient(place: Place) -> str:
    """aitop as this user with this one capability and no other."""
    if place.uid == 0:
        return "start aitop from a root shell that holds CAP_SYS_PTRACE (capsh --print shows what it holds)"
    who = f"--reuid={place.uid} --regid={os.getegid()} --init-groups"
    return f"sudo setpriv {who} --inh-caps=+sys_ptrace --ambient-caps=+sys_ptrace $(command -v aitop) …"
