"""The path by which a file that a process sees can be opened from here, by an editor, say, with all of our rights."""

from __future__ import annotations

import os

from aitop.sources import procfs
from aitop.sources.code.foreign_file import open_as, user_of


def lends_rights(pid: int) -> bool:
    """Whether the process is another user's: what the names of its files lead to may change at any moment."""
    user = user_of(pid)
    return user is not None and user.user != os.geteuid()


def readable_path(pid: int, file: str) -> str | None:
    """Where `file` of process `pid` is for us; None where it is not, or we or the process's user may not read it.

    That is its own path where it leads to the very file that the process would open, or where the process is gone;
    else the way through the root of the process, as into a container. None for another user's process.
    """
    if not file or file.startswith("<") or "\0" in file or lends_rights(pid):
        return None
    path = os.path.normpath(os.path.join(procfs.link(f"{procfs.PROC}/{pid}/cwd") or "/", file))
    try:
        handle = open_as(pid, path)
    except (OSError, ValueError):
        gone = user_of(pid) is None
        return path if gone and os.path.isfile(path) and os.access(path, os.R_OK) else None
    try:
        # A link in a container leads elsewhere from here: the name without links is tried as well.
        true = os.readlink(f"/proc/self/fd/{handle}")
        inside = f"{procfs.PROC}/{pid}/root"
        ways = (path, f"{inside}{path}", true, f"{inside}{true}")
        return next((way for way in ways if _is_open(way, handle) and os.access(way, os.R_OK)), None)
    finally:
        os.close(handle)


def _is_open(path: str, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except OSError:
        return False
