"""Opening a file or folder that another process names, without lending it our rights.

The path belongs to the other process: it is walked from its root one name at a time, no link is followed by the
kernel (a link's text is walked from the same root), and each folder and the file must let that process's user in.
What is no regular file is never opened: opening a device or a pipe has effects.
"""

from __future__ import annotations

import errno
import os
import stat

from aitop.model.host import ProcessId
from aitop.sources import procfs
from aitop.sources.process_status import User, read_status

MOST_LINKS, MOST_FOLDERS = 40, 128
READ, MAKE, SEARCH = 4, 3, 1
ACL = "system.posix_acl_access"


def user_of(process: ProcessId | None) -> User | None:
    """As whom a process opens files; None where it is gone, even if another has its pid by now."""
    status = read_status(process.pid) if process is not None else None
    return None if status is None or ProcessId(status.pid, procfs.started(status.started)) != process else status.user


def open_as(process: ProcessId, path: str, *, folder: bool = False) -> int:
    """A descriptor to read the regular file, or `folder`, that the process knows as `path` (absolute). Raises OSError.

    For a process of our own user the kernel's own check of the rights is enough.
    """
    root = os.open(f"{procfs.PROC}/{process.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Read after the root was opened: either that root is of this process, or the process is gone now.
        user = user_of(process)
        if user is None:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        return open_below(root, path, None if user.user == os.geteuid() else user, folder=folder)
    finally:
        os.close(root)


def open_folder_as(pid: int, path: str, user: User) -> int:
    """A descriptor of the folder that process `pid` knows as `path`, to make files in. Raises OSError.

    Refused with EACCES where `user`, as whom it opens files, may not make any there: it must not profit from our
    rights.
    """
    root = os.open(f"{procfs.PROC}/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_below(root, path, user, folder=True, rights=MAKE)
    finally:
        os.close(root)


def open_below(root: int, path: str, user: User | None, *, folder: bool = False, rights: int = READ) -> int:
    """A descriptor of the regular file, or `folder`, at `path` below the folder of descriptor `root`. Raises OSError.

    `..` stays below the root, and an absolute link starts at it again. With `user` None only the kernel checks rights.
    """
    way = [os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)]
    try:
        _walk(way, [part for part in reversed(path.split("/")) if part not in ("", ".")], user)
        status = os.fstat(way[-1])
        if not folder and not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        _must_allow(way[-1], user, rights)
        # By its descriptor: the name may lead to another file by now.
        flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECTORY if folder else os.O_NONBLOCK | os.O_NOCTTY)
        return os.open(f"/proc/self/fd/{way[-1]}", flags)
    finally:
        for step in way:
            os.close(step)


def _walk(way: list[int], todo: list[str], user: User | None) -> None:
    """Open the names in `todo` (a stack: the next one is last), each below the one before, and append them to `way`.

    Symbolic links are followed here, so that `..` and absolute links never lead out of the first folder in `way`.
    """
    links = 0
    while todo:
        if len(way) > MOST_FOLDERS:
            # Each is an open file of ours.
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        part = todo.pop()
        if part == "..":
            if len(way) > 1:
                os.close(way.pop())
            continue
        _must_allow(way[-1], user, SEARCH)
        step = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way[-1])
        way.append(step)
        if not stat.S_ISLNK(os.fstat(step).st_mode):
            continue
        text = os.readlink("", dir_fd=step)
        os.close(way.pop())
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        todo += [name for name in reversed(text.split("/")) if name not in ("", ".")]
        if text.startswith("/"):
            while len(way) > 1:
                os.close(way.pop())


def _must_allow(handle: int, user: User | None, rights: int) -> None:
    """Raise PermissionError where an open file or folder does not give `user` these rights."""
    if user is None:
        return
    try:
        acl = os.getxattr(f"/proc/self/fd/{handle}", ACL)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        acl = b""
    if not user.may(os.fstat(handle), rights, acl):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def belongs_to_other_user(process: ProcessId | None) -> bool:
    """Whether the process is another user's: to open its paths, which may change any moment, lends it our rights."""
    user = user_of(process)
    return user is not None and user.user != os.geteuid()


def readable_path(process: ProcessId | None, file: str) -> str | None:
    """A path by which we can read `file` of a process; None where we, or the process's user, may not read it.

    It is the file's own path where that leads to the very file that the process would open, or where the process is
    gone; else one through the root of the process, as into a container. None for another user's process.
    """
    if not file or file.startswith("<") or "\0" in file or belongs_to_other_user(process):
        return None
    if process is None or user_of(process) is None:
        return file if file.startswith("/") and _is_ours(file) else None
    path = os.path.normpath(os.path.join(procfs.link(f"{procfs.PROC}/{process.pid}/cwd") or "/", file))
    try:
        handle = open_as(process, path)
    except (OSError, ValueError):
        return None
    try:
        # A link in a container leads elsewhere from here: the name without links is tried as well.
        true = os.readlink(f"/proc/self/fd/{handle}")
        inside = f"{procfs.PROC}/{process.pid}/root"
        ways = (path, f"{inside}{path}", true, f"{inside}{true}")
        return next((way for way in ways if _is_open(way, handle) and os.access(way, os.R_OK)), None)
    finally:
        os.close(handle)


def _is_ours(path: str) -> bool:
    """Whether we may read the file. As root only root's own and by no link: any user's process may have named it."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return False
    return os.geteuid() != 0 or (os.path.realpath(path) == os.path.normpath(path) and os.stat(path).st_uid == 0)


def _is_open(path: str, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False
