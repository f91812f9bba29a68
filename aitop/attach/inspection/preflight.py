"""Checks from `/proc` whether a process may be entered. Each refusal says why it may not.

Whether tracing is allowed is decided by the kernel itself: opening `/proc/PID/mem` needs the same right as ptrace. Only
if that fails is the reason looked for.
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
# A forked process is entered only once it is this old, and its main thread has had this much CPU time or sleeps.
YOUNG_SECONDS, SETTLED_CPU_NS = 0.3, 2_000_000
SWITCH, OPTIONS = "PYTHON_DISABLE_REMOTE_DEBUG", frozenset({"disable-remote-debug", "-Xdisable-remote-debug"})


def check_alive(pid: int) -> ProcStatus:
    """Return the status of a process whose main thread can be made to run something, or raise AttachRefused."""
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
        # The kernel gives the id of the tracing thread, which may have a name of its own (Python 3.14 gives it one), so
        # the process of that thread is looked up.
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
    """Raise AttachRefused for a process that was forked a moment ago.

    It may still use its parent's memory (vfork), or have inherited locks that none of its threads will release. A child
    of fork first recreates the interpreter's locks, which takes a fraction of `SETTLED_CPU_NS`. CPU time is checked as
    well as age, because on a loaded machine the child may not have run at all yet. A main thread that sleeps has run:
    it may do no more than wait for the rest of its life, while other threads work.
    """
    pid = status.pid
    if shares_memory(pid, status.parent):
        reason = f"process {pid} still uses its parent's memory (vfork)"
        raise AttachRefused("absent", reason, "try again when it has started its program", transient=True)
    cpu_ns = main_thread_cpu_ns(pid)
    may_not_have_run = status.state != "S" and cpu_ns is not None and cpu_ns < SETTLED_CPU_NS
    if seconds_old(status) < YOUNG_SECONDS or may_not_have_run:
        raise AttachRefused("absent", f"process {pid} has only just been forked", "try again", transient=True)


def open_memory(status: ProcStatus) -> Memory:
    """Open the target's memory. Raises AttachRefused with the reason if the kernel refuses."""
    try:
        memory = Memory(status.pid)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ended(status.pid) from error
    except PermissionError as error:
        if not same_process(status):
            raise ended(status.pid) from error
        denied = why_denied(status.pid)
        raise AttachRefused(denied.state, denied.reason, denied.remedy) from error
    # The open file stays bound to one process. Make sure that no other one has taken the pid since the status was read.
    if not same_process(status):
        memory.close()
        raise ended(status.pid)
    return memory


def check_consent(pid: int) -> None:
    """Raise AttachRefused if the target's owner switched remote debugging off."""
    environment = procfs.environ(pid)
    if environment is None:
        raise ended(pid)
    by_variable = bool(environment.get(SWITCH))
    if by_variable or OPTIONS.intersection(_interpreter_options(procfs.argv(pid))):
        how = SWITCH if by_variable else "-X disable-remote-debug"
        raise AttachRefused("denied", f"the owner of process {pid} switched remote debugging off ({how})")


def check_torch(pid: int) -> None:
    """Raise AttachRefused if torch is not loaded (yet)."""
    if procfs.framework_of(procfs.maps(pid) or b"") != "torch":
        raise without_torch(pid)


def without_torch(pid: int) -> AttachRefused:
    """Return the refusal for a process without torch. It is transient, because torch may be loaded later."""
    remedy = "if it will import torch later, just wait: aitop checks again"
    return AttachRefused("absent", f"process {pid} has not loaded torch", remedy, transient=True)


def _interpreter_options(arguments: Sequence[str]) -> list[str]:
    """Return the interpreter's options: all arguments up to the first `-c`, `-m` or file name."""
    options: list[str] = []
    for argument in arguments[1:]:
        if argument in ("-c", "-m") or (not argument.startswith("-") and options[-1:] not in (["-X"], ["-W"])):
            break
        options.append(argument)
    return options
