"""The hook that is there already: found from outside, without touching the process."""

from __future__ import annotations

import os
import stat
import struct
import time

from aitop.attach.inspection.process import read_status

# The hook's ring, as aitop/hook/layout.py lays it out: 8-byte words, of which these are used.
LINK = "/memfd:aitop-hook (deleted)"
MAGIC = int.from_bytes(b"AITOPRNG", "little")
W_MAGIC, W_VERSION, W_PID, W_STATE, W_WAY, W_CONTROL = 0, 1, 2, 7, 8, 9
W_SLOTS, SLOTS = 16, 8
VERSION, INSTALLED, BY_ATTACH = 2, 1, 0
WORDS = W_SLOTS + 2 * SLOTS


def hook_is_there(pid: int) -> bool:
    """Whether a hook is in the process and going to stay: somebody uses it, or it came with the program.

    False as well where nothing can be seen.
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
            if os.readlink(f"{folder}/{name}") == LINK and _stays(f"{folder}/{name}", status.inner_pid):
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
        data = os.pread(fd, 8 * WORDS, 0)
    finally:
        os.close(fd)
    if len(data) < 8 * WORDS:
        return False
    words = struct.unpack(f"={WORDS}Q", data)
    # A forked worker has the ring of its parent among its descriptors.
    known = (words[W_MAGIC], words[W_VERSION], words[W_PID], words[W_STATE]) == (MAGIC, VERSION, inner_pid, INSTALLED)
    deadlines = words[W_SLOTS + 1 :: 2]
    return known and not words[W_CONTROL] and (words[W_WAY] != BY_ATTACH or max(deadlines) > time.monotonic_ns())
