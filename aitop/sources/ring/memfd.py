"""Opens anonymous memory (memfd) of another process, and nothing else that has such a name."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import TypeVar

from aitop.sources.source import SourceError

T = TypeVar("T")


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


def find_memfd(pid: int, link: str, access: int, look: Callable[[int], T | None]) -> tuple[str, int, T] | None:
    """Find the first memory named `link` of process `pid` for which `look` returns something; None if there is none.

    Returns its path, our own descriptor and what `look` returned. The descriptor is the one that was looked at, as the
    path may lead to another file a moment later. Raises SourceError if the process's descriptors may not be read.
    """
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            try:
                fd = open_memfd(path, link, access)
            except FileNotFoundError:
                continue
            content = None
            try:
                content = look(fd) if fd is not None else None
            finally:
                if fd is not None and content is None:
                    os.close(fd)
            if fd is not None and content is not None:
                return path, fd, content
    except PermissionError as error:
        raise SourceError(
            "denied", f"the descriptors of process {pid} may not be read", "run aitop as the same user, or as root"
        ) from error
    except (FileNotFoundError, ProcessLookupError) as error:
        raise SourceError("absent", f"process {pid} is gone") from error
    except (OSError, ValueError) as error:
        raise SourceError("failed", f"the memory of process {pid} cannot be opened: {error}") from error
    return None
