"""What a request lies in while it waits for its target, and how one of the two, and only one, takes it away.

Where the target may look into our own process it is memory of ours without a name: a monitor that is killed leaves
nothing, and takes what had not begun with it. Elsewhere (another user or namespace, other rights) it is a file, which
the target unlinks as its first act.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from typing import Protocol

from aitop.attach.folder import open_folder
from aitop.attach.preflight import LARGEST
from aitop.attach.proc_status import ProcStatus, own_status
from aitop.attach.refusal import AttachRefused

ABANDONED_SECONDS = 60.0
# The file is made with O_EXCL, for the target's user alone, under a name nobody can guess.
FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108
MEMFD_NAME = "aitop-request"
# What a file of ours is called: nobody else's is to be swept up.
REQUEST = re.compile(r"\.aitop-[0-9]+-[0-9a-f]{12}")
PR_GET_DUMPABLE = 3
# The byte that says whose the request is: nobody's yet, the target's, or ours again. Changed under a lock that nobody
# waits for.
FREE, BEGUN, TAKEN_BACK = b"-", b"b", b"x"


class Carrier(Protocol):
    """`fd` is ours, `path` what the target opens, with `flags`; `claim` is what it runs to take the request."""

    fd: int
    path: str
    flags: int
    claim: str

    def is_there(self) -> bool:
        """Whether the target has not begun with it."""
        ...

    def take_away(self) -> bool:
        """True: the target will never run it. False: it had already begun."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class Nameless:
    """Memory of ours, which the target opens through `/proc`. The byte at `state_at` is to be FREE before it is told.

    Raises OSError where the system has no such memory.
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

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class Named:
    """A file in `folder`, its own descriptor from now on, which the target knows as `path`. Raises OSError."""

    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    claim = "o.unlink(p)"

    def __init__(self, target: ProcStatus, folder: int, path: str) -> None:
        self._target, self._folder, self.fd = target, folder, -1
        self._name = f"{_prefix(target.pid)}{secrets.token_hex(6)}"
        self.path = f"{path.rstrip('/')}/{self._name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.fd = os.open(self._name, flags, stat.S_IRUSR | stat.S_IWUSR, dir_fd=folder)
            # Its group may be one that we are not in; only its user may open the file anyway.
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
        except FileNotFoundError:
            return os.path.isdir(f"/proc/{self._target.pid}") is False
        except OSError:
            return True
        return True

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        if self._folder >= 0:
            os.close(self._folder)
        self.fd = self._folder = -1


def may_look_into_us(target: ProcStatus) -> bool:
    """Whether the kernel lets the target open a descriptor of ours through `/proc` (ptrace(2), access mode checking).

    Same user and namespaces, no right of ours that it lacks, the same profile and restrictions; else, and where it
    cannot be told, False.
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
        # Its /proc may be another one, or none.
        return alike and os.path.samestat(os.stat(f"{there}/root/proc/{os.getpid()}/ns/pid"), os.stat(f"{here}/ns/pid"))
    except OSError:
        return False


def _profile(process: str) -> bytes:
    """What a security module calls the process's profile, empty where there is no such module."""
    try:
        with open(f"{process}/attr/current", "rb") as file:
            return file.read()
    except OSError:
        return b""


def carriers(target: ProcStatus, state_at: int, problems: list[str], *, file: bool) -> Iterator[Carrier]:
    """New ones to try, best first; only files where `file` says so. What stood in the way is added to `problems`."""
    folders = _folders(target.pid)
    if not file and may_look_into_us(target):
        with contextlib.suppress(OSError):
            os.close(_swept(target, folders[0]))
        try:
            yield Nameless(state_at)
        except OSError as error:
            problems.append(f"memory: {error.strerror}")
    for path in folders:
        try:
            yield Named(target, _swept(target, path), path)
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")


def first_folder(target: ProcStatus) -> str:
    """The folder in which a request would make its file, as the target names it; AttachRefused where none takes one."""
    problems: list[str] = []
    if target.uids[1] != os.geteuid() and not own_status().may_give_files:
        reason = f"a file for the user of process {target.pid} cannot be made: root lacks CAP_CHOWN"
        raise AttachRefused("denied", reason, "run aitop as that user, or in a container with: --cap-add CHOWN")
    for path in _folders(target.pid):
        try:
            folder = open_folder(target, path)
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
    raise no_folder(target.pid, problems)


def no_folder(pid: int, problems: list[str]) -> AttachRefused:
    """What there is to say where nothing carries a request to that process."""
    reason = f"no folder of process {pid} takes a file ({'; '.join(problems)})"
    return AttachRefused("failed", reason, "give the run a TMPDIR that it may write to, or: aitop run -- CMD")


def _prefix(pid: int) -> str:
    return f".aitop-{pid}-"


def _swept(target: ProcStatus, path: str) -> int:
    """A descriptor of the folder that the target knows as `path`; raises OSError.

    What an aitop that was killed in flight left there, for this target or for one that is gone, is taken away. Ours is
    the only turn with this target now; files for others are left alone until no request could still be under way.
    """
    folder, now = open_folder(target, path), time.time()
    with contextlib.suppress(OSError):  # not readable, or read and unlinked by the target just now
        for name in os.listdir(folder):
            if not REQUEST.fullmatch(name):
                continue
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            ours = name.startswith(_prefix(target.pid)) or now - status.st_mtime > ABANDONED_SECONDS
            if ours and stat.S_ISREG(status.st_mode) and status.st_uid in (target.uids[1], os.geteuid()):
                os.unlink(name, dir_fd=folder)
    return folder


def _folders(pid: int) -> list[str]:
    """Where the target can read and unlink a file, best first, as the target names them."""
    folders = list(FOLDERS)
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read(LARGEST).split(b"\0"):
                if entry.startswith(b"TMPDIR=/"):
                    folders.insert(1, os.fsdecode(entry[7:]))
        folders.append(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        pass
    return [folder for folder in folders if folder.startswith("/") and not folder.endswith(" (deleted)")]
