"""A folder as another process sees it, reached one step at a time and never outside of that process's root.

The names on the way belong to the target: a link among them must not lead a monitor with more rights than
the target to a place that the target could not reach. So no link is ever followed by the kernel: each is
read, and its text is walked from the target's own root.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from aitop.attach.proc_status import ProcStatus

MOST_LINKS = 40
SEARCH, MAKE = 1, 3


def open_folder(target: ProcStatus, path: str) -> int:
    """A descriptor of the folder that `target` knows as `path`, to make files in; raises OSError.

    A folder in which the target itself may not make files is refused with EACCES: our rights are not lent to it.
    """
    root = os.open(f"/proc/{target.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = open_inside(root, path, lambda passed: _may(target, passed, SEARCH))
    finally:
        os.close(root)
    if not _may(target, os.fstat(folder), MAKE):
        os.close(folder)
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return folder


def _may(target: ProcStatus, folder: os.stat_result, rights: int) -> bool:
    """Whether the folder's mode gives the target these rights: to go through it, or to make and find files in it."""
    user = target.uids[-1]
    if user == 0:
        return True
    groups = (target.gids[-1], *target.groups)
    shift = 6 if folder.st_uid == user else 3 if folder.st_gid in groups else 0
    return folder.st_mode >> shift & rights == rights


def open_inside(root: int, path: str, may_pass: Callable[[os.stat_result], bool] = lambda passed: True) -> int:
    """A descriptor of folder `path` below the folder that descriptor `root` stands for; raises OSError.

    `..` stays below the root, an absolute link starts at it again. Each folder on the way `may_pass`, else EACCES.
    """
    todo = [part for part in reversed(path.split("/")) if part]
    way = [os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)]
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == ".":
                continue
            if part == "..":
                if len(way) > 1:
                    os.close(way.pop())
                continue
            if not may_pass(os.fstat(way[-1])):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            step = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=way[-1])
            if not stat.S_ISLNK(os.fstat(step).st_mode):
                way.append(step)
                continue
            try:
                text = os.readlink("", dir_fd=step)
            finally:
                os.close(step)
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            todo += [part for part in reversed(text.split("/")) if part]
            if text.startswith("/"):
                while len(way) > 1:
                    os.close(way.pop())
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=way[-1])
    finally:
        for step in way:
            os.close(step)
