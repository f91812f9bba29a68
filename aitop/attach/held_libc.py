"""System calls that do not release our own GIL.

While a thread of the target is stopped, no other thread of the monitor may run: it could hold the GIL for milliseconds,
during which the target would stay stopped.
"""

from __future__ import annotations

import ctypes
import functools
import os

import msgspec

SIGINFO_SIZE = 128


@functools.cache
def _libc() -> ctypes.PyDLL:
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.waitid.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    for call in (libc.pread, libc.pwrite):
        call.restype = ctypes.c_ssize_t
        call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_longlong]
    return libc


def _checked(result: int, what: str) -> int:
    if result == -1 and (code := ctypes.get_errno()):
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    """`ptrace`; raises OSError."""
    ctypes.set_errno(0)
    return _checked(_libc().ptrace(request, tid, address, data), f"ptrace {request:#x}")


class WaitEvent(msgspec.Struct, frozen=True):
    """What happened to a traced thread: a CLD_ code, and its status (signal number plus 256 × the ptrace event)."""

    code: int
    status: int


def wait_event(tid: int, options: int) -> WaitEvent | None:
    """`waitid` for one thread, without blocking. None if nothing has happened; raises OSError."""
    buffer = ctypes.create_string_buffer(SIGINFO_SIZE)
    ctypes.set_errno(0)
    _checked(_libc().waitid(os.P_PID, tid, buffer, options | os.WNOHANG), "waitid")
    fields = memoryview(buffer.raw).cast("i")
    # si_code, si_pid and si_status of the kernel's siginfo on 64-bit machines
    return WaitEvent(fields[2], fields[6]) if fields[4] else None


def pause(microseconds: int) -> None:
    """Sleep without releasing the GIL."""
    _libc().usleep(microseconds)


def read(fd: int, size: int, offset: int) -> bytes:
    """`pread`; may return less. Raises OSError."""
    buffer = ctypes.create_string_buffer(size)
    ctypes.set_errno(0)
    count = _checked(_libc().pread(fd, buffer, size, offset), "pread")
    return buffer.raw[:count]


def write(fd: int, data: bytes, offset: int) -> int:
    """`pwrite`; may write less. Raises OSError."""
    ctypes.set_errno(0)
    return _checked(_libc().pwrite(fd, data, len(data), offset), "pwrite")
