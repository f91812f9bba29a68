"""The path by which a file that a process sees can be opened from here."""

from __future__ import annotations

import os

from aitop.sources import procfs
from aitop.sources.foreign_file import open_as, user_of


def readable_path(pid: int, file: str) -> str | None:
    """Where `file` of process `pid` is for us; None where it is not, or we or the process's user may not read it.

    That is its own path where it leads to the same file, or where the process is gone; else the way through the
    root of the process, as into a container.
    """
    if not file or file.startswith("<") or "\0" in file:
        return None
    if not _may_be_read(pid, file):
        return None
    path = os.path.normpath(os.path.join(procfs.link(f"{procfs.PROC}/{pid}/cwd") or "/", file))
    inside = f"{procfs.PROC}/{pid}/root{path}"
    there, here = _identity(inside), _identity(path)
    if there is not None and there != here:
        return inside if os.access(inside, os.R_OK) else None
    return path if here is not None and os.access(path, os.R_OK) else None


def _may_be_read(pid: int, file: str) -> bool:
    """Whether the process could read it itself; True where the process is gone, and nothing is known of its rights."""
    path = os.path.normpath(os.path.join(procfs.link(f"{procfs.PROC}/{pid}/cwd") or "/", file))
    try:
        os.close(open_as(pid, path))
    except (OSError, ValueError):
        return user_of(pid) is None
    return True


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
