"""Checks the right to look into other processes: what was tried, and which condition of the kernel refused it."""

from __future__ import annotations

import errno
import os
import platform
import shutil

from aitop.attach.ways.gdb import fault_of_gdb
from aitop.commands.doctor.ptrace_trial import PtraceTrial
from aitop.commands.doctor.report import Check, fault, not_needed, works
from aitop.sources import access
from aitop.sources.access import SCOPES, WITHOUT, Cause, Confinement, ContainerKind, remedy_of
from aitop.sources.procfs import user_name

WORDS: dict[ContainerKind, str] = {
    "docker": "a Docker container",
    "podman": "a Podman container",
    "kubernetes": "a Kubernetes pod",
    "lxc": "an LXC container",
    "container": "a container",
}


def checks(confinement: Confinement, tried: PtraceTrial | OSError) -> list[Check]:
    """The checks of what this user may do here."""
    if isinstance(tried, OSError):
        why = f"{tried.filename}: {tried.strerror}" if tried.filename else tried.strerror
        return [fault("ptrace", f"it cannot be tried: {why}"), *facts(confinement, None), memfd()]
    cause = cause_of(tried, confinement)
    return [ptrace(tried, confinement, cause), *facts(confinement, cause), memfd()]


def cause_of(tried: PtraceTrial, confinement: Confinement) -> Cause | None:
    """What refused the trial, None where nothing did."""
    if tried.open is None and (tried.trace is None or confinement.tracer):
        return None
    return access.cause_of(confinement, opens=tried.open is None, unknown=tried.trace == "ENOSYS")


def refused(tried: PtraceTrial | OSError, confinement: Confinement) -> str | None:
    """The error with which ptrace is refused to aitop for every process; None where it is not."""
    return None if isinstance(tried, OSError) or confinement.tracer else tried.trace


def ptrace(tried: PtraceTrial, confinement: Confinement, cause: Cause | None) -> Check:
    """Whether processes of the same user can be looked into and entered."""
    if cause is None:
        return works("ptrace", "your own processes can be looked into and entered (tried on one)")
    failed = {"opening memory": tried.open, "ptrace": tried.trace}
    lost = (
        "no stacks, no hook in running processes" if tried.open else "no hook in running processes before Python 3.14"
    )
    errors = ", ".join(f"{name}: {error}" for name, error in failed.items() if error)
    words = f"{access.words_of(confinement, cause)}: {lost} ({errors})"
    return fault("ptrace", words, remedy_of(confinement, cause))


def facts(confinement: Confinement, cause: Cause | None) -> list[Check]:
    """One check for each condition of the kernel."""
    return [
        _user(confinement),
        _yama(confinement, cause),
        _capability(confinement, cause),
        _seccomp(confinement, cause),
        _container(confinement),
    ]


def memfd() -> Check:
    """Whether there is memory without a file (memfd), which the hook's ring and py-spy's output need."""
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
    """Whether the hook can be put into running processes on this kind of machine."""
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


def _yama(confinement: Confinement, cause: Cause | None) -> Check:
    if confinement.yama is None:
        return works("yama", "this kernel has no Yama")
    words = f"ptrace_scope {confinement.yama}: {SCOPES.get(confinement.yama, 'of unknown meaning')}"
    if cause == "yama":
        return fault("yama", words, remedy_of(confinement, "yama"))
    return works("yama", words + (", but aitop holds CAP_SYS_PTRACE" if confinement.yama in ("1", "2") else ""))


def _capability(confinement: Confinement, cause: Cause | None) -> Check:
    if confinement.capable:
        return works("capability", "CAP_SYS_PTRACE is held")
    if cause is None:
        return not_needed("capability", "CAP_SYS_PTRACE is not held; your own processes do not need it")
    # Docker's filter lets through what this capability allows; other filters and profiles ignore the capability.
    of_use = cause in ("yama", "capability") or (cause == "seccomp" and confinement.own_pids)
    if confinement.yama == "3" or not of_use:
        return not_needed("capability", "CAP_SYS_PTRACE is not held, and would not help")
    return fault(
        "capability", "CAP_SYS_PTRACE is not held, and here it is needed", remedy_of(confinement, "capability")
    )


def _seccomp(confinement: Confinement, cause: Cause | None) -> Check:
    if not confinement.seccomp:
        return works("seccomp", "no filter around aitop")
    if cause == "seccomp":
        return fault(
            "seccomp", "a filter around aitop forbids looking into processes", remedy_of(confinement, "seccomp")
        )
    return works("seccomp", "a filter around aitop, which " + ("lets it work" if cause is None else "is not the cause"))


def _container(confinement: Confinement) -> Check:
    if confinement.container is None:
        return works("container", "none")
    if not confinement.own_pids:
        return works("container", f"{WORDS[confinement.container]}, which sees the processes of the machine")
    return works("container", f"{WORDS[confinement.container]}: only the processes in it are seen")
