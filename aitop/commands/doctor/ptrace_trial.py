"""Finds by trying what the kernel lets one process do to another one of the same user.

A child of ours tries it on us, since it is no ancestor of ours, just as aitop is no ancestor of the user's run. It
stops nobody, and when it ends everything is as before. The child runs this file as a script (argument: a pid), which
prints two error numbers, 0 where the try worked. So this file imports nothing of aitop.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from dataclasses import dataclass

SECONDS = 10.0
PTRACE_SEIZE = 0x4206


@dataclass(frozen=True)
class PtraceTrial:
    """The names of the errors (EPERM, ENOSYS …) with which each try failed, None where it worked.

    `open` is the right to open another process's memory, `trace` ptrace itself (most of the hook's ways in need it).
    """

    open: str | None
    trace: str | None


def try_ptrace() -> PtraceTrial | OSError:
    """The outcome of both tries; the error where no child can be started, or where it gave no answer."""
    if not sys.executable:
        return FileNotFoundError(errno.ENOENT, "the path of Python is not known")
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
        return PtraceTrial(*(_name(int(word)) for word in done.stdout.split()))
    except OSError as error:
        return error
    except (subprocess.TimeoutExpired, ValueError, TypeError):
        return OSError(errno.EIO, "the trial gave no answer")


def _name(number: int) -> str | None:
    return errno.errorcode.get(number, str(number)) if number else None


def _open_memory(pid: int) -> int:
    """The error number of opening the process's memory for writing, 0 for none. Reading and entering it need that."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or 1
    return 0


def _trace(pid: int) -> int:
    """The error number of becoming the process's tracer without stopping it, 0 for none.

    The tracing ends with this process.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    return ctypes.get_errno() if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == -1 else 0


if __name__ == "__main__":
    target = int(sys.argv[1])
    print(_open_memory(target), _trace(target), flush=True)
