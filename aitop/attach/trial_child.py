"""Runs as a script of its own: tries to look into a process, and prints three error numbers, 0 where it worked.

Arguments: the pid, and an address in it that can be read.
"""

from __future__ import annotations

import ctypes
import os
import sys

PTRACE_SEIZE = 0x4206


class Place(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


def opened(pid: int) -> int:
    """The error of opening the process's memory to write, which is what reading and entering it ask for."""
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.errno or 1
    return 0


def read(pid: int, address: int) -> int:
    """The error of reading eight bytes of it with the system call for that."""
    libc = ctypes.CDLL(None, use_errno=True)
    room = ctypes.create_string_buffer(8)
    here, there = Place(ctypes.addressof(room), 8), Place(address, 8)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    count = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return 0 if count == 8 else ctypes.get_errno()


def traced(pid: int) -> int:
    """The error of becoming its tracer, without stopping it; that ends with this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    return ctypes.get_errno() if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) == -1 else 0


if __name__ == "__main__":
    target = int(sys.argv[1])
    print(opened(target), read(target, int(sys.argv[2])), traced(target), flush=True)
