"""Opens anonymous memory (memfd) of another process, and nothing else that has such a name."""

from __future__ import annotations

import os
import stat


def open_memfd(path: str, link: str, access: int) -> int | None:
    """Open what `path` under /proc/PID/fd stands for. Returns None where it is no memory named `link`. Raises OSError.

    A process may have anything among its descriptors, under any name. Opening a device or a pipe has effects, so the
    descriptor is examined first, and then that very file is opened.
    """
    if os.readlink(path) != link:
        return None
    held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(held)
        # Memory is a regular file without a name.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink:
            return None
        return os.open(f"/proc/self/fd/{held}", access | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(held)
