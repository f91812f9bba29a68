"""A program on a terminal of its own: its screen, its keys, its CPU time and memory, and whether it ends in order."""

from __future__ import annotations

import codecs
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
from collections.abc import Callable, Mapping, Sequence

import psutil

ROWS, COLUMNS = 36, 120
KEPT = 1 << 18
MOST_UNPARSED = 1 << 22
TICK = 1 / os.sysconf("SC_CLK_TCK")
# Alternate screen, mouse, focus and paste reports have to be off at the end, the cursor and wrapping on.
OFF, ON = ("1049", "1000", "1003", "1006", "1015", "1004", "2004"), ("25", "7")
_CONTROL = re.compile(
    r"\x1b\[([?<>=]?)([0-9;:]*)([$ !\"']?[@-~])|\x1b\].*?(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78]", re.S
)
# Two terminals that are opened at once must not inherit each other's ends: closing one has to hang up.
_one_at_a_time = threading.Lock()


class Screen:
    """The cells that a terminal would show, from what is written to it: as much as a full-screen program needs."""

    def __init__(self) -> None:
        self.modes: dict[str, bool] = {}
        self.left = ""
        self._row = self._column = 0
        self._pending = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.size(ROWS, COLUMNS)

    def size(self, rows: int, columns: int) -> None:
        """A terminal of this size, empty."""
        self._cells = [[" "] * columns for _ in range(rows)]

    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in list(self._cells))

    def feed(self, data: bytes) -> None:
        text = self._pending + self._decoder.decode(data)
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                end = text.find("\x1b", at)
                end = len(text) if end < 0 else end
                self._write(text[at:end])
                at = end
                continue
            match = _CONTROL.match(text, at)
            if match is None:
                # Half a sequence at the end waits for the rest.
                if len(text) - at < 200:
                    break
                at += 1
                continue
            if match[3]:
                self._obey(match[1], match[2], match[3])
            at = match.end()
        self._pending = text[at:]

    def _obey(self, prefix: str, numbers: str, letter: str) -> None:
        values = [int(each) if each.isdigit() else 0 for each in numbers.split(";")]
        if prefix == "?" and letter in "hl":
            switched = "1049" in numbers and self.modes.get("1049", False) != (letter == "h")
            for mode in numbers.split(";"):
                self.modes[mode] = letter == "h"
            if switched:
                self.left = ""
                self.size(len(self._cells), len(self._cells[0]) if self._cells else 0)
        elif not prefix and letter in "Hf":
            self._row, self._column = max(0, values[0] - 1), max(0, (values[1] if len(values) > 1 else 1) - 1)
        elif not prefix and letter == "C":
            self._column += max(1, values[0])
        elif not prefix and letter == "J" and values[0] == 2:
            self.size(len(self._cells), len(self._cells[0]) if self._cells else 0)
        elif not prefix and letter == "K" and self._row < len(self._cells):
            row = self._cells[self._row]
            row[self._column :] = [" "] * (len(row) - self._column)

    def _write(self, text: str) -> None:
        if not self.modes.get("1049"):
            self.left += text
        for letter in text:
            if letter == "\n":
                self._row += 1
            elif letter == "\r":
                self._column = 0
            elif letter >= " ":
                if self._row < len(self._cells) and self._column < len(self._cells[self._row]):
                    self._cells[self._row][self._column] = letter
                self._column += 1


class OnTerminal:
    """Starts `command` on a terminal of 120 × 36 cells and reads it all the time, unless `unread` is set.

    `before` runs in the child; `written` counts bytes. As a context it ends with the block.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.written = 0
        self.raw = bytearray()
        self.unread = False
        self.code: int | None = None
        self._screen = Screen()
        self._parsing = threading.Lock()
        self._unparsed = bytearray()
        with _one_at_a_time:
            self.pid, self._end = pty.fork()
            if self.pid == 0:
                try:
                    # A terminal that closes ends what runs on it, also where this was started by nohup.
                    signal.signal(signal.SIGHUP, signal.SIG_DFL)
                    before()
                    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
                    terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
                    os.execvpe(command[0], list(command), {**(env or os.environ), **terminal})
                finally:
                    os._exit(127)
            os.set_inheritable(self._end, False)
        self._line = termios.tcgetattr(self._end)
        self._open = True
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if self.ended():
                break
            os.kill(self.pid, number)
            self.wait(5.0)
        self.close()

    @property
    def screen(self) -> Screen:
        """What the terminal shows now. Nothing is parsed before somebody asks."""
        with self._parsing:
            data, self._unparsed = self._unparsed, bytearray()
            self._screen.feed(bytes(data))
        return self._screen

    def press(self, keys: bytes) -> None:
        """Type."""
        if self._open:
            # Nobody may be there any more.
            with contextlib.suppress(OSError):
                os.write(self._end, keys)

    def resize(self, rows: int, columns: int) -> None:
        if self._open:
            self.screen.size(rows, columns)
            fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """Close the terminal, as when its window is closed."""
        if self._open:
            self._open = False
            self._reader.join(5.0)
            os.close(self._end)

    def until(self, pattern: str, seconds: float) -> str | None:
        """What of the screen matches, as soon as something does; None where nothing has in the time."""
        deadline = time.monotonic() + seconds
        while True:
            match = re.search(pattern, self.screen.text())
            if match is not None:
                return match[0]
            if time.monotonic() > deadline or self.ended():
                return None
            time.sleep(0.05)

    def must_show(self, pattern: str, seconds: float = 0.0) -> None:
        """End the bench where nothing of the screen matches in the time: what is not there costs nothing."""
        if self.until(pattern, seconds) is None:
            raise SystemExit(f"{pattern!r} does not come, exit code {self.code}:\n{self.screen.text()}")

    def ended(self) -> bool:
        """Whether the program has; collects its exit code, that of a signal below zero."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                time.sleep(0.05)
        return self.code is not None

    def wait(self, seconds: float) -> int | None:
        """Its exit code; None where it goes on for longer."""
        deadline = time.monotonic() + seconds
        while not self.ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.code

    def not_restored(self) -> list[str]:
        """What of the terminal is not as it was before."""
        modes = self.screen.modes
        changed = [f"mode {mode} is on" for mode in OFF if modes.get(mode)]
        changed += [f"mode {mode} is off" for mode in ON if modes.get(mode) is False]
        try:
            return changed + (["line discipline"] if termios.tcgetattr(self._end) != self._line else [])
        except (OSError, termios.error):
            return changed

    def tree(self) -> list[psutil.Process]:
        """The program and its living descendants."""
        return tree_of(self.pid)

    def cpu(self) -> float:
        """CPU seconds of the program, of its living descendants, and of those that have ended and were waited for."""
        return sum(_cpu_of(process.pid) for process in self.tree())

    def memory(self) -> int:
        """Bytes of the resident set of the program itself."""
        return psutil.Process(self.pid).memory_info().rss

    def _read(self) -> None:
        while self._open:
            if self.unread or not select.select([self._end], [], [], 0.1)[0]:
                if self.unread:
                    time.sleep(0.05)
                continue
            try:
                data = os.read(self._end, 1 << 16)
            except OSError:
                return
            if not data:
                return
            self.written += len(data)
            self.raw += data
            with self._parsing:
                self._unparsed += data
            if len(self._unparsed) > MOST_UNPARSED:
                _ = self.screen
            del self.raw[:-KEPT]


def tree_of(pid: int) -> list[psutil.Process]:
    """The process and its living descendants; empty where it is gone."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def _cpu_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(int(value) for value in fields[11:15]) * TICK
