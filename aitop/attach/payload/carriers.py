"""Carriers: what holds a request while it waits for its target, and how exactly one side, target or monitor, claims it.

If the target may open our own process's descriptors, the carrier is anonymous memory of ours (memfd). Then a monitor
that is killed leaves nothing behind, and a request that has not begun disappears with it. Otherwise (another user or
namespace, other rights) the carrier is a file, which the target unlinks as its first act.

The directories in that file's path belong to the target. A symbolic link among them must not lead a monitor with more
rights to a place that the target could not reach, so `open_folder_as` walks them one by one with the target's rights.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator

from aitop.attach.refusal import AttachRefused
from aitop.sources import procfs
from aitop.sources.foreign_file import open_folder_as
from aitop.sources.process_status import CAP_CHOWN, ProcStatus, own_status

ABANDONED_SECONDS = 60.0
# World-writable folders are safe: the file is made with O_EXCL, for the target's user alone, under a random name.
FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108
MEMFD_NAME = "aitop-request"
# Matches the names of our own files. Only those are cleaned up.
REQUEST = re.compile(r"\.aitop-[0-9]+-[0-9a-f]{12}")
PR_GET_DUMPABLE = 3
# The state byte in memory of ours: the request is free to take, begun by the target, or taken back by us. It is changed
# under a lock that both sides only try to take and never wait for.
FREE, BEGUN, TAKEN_BACK = b"-", b"b", b"x"


class Carrier:
    """Holds a request. `fd` is our descriptor of it.

    The target opens `path` with `flags`. `claim` is the Python code with which the target then claims the request; it
    raises an exception if we have taken the request back.
    """

    fd = -1
    path: str
    flags: int
    claim: str

    def is_there(self) -> bool:
        """Return whether the target has not begun with the request yet."""
        raise NotImplementedError

    def take_away(self) -> bool:
        """Take the request back. True: the target will never run it. False: it has already begun."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class MemoryCarrier(Carrier):
    """Memory of ours (memfd), which the target opens through `/proc`. Raises OSError if the system has no memfd.

    The byte at offset `state_at` must be FREE before the target learns of the memory.
    """

    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK

    def __init__(self, state_at: int) -> None:
        self._state_at = state_at
        self.fd = os.memfd_create(MEMFD_NAME, os.MFD_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        self.claim = f"o.lockf(d,o.F_TLOCK,0);o.pread(d,1,{state_at})=={FREE!r}or 1/0;o.pwrite(d,{BEGUN!r},{state_at})"

    def is_there(self) -> bool:
        return os.pread(self.fd, 1, self._state_at) == FREE

    def take_away(self) -> bool:
        try:
            os.lockf(self.fd, os.F_TLOCK, 0)
        except OSError:
            return False
        try:
            begun = os.pread(self.fd, 1, self._state_at) == BEGUN
            if not begun:
                os.pwrite(self.fd, TAKEN_BACK, self._state_at)
        finally:
            os.lockf(self.fd, os.F_ULOCK, 0)
        return not begun


class FileCarrier(Carrier):
    """A file in a folder. `path` is the folder's name for the target, `folder` our descriptor of it, closed with this.

    Raises OSError.
    """

    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    claim = "o.unlink(p)"

    def __init__(self, target: ProcStatus, folder: int, path: str) -> None:
        self._target, self._folder = target, folder
        self._name = f"{_prefix(target.pid)}{os.urandom(6).hex()}"
        self.path = f"{path.rstrip('/')}/{self._name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.fd = os.open(self._name, flags, stat.S_IRUSR | stat.S_IWUSR, dir_fd=folder)
            with contextlib.suppress(OSError):  # a file system without locks
                # For as long as it is open: others see that it is in use.
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Only if the user differs, because we may not be allowed to give files to the target's group.
            if target.uids[1] != os.geteuid():
                os.fchown(self.fd, target.uids[1], target.gids[1])
        except OSError:
            if self.fd >= 0:
                self.take_away()
            self.close()
            raise

    def is_there(self) -> bool:
        return bool(os.fstat(self.fd).st_nlink)

    def take_away(self) -> bool:
        try:
            os.unlink(self._name, dir_fd=self._folder)
        except OSError:
            # The target took it, or still may: only one that has ended never runs it.
            return not os.path.isdir(f"/proc/{self._target.pid}")
        return True

    def close(self) -> None:
        super().close()
        if self._folder >= 0:
            os.close(self._folder)
        self._folder = -1


def may_look_into_us(target: ProcStatus) -> bool:
    """Return whether the kernel lets the target open a descriptor of ours through `/proc`.

    See "access mode checking" in ptrace(2). True only if user, groups, namespaces, security profile and restrictions
    are the same, and we have no capability that the target lacks.
    """
    try:
        ours = own_status()
        here, there = "/proc/self", f"/proc/{target.pid}"
        alike = (
            {*target.uids, *ours.uids} == {ours.uids[1]}
            and {*target.gids, *ours.gids} == {ours.gids[1]}
            and not ours.permitted & ~target.capabilities
            and target.no_new_privileges == ours.no_new_privileges
            and all(os.readlink(f"{here}/ns/{kind}") == os.readlink(f"{there}/ns/{kind}") for kind in ("pid", "user"))
            and _profile(here) == _profile(there)
            and ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1
        )
        # In the target's root, /proc may be that of another PID namespace, or missing.
        return alike and os.path.samestat(os.stat(f"{there}/root/proc/{os.getpid()}/ns/pid"), os.stat(f"{here}/ns/pid"))
    except OSError:
        return False


def _profile(process: str) -> bytes:
    """Return the process's profile in the security module (such as AppArmor), empty without such a module."""
    try:
        with open(f"{process}/attr/current", "rb") as file:
            return file.read()
    except OSError:
        return b""


def carriers(target: ProcStatus, state_at: int, problems: list[str], *, file: bool) -> Iterator[Carrier]:
    """Yield new carriers to try, best first. With `file` only files are tried. Errors are added to `problems`."""
    folders = _folders(target.pid)
    if not file and may_look_into_us(target):
        with contextlib.suppress(OSError):
            os.close(_cleaned_folder(target, folders[0]))
        try:
            yield MemoryCarrier(state_at)
        except OSError as error:
            problems.append(f"memory: {error.strerror}")
    for path in folders:
        try:
            yield FileCarrier(target, _cleaned_folder(target, path), path)
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")


def first_folder(target: ProcStatus) -> str:
    """Return the folder in which a request would make its file, as the target names it, or raise AttachRefused."""
    problems: list[str] = []
    if target.uids[1] != os.geteuid() and not own_status().capabilities & CAP_CHOWN:
        reason = f"a file for the user of process {target.pid} cannot be made: root lacks CAP_CHOWN"
        raise AttachRefused("denied", reason, "run aitop as that user, or in a container with: --cap-add CHOWN")
    for path in _folders(target.pid):
        try:
            folder = open_folder_as(target.pid, path, target.user)
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
            continue
        try:
            read_only = os.fstatvfs(folder).f_flag & os.ST_RDONLY
        finally:
            os.close(folder)
        if not read_only:
            return path
        problems.append(f"{path}: {os.strerror(errno.EROFS)}")
    raise no_carrier(target.pid, problems)


def no_carrier(pid: int, problems: list[str]) -> AttachRefused:
    """Return the refusal if no carrier can be made for the process."""
    reason = f"no folder of process {pid} takes a file ({'; '.join(problems)})"
    return AttachRefused("failed", reason, "give the run a TMPDIR that it may write to, or: aitop run -- CMD")


def _prefix(pid: int) -> str:
    return f".aitop-{pid}-"


def _cleaned_folder(target: ProcStatus, path: str) -> int:
    """Return a descriptor of the folder that the target knows as `path`, and remove files of killed monitors from it.

    Nobody else is attaching to this target now, so files for it are removed at once. Files for other targets are
    removed once they are old. What a monitor that lives holds open stays. Raises OSError.
    """
    folder, now = open_folder_as(target.pid, path, target.user), time.time()
    with contextlib.suppress(OSError):  # not readable, or read and unlinked by the target just now
        for name in os.listdir(folder):
            if not REQUEST.fullmatch(name):
                continue
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            ours = name.startswith(_prefix(target.pid)) or now - status.st_mtime > ABANDONED_SECONDS
            owned = stat.S_ISREG(status.st_mode) and status.st_uid in (target.uids[1], os.geteuid())
            if ours and owned and not _in_use(name, folder):
                os.unlink(name, dir_fd=folder)
    return folder


def _in_use(name: str, folder: int) -> bool:
    """Return whether a living monitor holds the lock of this file, however long it has been waiting for its target."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _folders(pid: int) -> list[str]:
    """Return folders where the target may be able to read and unlink a file, best first, as the target names them."""
    first, *others = FOLDERS
    own = (procfs.environ(pid) or {}).get("TMPDIR", "")
    folders = [first, own, *others, procfs.link(f"{procfs.PROC}/{pid}/cwd") or ""]
    return [folder for folder in folders if folder.startswith("/") and not folder.endswith(" (deleted)")]
