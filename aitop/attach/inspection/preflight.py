"""Checks, from what `/proc` says, that a process may be entered; each refusal says why.

Whether tracing is allowed is asked of the kernel itself: opening `/proc/PID/mem` needs the same right. Only where it
refuses is the reason looked for.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from aitop.attach.inspection.process import main_thread_cpu_ns, same_process, seconds_old, shares_memory
from aitop.attach.inspection.process_memory import Memory
from aitop.attach.refusal import AttachRefused, ended
from aitop.sources import procfs
from aitop.sources.access import why_denied
from aitop.sources.process_status import ProcStatus, read_status

SECCOMP_STRICT = 1
# A forked process is entered once it is this old, and its main thread has had this much CPU time.
YOUNG_SECONDS, SETTLED_CPU_NS = 0.3, 2_000_000
SWITCH, OPTIONS = "PYTHON_DISABLE_REMOTE_DEBUG", frozenset({"disable-remote-debug", "-Xdisable-remote-debug"})


def check_alive(pid: int) -> ProcStatus:
    """The status of a process whose main thread can be asked to run something; raises AttachRefused for any other."""
    if platform.system() != "Linux":
        reason = f"the hook cannot get into a running process on {platform.system()}"
        raise AttachRefused("absent", reason, "aitop run -- CMD")
    status = read_status(pid) if pid > 0 else None
    if status is None:
        raise AttachRefused("absent", f"there is no process {pid}")
    if status.leader != pid:
        raise AttachRefused("absent", f"{pid} is a thread of process {status.leader}", f"aitop --pid {status.leader}")
    if pid == os.getpid():
        raise AttachRefused("absent", f"process {pid} is aitop itself")
    if status.state in "ZX":
        raise AttachRefused("absent", f"process {pid} has ended and is a zombie")
    if status.tracer:
        # The kernel names the thread that traces, which may have a name of its own: Python 3.14 gives it one.
        thread = read_status(status.tracer)
        tracer = read_status(thread.leader) if thread else None
        by = f"{tracer.name} ({tracer.pid})" if tracer else str(status.tracer)
        reason = f"process {pid} is already being traced by {by}"
        raise AttachRefused("denied", reason, "end the other tracer", transient=True)
    if status.state == "T":
        raise AttachRefused("absent", f"process {pid} is stopped", f"kill -CONT {pid}", transient=True)
    if status.seccomp == SECCOMP_STRICT:
        raise AttachRefused("absent", f"process {pid} has forbidden itself every system call (strict seccomp)")
    if status.forked:
        check_settled(status)
    return status


def check_settled(status: ProcStatus) -> None:
    """Raises AttachRefused for a process that was forked a moment ago: it may have no memory of its own (vfork), or
    hold locks that no thread of it will release.

    A child of fork first makes the interpreter's locks anew, in a fraction of `SETTLED_CPU_NS`. CPU time is asked as
    well as age, because on a loaded machine it may have had no processor yet.
    """
    pid = status.pid
    if shares_memory(pid, status.parent):
        reason = f"process {pid} still uses its parent's memory (vfork)"
        raise AttachRefused("absent", reason, "try again when it has started its program", transient=True)
    cpu_ns = main_thread_cpu_ns(pid)
    if seconds_old(status) < YOUNG_SECONDS or (cpu_ns is not None and cpu_ns < SETTLED_CPU_NS):
        raise AttachRefused("absent", f"process {pid} has only just been forked", "try again", transient=True)


def open_memory(status: ProcStatus) -> Memory:
    """The target's memory; raises AttachRefused with the reason where the kernel refuses it."""
    try:
        memory = Memory(status.pid)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ended(status.pid) from error
    except PermissionError as error:
        if not same_process(status):
            raise ended(status.pid) from error
        denied = why_denied(status.pid)
        raise AttachRefused(denied.state, denied.reason, denied.remedy) from error
    # The open file stays bound to that process; another one may have taken its pid since the status was read.
    if not same_process(status):
        memory.close()
        raise ended(status.pid)
    return memory


def check_consent(pid: int) -> None:
    """Raises AttachRefused where the target's owner switched remote debugging off."""
    environment = procfs.environ(pid)
    if environment is None:
        raise ended(pid)
    by_variable = bool(environment.get(SWITCH))
    if by_variable or OPTIONS.intersection(_interpreter_options(procfs.argv(pid))):
        how = SWITCH if by_variable else "-X disable-remote-debug"
        raise AttachRefused("denied", f"the owner of process {pid} switched remote debugging off ({how})")


def check_torch(pid: int) -> None:
    """Raises AttachRefused where torch is not loaded, or not yet."""
    if procfs.framework_of(procfs.maps(pid) or b"") != "torch":
        raise without_torch(pid)


def without_torch(pid: int) -> AttachRefused:
    """The refusal for a process without torch, which may load it later."""
    remedy = "nothing to do if it is about to: aitop looks again"
    return AttachRefused("absent", f"process {pid} has not loaded torch", remedy, transient=True)


def _interpreter_options(arguments: Sequence[str]) -> list[str]:
    """The interpreter's options: everything up to the first `-c`, `-m` or file name."""
    options: list[str] = []
    for argument in arguments[1:]:
        if argument in ("-c", "-m") or (not argument.startswith("-") and options[-1:] not in (["-X"], ["-W"])):
            break
        options.append(argument)
    return options
