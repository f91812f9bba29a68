"""Opening the file that the user named for our output, where somebody else may have put something of that name."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OPEN_FOLDER = "in a folder that everybody may write to"
# The numbers of the system call `setgroups`: the C library's function of that name changes all threads.
SETGROUPS = {"x86_64": 116, "aarch64": 159}
# Asks for the user or group that counts for files, and changes nothing.
UNCHANGED = -1


def open_output(path: Path, mode: int = 0o666, *, new: bool = False) -> int:
    """A descriptor to write to `path`, which is made with `mode` where it is not there. Raises OSError.

    With `new` it must not be there. Root writes below another user's folder with the rights of that user, to whom the
    file then belongs: whatever that user has laid out leads nowhere else. In a folder in which everybody may make
    files, such as /tmp, a link is not followed, and what another user put there is not written to. The kernel can see
    to that as well (fs.protected_symlinks), but does not everywhere.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | (os.O_EXCL if new else 0)
    owner = _other_owner(path) if os.geteuid() == 0 else None
    if owner is not None:
        return _open_as(owner, path, flags, mode)
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


def _other_owner(path: Path) -> os.stat_result | None:
    """The first folder on the way to `path` that is not root's: from there on its owner decides where the way leads."""
    folders = (os.stat(folder) for folder in reversed(path.absolute().parents))
    return next((folder for folder in folders if folder.st_uid != 0), None)


def _open_as(owner: os.stat_result, path: Path, flags: int, mode: int) -> int:
    """Open with the rights of a folder's owner. The thread that takes them ends with them."""

    def opened() -> int:
        libc = ctypes.CDLL(None)
        number = SETGROUPS.get(platform.machine())
        if number is None or libc.syscall(number, 0, None) != 0:
            raise OSError(errno.EPERM, "root cannot take the rights of the folder's owner here")
        libc.setfsgid(owner.st_gid)
        libc.setfsuid(owner.st_uid)
        # They return what was before, and say nothing of errors.
        if (libc.setfsgid(UNCHANGED), libc.setfsuid(UNCHANGED)) != (owner.st_gid, owner.st_uid):
            raise OSError(errno.EPERM, "root cannot take the rights of the folder's owner here")
        return os.open(path, flags, mode)

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(opened).result()
