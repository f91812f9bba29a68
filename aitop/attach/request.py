"""One request to a target: the text to inject, the file that holds it, and the answer that comes back in it.

The file is unlinked by the target as its first act and by us at the latest when the request ends. We keep
our own descriptor of it: the answer is appended to the nameless file and read from there.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from types import TracebackType

from aitop.attach.folder import open_folder
from aitop.attach.proc_status import ProcStatus, own_status
from aitop.attach.python_image import LONGEST_LINE, MARK
from aitop.attach.refusal import AttachRefused

LONGEST_ANSWER = 4096
ABANDONED_SECONDS = 60.0
# The file is made with O_EXCL, for the target's user alone, under a name nobody can guess.
FOLDERS = ("/tmp", "/dev/shm", "/var/tmp")  # noqa: S108

# Runs in a namespace of its own. `d` is the file; only the very inode that we made is read, and only by
# the process it is meant for (a child forked in between has the request too). `k` is what the outer line
# has to run through at the end: nothing, or the user's interrupt. An interrupt that leaves the `exec` of a text,
# and not of its code, makes CPython end as if it had not been caught.
_INNER = """\
import posix as o
k=()
try:
 if o.getpid()=={pid}:
  p={path!r};d=o.open(p,o.O_RDWR|o.O_CLOEXEC|o.O_NOFOLLOW)
  try:
   if o.fstat(d).st_ino=={inode}:exec(compile(o.pread(d,{size},{at}),'','exec'))
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
# The line must be short; this waits for it in the file and goes on where it ended.
_SECOND = """\
import marshal as m,sys
o.unlink(p);b=m.loads(o.pread(d,{size},{at}));g=b[3];a='error: interrupted'
try:
 exec(m.loads(b[1])if b[0]==sys.modules['_frozen_importlib_external'].MAGIC_NUMBER else compile(b[2],'','exec'),g)
 a=g['run'](g,m.loads)
finally:o.pwrite(d,a.encode()+b'\\n',{end})
"""
SECOND_ROOM = 512


class Request:
    """The file exists from `open` to `close`, or until the target has read it. Closes as a context manager.

    `line` is the text to inject, closed by a zero. `path` is the file as the target names it: whatever runs
    it as a script, up to its first zero, runs the same line.
    """

    def __init__(self, target: ProcStatus, payload: bytes) -> None:
        self._target = target
        at = LONGEST_LINE + SECOND_ROOM
        self._end = at + len(payload)
        self._second = _SECOND.format(size=len(payload), at=at, end=self._end).encode()
        self._payload = payload
        self._fd = -1
        self._folder = -1
        self._name = f"{_prefix(target.pid)}{secrets.token_hex(6)}"
        self.path = ""
        self.line = b""

    def open(self) -> None:
        """Makes the file in the first folder that takes it; raises AttachRefused where none does."""
        problems: list[str] = []
        for path in _folders(self._target.pid):
            try:
                folder = open_folder(self._target, path)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
                continue
            _sweep(self._target, folder)
            self._folder = folder
            try:
                self._create(f"{path.rstrip('/')}/{self._name}")
            except OSError as error:
                self.close()
                problems.append(f"{path}: {error.strerror}")
                continue
            return
        raise _no_folder(self._target.pid, problems)

    def __enter__(self) -> Request:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def answer(self) -> str | None:
        """The target's answer, None as long as there is none."""
        data = os.pread(self._fd, LONGEST_ANSWER, self._end)
        return data[:-1].decode("utf-8", "replace") if data.endswith(b"\n") else None

    def is_there(self) -> bool:
        """Whether the target has not begun with it."""
        return bool(os.fstat(self._fd).st_nlink)

    def cancel(self) -> bool:
        """Takes the file away. True: the target will never run it. False: it had already begun."""
        try:
            os.unlink(self._name, dir_fd=self._folder)
        except FileNotFoundError:
            return os.path.isdir(f"/proc/{self._target.pid}") is False
        except OSError:
            return True
        return True

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            self.cancel()
            os.close(self._fd)
        if self._folder >= 0:
            os.close(self._folder)
        self._fd = self._folder = -1

    def _create(self, path: str) -> None:
        """Makes the file that the target sees as `path`, readable by the target's user alone."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._name, flags, stat.S_IRUSR | stat.S_IWUSR, dir_fd=self._folder)
        # Its group may be one that we are not in; only its user may open the file anyway.
        if self._target.uids[1] != os.geteuid():
            os.fchown(self._fd, self._target.uids[1], self._target.gids[1])
        inode = os.fstat(self._fd).st_ino
        inner = _INNER.format(
            pid=self._target.inner_pid, path=path, inode=inode, at=LONGEST_LINE, size=len(self._second)
        )
        line = MARK + _OUTER.format(inner=inner).encode() + b"\0"
        if len(line) > LONGEST_LINE:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        content = line.ljust(LONGEST_LINE, b"\0") + self._second.ljust(SECOND_ROOM, b"\0") + self._payload
        if os.write(self._fd, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.path, self.line = path, line


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
    raise _no_folder(target.pid, problems)


def _no_folder(pid: int, problems: list[str]) -> AttachRefused:
    reason = f"no folder of process {pid} takes a file ({'; '.join(problems)})"
    return AttachRefused("failed", reason, "give the run a TMPDIR that it may write to, or: aitop run -- CMD")


def _prefix(pid: int) -> str:
    return f".aitop-{pid}-"


def _sweep(target: ProcStatus, folder: int) -> None:
    """Takes away what an aitop that was killed in flight left there, for this target or for one that is gone.

    Ours is the only turn with this target now; files for others are left alone until no request could still be
    under way.
    """
    now = time.time()
    try:
        for name in os.listdir(folder):
            if not name.startswith(".aitop-"):
                continue
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            ours = name.startswith(_prefix(target.pid)) or now - status.st_mtime > ABANDONED_SECONDS
            if ours and stat.S_ISREG(status.st_mode) and status.st_uid in (target.uids[1], os.geteuid()):
                os.unlink(name, dir_fd=folder)
    except OSError:  # not readable, or read and unlinked by the target just now
        pass


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
