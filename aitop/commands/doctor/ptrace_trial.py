"""What the kernel lets one process do to another of the same user here, found by trying.

A child of ours tries it on us: it is no ancestor of ours, as aitop is none of the user's run. It stops nobody, and when
it ends everything is as before. The child runs this very file as a script (arguments: a pid, and an address in that
process that can be read), which prints three error numbers, 0 where the try worked. So it imports nothing of aitop.
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

    `open` is the right to open another process's memory, `read` the system call that reads it (py-spy can do without),
    `trace` ptrace itself (most of the hook's ways in need it).
    """

    open: str | None
    read: str | None
    trace: str | None


def try_ptrace() -> PtraceTrial | OSError:
    """The outcome of all three; the error where no child can be started, or it gave no answer."""
    if not sys.executable:
        return FileNotFoundError(errno.ENOENT, "the path of Python is not known")
    place = ctypes.create_string_buffer(8)
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(ctypes.addressof(place))]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)
        return PtraceTrial(*(_name(int(word)) for word in done.stdout.split()))
    except OSError as error:
        return error
    except (subprocess.TimeoutExpired, ValueError, TypeError):
        return OSError(errno.EIO, "the trial gave no answer")


def _name(number: int) -> str | None:
    return errno.errorcode.get(number, str(number)) if number else None


class _IoVec(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _open_memory(pid: int) -> int:
    """The error of opening the process's memory for writing, which reading and entering it both need."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or 1
    return 0


def _read_memory(pid: int, address: int) -> int:
    """The error of reading eight bytes with process_vm_readv."""
    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer(8)
    here, there = _IoVec(ctypes.addressof(room), 8), _IoVec(address, 8)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    count = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return 0 if count == 8 else ctypes.get_errno()


def _trace(pid: int) -> int:
    """The error of becoming the process's tracer without stopping it; that ends with this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    return ctypes.get_errno() if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == -1 else 0


if __name__ == "__main__":
    target = int(sys.argv[1])
    print(_open_memory(target), _read_memory(target, int(sys.argv[2])), _trace(target), flush=True)
