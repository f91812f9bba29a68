"""Opening the file that the user named for our output, where somebody else may have put something of that name."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

OPEN_FOLDER = "in a folder that everybody may write to"


def open_output(path: Path, mode: int = 0o666) -> int:
    """A descriptor to write to `path`, which is made with `mode` where it is not there. Raises OSError.

    In a folder in which everybody may make files, such as /tmp, a link is not followed, and what another user put there
    is not written to. The kernel can see to that as well (fs.protected_symlinks), but does not everywhere.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
    folder = os.stat(path.parent)
    if not folder.st_mode & stat.S_IWOTH:
        return os.open(path, flags, mode)
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, f"it is a link, {OPEN_FOLDER}") from None
        raise
    if os.fstat(descriptor).st_uid not in (os.geteuid(), folder.st_uid):
        os.close(descriptor)
        raise OSError(errno.EACCES, f"it is another user's, {OPEN_FOLDER}")
    return descriptor


def write_output(path: Path, data: bytes) -> None:
    """Write `data` in place of what was there, for which the user has given the name. Raises OSError."""
    descriptor = open_output(path)
    with open(descriptor, "wb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, 0)
        file.write(data)
