"""A program in a terminal of its own: what it writes, and the CPU time and memory of it and all its children."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import threading
import time
from collections.abc import Mapping, Sequence

import psutil

TICK = 1 / os.sysconf("SC_CLK_TCK")
SIZE = (36, 120)


class InTerminal:
    """Starts `command` on a new terminal of 120 × 36 cells and takes whatever it writes. Use as a context.

    `written` counts the bytes so far; `first` has, for each pattern of `watch_for`, the seconds from the start until it
    had been written.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, watch_for: Sequence[bytes] = ()
    ) -> None:
        self.written = 0
        self.first: dict[bytes, float] = {}
        self._wanted = list(watch_for)
        self.output = bytearray()
        self._started = time.monotonic()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
            os.execvpe(
                command[0], list(command), {**(env or os.environ), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> InTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        for number, patience in ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 3.0)):
            deadline = time.monotonic() + patience
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            while time.monotonic() < deadline:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    self._reader.join(2.0)
                    os.close(self._terminal)
                    return
                time.sleep(0.02)

    def press(self, keys: bytes) -> None:
        """Type into the terminal."""
        os.write(self._terminal, keys)

    def cpu(self) -> float:
        """CPU seconds of the program, of its living descendants, and of those that have ended and were waited for."""
        return sum(_cpu_of(pid) for pid in self.tree())

    def memory(self) -> tuple[int, int]:
        """Bytes: resident set of the program itself, and what it and all its descendants hold (shared pages split)."""
        own, together = psutil.Process(self.pid).memory_info().rss, 0
        for pid in self.tree():
            with contextlib.suppress(psutil.Error, OSError):
                together += psutil.Process(pid).memory_full_info().pss
        return own, together

    def tree(self) -> list[int]:
        """The program and its living descendants."""
        try:
            return [self.pid, *(child.pid for child in psutil.Process(self.pid).children(recursive=True))]
        except psutil.Error:
            return []

    def _read(self) -> None:
        while True:
            select.select([self._terminal], [], [])
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                return
            if not data:
                return
            self.written += len(data)
            self._notice(data)

    def _notice(self, data: bytes) -> None:
        if not self._wanted:
            return
        now = time.monotonic() - self._started
        self.output += data
        for pattern in [one for one in self._wanted if re.search(one, self.output)]:
            self.first[pattern] = now
            self._wanted.remove(pattern)


def _cpu_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) * TICK
