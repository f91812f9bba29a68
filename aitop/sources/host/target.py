"""Whether a pid is something that can be watched, and what it is."""

from __future__ import annotations

import contextlib
import os
import time

from aitop.errors import NoTargetError, NotPermittedError
from aitop.model.host import ProcessId
from aitop.model.snapshot import Target
from aitop.model.text import printable
from aitop.sources import procfs
from aitop.sources.access import why_denied
from aitop.sources.foreign_file import open_as
from aitop.sources.host.command_lines import invocation, kind_of
from aitop.sources.host.roles import ranks_of
from aitop.sources.host.tree import Member, ProcessTree, places_of
from aitop.sources.procfs import Stat

# A sampling tool stops its target for milliseconds at a time; only a longer stop is a debugger's.
LONGEST_SHORT_STOP = 0.5
CHOOSE = "run aitop without arguments to choose from the AI processes on this machine"


def look(pid: int, *, even_stopped: bool = False) -> Target:
    """The process as a target. Raises NoTargetError or NotPermittedError with one sentence on what to do.

    A process that a signal has stopped is refused, unless `even_stopped`: to some callers that is an answer.
    """
    stat = _existing(pid)
    _refuse_unwatchable(pid, stat)
    if stat.state == "T" and not even_stopped:
        reason = f"process {pid} ({printable(stat.comm)}) is stopped"
        raise NoTargetError(reason, f"continue it with `kill -CONT {pid}`, then try again")
    _refuse_forbidden(pid)
    main = _main_python(pid)
    if main is None:
        raise NoTargetError(
            f"process {pid} ({printable(stat.comm)}) is not a Python process and none runs below it", CHOOSE
        )
    return Target(
        pid=pid,
        command=procfs.shown(procfs.argv(pid), stat.comm),
        started=procfs.started(stat.start),
        python=python_version(main),
        script=script_of(ProcessId(main.stat.pid, procfs.started(main.stat.start)), main.argv),
    )


def still_there(target: Target) -> str | None:
    """None while the same process lives, else a sentence on how it ended."""
    stat = procfs.stat(target.pid)
    if stat is None and not procfs.gone(target.pid):
        # It cannot be read just now (we are out of descriptors, say): the next look will tell.
        return None
    if stat is None or stat.ended:
        return f"process {target.pid} has ended"
    if target.started is not None and abs(procfs.started(stat.start) - target.started) > 0.5 / procfs.TICKS_PER_SECOND:
        return f"process {target.pid} has ended and its pid now belongs to another process"
    return None


def _existing(pid: int) -> Stat:
    stat = procfs.stat(pid) if pid > 0 else None
    if stat is not None:
        return stat
    if pid > 0 and not procfs.gone(pid):
        raise NotPermittedError(
            f"process {pid} is hidden from you", "run aitop as the user who started it, or with sudo"
        )
    raise NoTargetError(f"there is no process with pid {pid}", CHOOSE)


def _refuse_unwatchable(pid: int, stat: Stat) -> None:
    name = printable(stat.comm)
    if pid == os.getpid():
        raise NoTargetError(f"process {pid} is aitop itself", CHOOSE)
    if stat.flags & procfs.KERNEL_THREAD:
        raise NoTargetError(f"pid {pid} ({name}) is a thread of the kernel, not a program", CHOOSE)
    group = procfs.status(pid).get("Tgid", str(pid))
    if group != str(pid):
        raise NoTargetError(f"{pid} is a thread of process {group}", f"use --pid {group}")
    if stat.ended:
        raise NoTargetError(
            f"process {pid} ({name}) has ended; it is a zombie until its parent {stat.ppid} collects it", CHOOSE
        )
    if stat.state == "t" and _held(pid):
        tracer = procfs.status(pid).get("TracerPid", "?")
        raise NoTargetError(
            f"process {pid} ({name}) is held by the debugger {tracer}", "let it continue, then try again"
        )


def _held(pid: int) -> bool:
    """Whether a traced process stays stopped."""
    deadline = time.monotonic() + LONGEST_SHORT_STOP
    while time.monotonic() < deadline:
        stat = procfs.stat(pid)
        if stat is None or stat.state != "t":
            return False
        time.sleep(0.02)
    return True


def _refuse_forbidden(pid: int) -> None:
    """Raise NotPermittedError for another user's process, unless a capability lets us look inside all the same."""
    owner = procfs.user_id(pid)
    if owner in (None, os.geteuid()) or procfs.environ(pid) is not None or procfs.stat(pid) is None:
        return
    denied = why_denied(pid)
    raise NotPermittedError(denied.reason, denied.remedy)


def _main_python(pid: int) -> Member | None:
    """The Python process that stands for the tree: its first rank, else any Python that is no helper."""
    members = ProcessTree([(pid, None)]).update()
    by_pid = {member.stat.pid: member for member in members}
    places = places_of(members)
    ranks = ranks_of(places)
    if ranks:
        return by_pid[ranks[0]]
    return next((member for member in members if member.python and places[member.stat.pid].role != "helper"), None)


def python_version(member: Member) -> str | None:
    """'3.11', from the executable's name or the library it has mapped."""
    return procfs.python_version_of(member.exe) or procfs.python_version_of(None, procfs.maps(member.stat.pid))


def script_of(process: ProcessId, arguments: tuple[str, ...]) -> str | None:
    """The absolute path, as the process sees it, of the script or module it was started with; None for code."""
    if kind_of(arguments, python=True) == "helper":
        return None
    run = invocation(arguments)
    if run.how == "script":
        return _resolved(process, [run.what])
    if run.how == "module" and run.what:
        path = run.what.replace(".", "/")
        return _resolved(process, [f"{path}.py", f"{path}/__main__.py"])
    return None


def _resolved(process: ProcessId, names: list[str]) -> str | None:
    """The first name that is a file, looked up from the working folder now and from the one at the start."""
    pid = process.pid
    folders = (procfs.link(f"{procfs.PROC}/{pid}/cwd"), (procfs.environ(pid) or {}).get("PWD"))
    for folder in filter(None, folders):
        for name in names:
            path = os.path.normpath(os.path.join(folder, name))
            with contextlib.suppress(OSError, ValueError):
                os.close(open_as(process, path))
                return path
    return None
