"""Asks the hook in a process for a burst of torch.profiler, and reads what comes out of it.

The layout is in aitop/protocol/burst.py. The target may write anything there: sizes are bounded and nothing is mapped.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable

import msgspec

from aitop.model.profile import Holds
from aitop.model.text import printable
from aitop.protocol.burst import (
    DONE,
    FOLDER_PREFIX,
    HEADER,
    MAGIC,
    MEMFD_LINK,
    MOST_STEPS,
    REFUSED,
    RUNNING,
    TEXT_AT,
    TEXT_ROOM,
    TRACE_AT,
    WAITING,
)
from aitop.sources.ring.memfd import find_memfd
from aitop.sources.source import SourceError

LARGEST_TRACE = 1 << 30
LONGEST_SECONDS = 3600.0
POLL_SECONDS = 0.05
# Where a process writes a profile to first; nothing is made there by us.
FOLDER = "/dev/shm"  # noqa: S108
# The pid, and what makes the name unique.
NAME = re.compile(rf"{FOLDER_PREFIX}([1-9][0-9]{{0,9}})-\w+")
# Writing a profile takes less. Younger folders stay: their pid may be of another pid namespace, where it still writes.
OLD_SECONDS = 300.0


class Burst(msgspec.Struct, frozen=True):
    """A finished burst: the trace as torch wrote it, its steps, and how long it held up the run."""

    trace: bytes
    steps: int
    holds: Holds


class _Header(msgspec.Struct, frozen=True):
    serial: int
    state: int
    steps: int
    holds: Holds
    size: int


def serial_number() -> int:
    """A number for a request that the hook has not seen lately."""
    return time.monotonic_ns() // 1_000_000 % (1 << 40) + 1


def wait_for(
    pid: int, serial: int, timeout: float, *, wanted: Callable[[], bool], progress: Callable[[str], None]
) -> Burst:
    """Wait for the burst that was asked for under this serial number.

    Calls `progress` with "waiting" or "running" when that changes. Raises SourceError: absent once `wanted` returns
    False; failed where the process refused or ended, or was not done within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    state = ""
    while time.monotonic() < deadline:
        if not wanted():
            raise SourceError("absent", "nobody waits for the profile any more")
        memory = _find(pid, serial)
        if memory is not None:
            fd, header = memory
            try:
                if header.state == DONE:
                    return _read(fd, header)
                if header.state == REFUSED:
                    raise SourceError("failed", f"no profile of process {pid}: {_text(fd, header)}")
            finally:
                os.close(fd)
            now = "running" if header.state == RUNNING else "waiting"
            if now != state:
                progress(now)
                state = now
        elif state:
            raise SourceError("failed", f"no profile of process {pid}: the hook left it meanwhile")
        time.sleep(POLL_SECONDS)
    why = "it made no step" if state != "running" else "its steps took longer"
    raise SourceError("failed", f"no profile of process {pid} in {timeout:.0f} s: {why}")


def _find(pid: int, serial: int) -> tuple[int, _Header] | None:
    """Our own descriptor of the burst's memory, and its header. Raises SourceError."""

    def look(fd: int) -> _Header | None:
        header = _header(os.pread(fd, HEADER.size, 0))
        return header if header is not None and header.serial == serial else None

    memory = find_memfd(pid, MEMFD_LINK, os.O_RDONLY, look)
    return memory[1:] if memory is not None else None


def _header(data: bytes) -> _Header | None:
    if len(data) < HEADER.size:
        return None
    magic, serial, state, steps, _, _, start, stop, save, size = HEADER.unpack(data)
    if magic != MAGIC or state not in (WAITING, RUNNING, DONE, REFUSED):
        return None
    holds = Holds(start=_seconds(start), stop=_seconds(stop), save=_seconds(save))
    return _Header(serial, state, min(steps, MOST_STEPS), holds, size)


def _seconds(nanoseconds: int) -> float:
    return min(nanoseconds / 1e9, LONGEST_SECONDS)


def _read(fd: int, header: _Header) -> Burst:
    if header.size > LARGEST_TRACE:
        raise SourceError("failed", f"the trace is too large to be read ({header.size} bytes): ask for fewer steps")
    with os.fdopen(os.dup(fd), "rb") as opened:
        opened.seek(TRACE_AT)
        return Burst(opened.read(header.size), header.steps, header.holds)


def _text(fd: int, header: _Header) -> str:
    return printable(os.pread(fd, min(header.size, TEXT_ROOM), TEXT_AT).decode(errors="replace"))


def remove_leftovers(folder: str = FOLDER) -> None:
    """Remove the folders of this user's processes that were killed while they wrote a profile."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        match = NAME.fullmatch(name)
        if match and not os.path.exists(f"/proc/{match[1]}") and _is_old_and_ours(f"{folder}/{name}"):
            shutil.rmtree(f"{folder}/{name}", ignore_errors=True)


def _is_old_and_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    old = time.time() - status.st_mtime > OLD_SECONDS
    return old and stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
