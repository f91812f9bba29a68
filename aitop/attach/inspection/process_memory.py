"""Reads and writes another process's memory through `/proc/PID/mem`, and lists its mappings."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from types import TracebackType

import msgspec

from aitop.attach import held_libc

# Sizes are read from the target's own tables, so they must be bounded.
LARGEST_READ = 16 << 20


class Mapping(msgspec.Struct, frozen=True):
    """One line of `/proc/PID/maps`: addresses, permissions such as `r-xp`, offset in the file, path or ''."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str


class Memory:
    """The memory of one process. Opening it needs the same right as ptrace, and binds it to that very process.

    Reads and writes raise OSError if the address is not mapped or the process is gone. A read waits where a page of the
    process has to come from a disk or another machine first, and lets our other threads run meanwhile.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._holds_gil = False
        self._fd = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextlib.contextmanager
    def holding_gil(self) -> Iterator[None]:
        """Let none of our other threads run during a read: for the time in which a thread of the process is stopped."""
        self._holds_gil = True
        try:
            yield
        finally:
            self._holds_gil = False

    def read(self, address: int, size: int) -> bytes:
        if not 0 <= address < 1 << 63 or not 0 <= size <= LARGEST_READ:
            raise OSError(errno.EFAULT, f"no {size} bytes at {address:#x}")
        data = (held_libc.read if self._holds_gil else os.pread)(self._fd, size, address)
        if len(data) != size:
            raise OSError(errno.EIO, f"{len(data)} of {size} bytes read at {address:#x}")
        return data

    def read_word(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def write(self, address: int, data: bytes) -> None:
        written = held_libc.write(self._fd, data, address)
        if written != len(data):
            raise OSError(errno.EIO, f"{written} of {len(data)} bytes written at {address:#x}")


def mappings(pid: int) -> Iterator[Mapping]:
    """Yield the mappings of the process, in order of address."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            parts = line.rstrip("\n").split(None, 5)
            start, _, end = parts[0].partition("-")
            path = parts[5] if len(parts) > 5 else ""
            yield Mapping(int(start, 16), int(end, 16), parts[1], int(parts[2], 16), path)
