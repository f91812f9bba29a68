"""Opening memory without a file (memfd) that another process holds, and nothing else that bears such a name."""

from __future__ import annotations

import os
import stat


def open_memfd(path: str, link: str, access: int) -> int | None:
    """Our own descriptor of what `path` under /proc/PID/fd stands for; None where it is no memory named `link`.

    A process may have anything among its descriptors, under any name: it is looked at before it is opened, since to
    open a device or a pipe has effects, and what was looked at is what is opened. Raises OSError.
    """
    if os.readlink(path) != link:
        return None
    held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(held)
        # A file that has no name left, as memory has none from the start.
        if not stat.S_ISREG(status.st_mode) or status.st_nlink:
            return None
        return os.open(f"/proc/self/fd/{held}", access | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(held)
