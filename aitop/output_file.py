"""Writing the files that the user named for our output, where somebody else may have put something of that name.

A path is walked one name at a time. In a folder that others may write to, such as /tmp, what is neither ours nor root's
is neither followed nor written to. The kernel can see to that as well (fs.protected_symlinks), but does not everywhere.
Root goes on with the rights of the owner of the first folder on the way that is another user's, to whom a new file
then belongs: whatever that user has laid out leads to nothing that they could not write themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

OPEN_FOLDER = "in a folder that others may write to"
MOST_LINKS = 40
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# The numbers of the system call `setgroups`: the C library's function of that name changes all threads.
SETGROUPS = {"x86_64": 116, "aarch64": 159}
# Asks for the user or group that counts for files, and changes nothing.
UNCHANGED = -1
T = TypeVar("T")


class Place(NamedTuple):
    """Where a path has led: a name in the folder of this descriptor.

    In a folder that others may write to only what these users own is used there; `trusted` is None in all others.
    `no_follow` is a flag for open: not set in /proc, whose links lead to what is open and not to their text.
    """

    folder: int
    name: str
    trusted: tuple[int, int] | None
    no_follow: int


def open_output(path: Path, mode: int = 0o666, *, new: bool = False) -> int:
    """A descriptor to write to `path`, which is made with `mode` where it is not there. Raises OSError.

    With `new` it must not be there.
    """

    def opened(place: Place) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY
        flags |= place.no_follow | (os.O_EXCL if new else 0)
        descriptor = os.open(place.name, flags, mode, dir_fd=place.folder)
        status = os.fstat(descriptor)
        if place.trusted and (status.st_uid not in place.trusted or status.st_nlink > 1):
            os.close(descriptor)
            raise OSError(errno.EACCES, f"it is another user's, or has a second name, {OPEN_FOLDER}")
        return descriptor

    return _at(path, opened, follow=not new)


def write_output(path: Path, data: bytes) -> None:
    """Overwrite the file that the user named with `data`. Raises OSError."""
    descriptor = open_output(path)
    with open(descriptor, "wb") as file:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.ftruncate(descriptor, 0)
        file.write(data)


def replace_output(path: Path, data: bytes, mode: int) -> None:
    """Put a file with `data` in the place of whatever is called `path`, whole or not at all. Raises OSError."""

    def replace(place: Place) -> None:
        new = f".{place.name}.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            # Left by one that was killed while it wrote.
            os.unlink(new, dir_fd=place.folder)
        descriptor = os.open(new, NEW, mode, dir_fd=place.folder)
        try:
            with open(descriptor, "wb") as file:
                # Whatever the umask leaves of it.
                os.fchmod(descriptor, mode)
                file.write(data)
            os.replace(new, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        except OSError:
            os.unlink(new, dir_fd=place.folder)
            raise

    _at(path, replace, follow=False)


def remove_output(path: Path) -> None:
    """Take away what was written, if it is there and may be."""
    with contextlib.suppress(OSError):
        _at(path, lambda place: os.unlink(place.name, dir_fd=place.folder), follow=False)


def make_folder(path: Path, mode: int) -> None:
    """Make a folder that is not there, and those above it. Raises OSError."""
    if not path.exists():
        make_folder(path.parent, mode)
        _at(path, lambda place: os.mkdir(place.name, mode, dir_fd=place.folder), follow=False)


def _at(path: Path, act: Callable[[Place], T], *, follow: bool) -> T:
    """What `act` returns for the place of `path`; with `follow`, for the one that a link there leads to.

    In a thread of its own: the rights that are taken on the way end with it.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - few runs write anything

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_walk, str(path), act, follow=follow).result()


def _walk(path: str, act: Callable[[Place], T], *, follow: bool) -> T:
    folder, names, links, user = os.open(_start(path), FOLDER), _names(path), 0, os.geteuid()
    try:
        while names:
            here = os.fstat(folder)
            if user == 0 != here.st_uid:
                _take_rights(here)
                user = here.st_uid
            name = names.pop()
            shared = here.st_mode & (stat.S_IWOTH if user else stat.S_IWOTH | stat.S_IWGRP)
            magic = here.st_dev == os.stat("/proc/self").st_dev
            place = Place(folder, name, (user, 0) if shared else None, 0 if magic else os.O_NOFOLLOW)
            link = _link(place) if not magic and (names or follow) else None
            if link is None and not names:
                return act(place)
            if link is None:
                nearer = os.open(name, FOLDER | place.no_follow, dir_fd=folder)
            else:
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                names += _names(link)
                nearer = os.open(_start(link), FOLDER, dir_fd=folder)
            os.close(folder)
            folder = nearer
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    finally:
        os.close(folder)


def _start(path: str) -> str:
    return "/" if path.startswith("/") else "."


def _names(path: str) -> list[str]:
    """As a stack: the next one is last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _link(place: Place) -> str | None:
    """The text of the link at a place, None where there is none. Raises OSError where it is not to be followed."""
    try:
        step = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(step)
        if not stat.S_ISLNK(status.st_mode):
            return None
        if place.trusted and status.st_uid not in place.trusted:
            raise OSError(errno.ELOOP, f"{place.name} is a link of another user's, {OPEN_FOLDER}")
        return os.readlink("", dir_fd=step)
    finally:
        os.close(step)


def _take_rights(owner: os.stat_result) -> None:
    """Let this thread open files with the rights of a folder's owner, for good."""
    libc, number = ctypes.CDLL(None), SETGROUPS.get(platform.machine())
    if number is not None and libc.syscall(number, 0, None) == 0:
        libc.setfsgid(owner.st_gid)
        libc.setfsuid(owner.st_uid)
        # They return what was before, and say nothing of errors.
        if (libc.setfsgid(UNCHANGED), libc.setfsuid(UNCHANGED)) == (owner.st_gid, owner.st_uid):
            return
    raise OSError(errno.EPERM, "root cannot take the rights of the folder's owner here")
