"""One request to a target: the line to inject, the file it reads, and the answer that comes back in it.

The file is unlinked by the target as its first act and by us at the latest when the request ends. We keep
our own descriptor of it: the answer is appended to the nameless file and read from there.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from types import TracebackType

from aitop.attach.proc_status import ProcStatus
from aitop.attach.python_image import MARK
from aitop.attach.refusal import AttachRefused

LONGEST_ANSWER = 4096
ABANDONED_SECONDS = 60.0
# The file is made with O_EXCL, for the target's user alone, under a name nobody can guess.
FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108

# Runs in a namespace of its own. `d` is the file; only the very inode that we made is read, and only by
# the process it is meant for (a child forked in between has the request too). `k` is what the outer line
# has to run through at the end: nothing, or the user's interrupt.
_INNER = """\
import posix as o,marshal as m
k=()
try:
 if o.getpid()=={pid}:
  d=o.open({path!r},o.O_RDWR|o.O_CLOEXEC|o.O_NOFOLLOW)
  try:
   if o.fstat(d).st_ino=={inode}:
    o.unlink({path!r});b=m.loads(o.read(d,{size}));g=b[1];a='error: interrupted'
    try:exec(b[0],g);a=g['run'](g['action'],g['modules'],g['magic'],m.loads)
    finally:o.pwrite(d,a.encode()+b'\\n',{size})
  finally:o.close(d)
except KeyboardInterrupt:
 import _thread
 k=iter(_thread.interrupt_main,None)
"""
# No exception may leave the line: it would end the target. An interrupt that falls into our few
# milliseconds is the user's: it is raised again as the very last thing, by stepping through `k`, after
# which CPython looks for signals no more before it is back in the user's own code.
_OUTER = """\
try:
 for _ in (lambda n:(exec({inner!r},n),n['k']))({{}})[1]:pass
except BaseException:pass
"""


class Request:
    """Context manager: the file exists from begin to end, or until the target has read it."""

    def __init__(self, target: ProcStatus, payload: bytes) -> None:
        self._target = target
        self._payload = payload
        self._fd = -1
        self._path = ""
        self.line = b""

    def __enter__(self) -> Request:
        _sweep(self._target)
        name = f"{_prefix(self._target.pid)}{secrets.token_hex(6)}"
        problems: list[str] = []
        for folder in _folders(self._target.pid):
            try:
                self._create(folder, name)
            except OSError as error:
                self._discard()
                problems.append(f"{folder}: {error.strerror}")
                continue
            return self
        raise AttachRefused("failed", f"no folder of process {self._target.pid} takes a file ({'; '.join(problems)})")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._discard()

    def answer(self) -> str | None:
        """The target's answer, None as long as there is none."""
        data = os.pread(self._fd, LONGEST_ANSWER, len(self._payload))
        return data[:-1].decode("utf-8", "replace") if data.endswith(b"\n") else None

    def cancel(self) -> bool:
        """Takes the file away. True: the target will never run it. False: it had already begun."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return os.path.isdir(f"/proc/{self._target.pid}") is False
        except OSError:
            return True
        return True

    def _create(self, folder: str, name: str) -> None:
        """Makes the file where the target sees it as `folder/name`, readable by the target's user alone."""
        inside = f"{folder.rstrip('/')}/{name}"
        self._path = f"/proc/{self._target.pid}/root{inside}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, stat.S_IRUSR | stat.S_IWUSR)
        user, group = self._target.uids[1], self._target.gids[1]
        if (user, group) != (os.geteuid(), os.getegid()):
            os.fchown(self._fd, user, group)
        if os.write(self._fd, self._payload) != len(self._payload):
            raise OSError(28, "no space left")
        inner = _INNER.format(
            pid=self._target.inner_pid, path=inside, inode=os.fstat(self._fd).st_ino, size=len(self._payload)
        )
        self.line = MARK + _OUTER.format(inner=inner).encode() + b"\0"

    def _discard(self) -> None:
        if self._fd >= 0:
            self.cancel()
            os.close(self._fd)
            self._fd = -1


def _prefix(pid: int) -> str:
    return f".aitop-{pid}-"


def _sweep(target: ProcStatus) -> None:
    """Takes away what an aitop that was killed in flight left, for this target or for one that is gone.

    Ours is the only turn with this target now; files for others are left alone until no request could still be
    under way.
    """
    now = time.time()
    for folder in _folders(target.pid):
        place = f"/proc/{target.pid}/root{folder}"
        try:
            with os.scandir(place) as entries:
                found = [entry for entry in entries if entry.name.startswith(".aitop-")]
            for entry in found:
                status = os.lstat(entry.path)
                ours = entry.name.startswith(_prefix(target.pid)) or now - status.st_mtime > ABANDONED_SECONDS
                if ours and stat.S_ISREG(status.st_mode) and status.st_uid in (target.uids[1], os.geteuid()):
                    os.unlink(entry.path)
        except OSError:  # not there, not readable, or read and unlinked by the target just now
            continue


def _folders(pid: int) -> list[str]:
    """Where the target can read and unlink a file, best first, as the target names them."""
    folders = list(FOLDERS)
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"TMPDIR=/"):
                    folders.insert(1, os.fsdecode(entry[7:]))
        folders.append(os.readlink(f"/proc/{pid}/cwd"))
    except OSError:
        pass
    return [folder for folder in folders if folder.startswith("/") and not folder.endswith(" (deleted)")]
