"""Finds a hook that is in a process already, from outside, without touching the process."""

from __future__ import annotations

import os
import stat
import struct
import time

from aitop.attach.inspection.process import read_status
from aitop.protocol import ring

# What is read of the ring: its header up to the end of the lease slots.
WORDS = ring.W_SLOTS + 2 * ring.SLOTS


def hook_is_there(pid: int) -> bool:
    """Return whether a hook is in the process and going to stay: a monitor uses it, or it came with the program.

    False also where nothing can be seen.
    """
    status = read_status(pid)
    if status is None:
        return False
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    for name in names:
        try:
            if os.readlink(f"{folder}/{name}") == ring.MEMFD_LINK and _stays(f"{folder}/{name}", status.inner_pid):
                return True
        except OSError:  # closed meanwhile
            continue
    return False


def _stays(path: str, inner_pid: int) -> bool:
    # Looked at first: to open a device or a pipe that bears this name has effects.
    held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(held)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink:
            return False
        fd = os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(held)
    try:
        data = os.pread(fd, ring.WORD * WORDS, 0)
    finally:
        os.close(fd)
    if len(data) < ring.WORD * WORDS:
        return False
    words = struct.unpack(f"={WORDS}Q", data)
    # A forked worker has the ring of its parent among its descriptors.
    own = (words[ring.W_MAGIC], words[ring.W_VERSION], words[ring.W_PID]) == (ring.MAGIC, ring.VERSION, inner_pid)
    if not own or words[ring.W_STATE] != ring.STATE_INSTALLED or words[ring.W_CONTROL]:
        return False
    deadlines = words[ring.W_SLOTS + 1 :: 2]
    return bool(words[ring.W_WAY] != ring.WAY_ATTACH or max(deadlines) > time.monotonic_ns())
