"""py-spy as a child process, its memory and its output bounded: one that samples a process, or looks at it once."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

from aitop.sources import procfs
from aitop.sources.access import readable, why_denied
from aitop.sources.source import SourceError
from aitop.sources.stacks.speedscope import MOST_BYTES

TERM_SECONDS = 0.5
POLL_SECONDS = 0.005
MOST_COMPLAINT = 4000
# Which threads it takes stacks of: "all"; "cpu", those that the kernel reports on a core or waiting for one, less some
# whose innermost frame is a wait of the standard library; "gil", the one that holds the interpreter's lock.
Threads = Literal["all", "cpu", "gil"]
_OPTIONS: dict[Threads, tuple[str, ...]] = {"all": ("--idle",), "cpu": (), "gil": ("--gil",)}
# It needs some 30 MB. A hostile process may have mapped libraries of terabytes for it to read.
MOST_MEMORY = 2 << 30
# To name native frames it maps every library of the process, and a torch for CUDA has some 5 GB of them. What it writes
# of its own memory stays within the bound above.
MOST_MAPPED = 32 << 30
# So that the terminal's Ctrl-C reaches only us. A session of its own would do as well, but the kernel may give all
# sessions the same part of the cores (sched_autogroup): each child could take as much as the whole run.
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


def find_py_spy() -> str:
    """Path of the py-spy binary: beside this interpreter, else on the PATH. Raises SourceError without one."""
    beside = os.path.join(os.path.dirname(sys.executable or ""), "py-spy")
    path = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if path is None:
        raise SourceError("absent", "py-spy is not installed", "pip install py-spy")
    return path


class PySpy:
    """A py-spy child, started now. Call `stop` once, whether or not it has ended. No file on disk.

    `arguments` follow its name; with `named` it gets the file for its output as an option, else it writes to stdout.
    `native`: it may map the libraries of the process.
    """

    def __init__(self, program: str, arguments: Sequence[str], *, named: bool = False, native: bool = False) -> None:
        self.cpu = 0.0
        self.code: int | None = None
        # What it wrote, the first line of its complaint (empty when it had none), and whether it had not ended; after
        # `stop`.
        self.output, self.complaint, self.late = b"", "", False
        self._output = os.memfd_create("aitop-stacks", os.MFD_CLOEXEC)
        try:
            self._errors = os.memfd_create("aitop-stacks-errors", os.MFD_CLOEXEC)
        except OSError:
            os.close(self._output)
            raise
        output = ("--output", f"/proc/self/fd/{self._output}") if named else ()
        try:
            self._child = subprocess.Popen(
                [program, *arguments, *output],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if named else self._output,
                stderr=self._errors,
                pass_fds=(self._output,) if named else (),
                **_OWN_GROUP,
                env=quiet_environment(),
            )
        except OSError as error:
            self._close_files()
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise SourceError("failed", f"py-spy does not start: {error.strerror}", "pip install py-spy") from error
        # In time, as py-spy reads nothing in its first milliseconds. Its files are in memory: bounded as well.
        _bound(self._child.pid, resource.RLIMIT_AS, MOST_MAPPED if native else MOST_MEMORY)
        _bound(self._child.pid, resource.RLIMIT_DATA, MOST_MEMORY)
        _bound(self._child.pid, resource.RLIMIT_FSIZE, MOST_BYTES + 1)

    def finished(self) -> bool:
        """Whether py-spy has ended. If so, its exit code and CPU time are collected."""
        return self.code is not None or self._collect(os.WNOHANG)

    def wait(self, seconds: float) -> bool:
        """Wait for py-spy to end. Returns whether it has."""
        deadline = time.monotonic() + seconds
        while not self.finished() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return self.finished()

    def stop(self) -> None:
        """End py-spy now if it still runs (SIGTERM, then SIGKILL), collect it, and read what it wrote. Call it once."""
        self.late = not self.finished()
        for number, patience in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, 2 * TERM_SECONDS)):
            if self.finished():
                break
            os.kill(self._child.pid, number)
            self.wait(patience)
        with contextlib.suppress(OSError):
            size = min(os.fstat(self._output).st_size, MOST_BYTES + 1)
            self.complaint = first_line(os.pread(self._errors, MOST_COMPLAINT, 0).decode("utf-8", "replace"))
            self.output = os.pread(self._output, size, 0)
        self._close_files()

    def _collect(self, options: int) -> bool:
        try:
            pid, status, usage = os.wait4(self._child.pid, options)
        except ChildProcessError:  # somebody else in this process waited for all children
            pid, status, usage = self._child.pid, 0, None
        if pid == 0:
            return False
        self.code = self._child.returncode = os.waitstatus_to_exitcode(status)
        if usage is not None:
            self.cpu = usage.ru_utime + usage.ru_stime
        return True

    def _close_files(self) -> None:
        os.close(self._output)
        os.close(self._errors)


class Spy(PySpy):
    """`py-spy record` on `pid`, started now. It ends by itself; `finish` and `stop` end it early.

    It looks `asked` times at the `threads` wanted.
    """

    def __init__(self, program: str, pid: int, seconds: int, rate: int, threads: Threads = "all") -> None:
        self.pid = pid
        self.threads: Threads = threads
        # py-spy ends at the last look that it planned, which does not count.
        self.asked = seconds * rate - 1
        arguments = ["record", "--pid", str(pid), "--nonblocking", "--format", "speedscope", *_OPTIONS[threads]]
        super().__init__(program, [*arguments, "--duration", str(seconds), "--rate", str(rate)], named=True)

    def finish(self) -> None:
        """Ask py-spy to write its samples and end, by SIGINT: it does so within some milliseconds."""
        if not self.finished():
            os.kill(self._child.pid, signal.SIGINT)


def _bound(pid: int, resource_number: int, most: int) -> None:
    """Bound what a child may take, unless it is bounded more tightly already."""
    # It may have ended already, or may not be bounded here.
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.prlimit(pid, resource_number)
        limits = tuple(most if now == resource.RLIM_INFINITY else min(now, most) for now in (soft, hard))
        resource.prlimit(pid, resource_number, (limits[0], limits[1]))


def quiet_environment() -> dict[str, str]:
    """Our environment without what would make py-spy tell more than its complaint."""
    return {name: value for name, value in os.environ.items() if name not in ("RUST_LOG", "RUST_BACKTRACE")}


def first_line(complaint: str) -> str:
    """The first line of what py-spy complained of, empty where it had nothing to say."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    return lines[0].removeprefix("Error: ") if lines else ""


def no_answer(seconds: float) -> SourceError:
    """The error for a py-spy that had not ended after so many seconds."""
    return SourceError("failed", f"py-spy had no answer in {seconds:.0f} s")


def explain(pid: int, complaint: str) -> SourceError:
    """The error for a process that is there but gave no stacks. `complaint` is py-spy's own first line.

    The reason comes from the kernel's files rather than from py-spy's advice.
    """
    if "unsupported version" in complaint.lower():
        return SourceError("failed", f"py-spy does not know this Python: {complaint}", "pip install --upgrade py-spy")
    if "permission" in complaint.lower() or "not permitted" in complaint.lower() or not readable(pid):
        return why_denied(pid)
    state = procfs.status(pid).get("State", "")
    if state.startswith(("T", "t")):
        return SourceError("failed", f"process {pid} is stopped, and py-spy read nothing from it", f"kill -CONT {pid}")
    return SourceError("failed", f"py-spy read no stack of process {pid}: {complaint or 'it gave no reason'}")
