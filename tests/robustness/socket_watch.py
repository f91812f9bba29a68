"""Which sockets a command and all that it starts make, bind and connect: what they ask the kernel for, before it acts.

The kernel (seccomp, user notifications) stops each such call, tells us, and lets it go on. Static programs, such as
py-spy, cannot get around that. Needs Linux 5.5.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import select
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

# Numbers of the system calls: socket, bind, connect, listen.
CALLS = {
    "x86_64": {41: "socket", 49: "bind", 42: "connect", 50: "listen"},
    "aarch64": {198: "socket", 200: "bind", 203: "connect", 201: "listen"},
}.get(platform.machine(), {})
# struct seccomp_notif and its answer (linux/seccomp.h), and the requests that take them.
NOTE, ANSWER = struct.Struct("=QII iIQ 6Q"), struct.Struct("=QqiI")
RECEIVE, SEND = 0xC0502100, 0xC0182101
GO_ON = 1
LONGEST_ADDRESS = 128
LONGEST_END = 10.0
# In the environment of all that a command starts.
MARK = "AITOP_TEST_SOCKET_WATCH"

# Installs the filter, hands its end to us, and becomes the command.
LAUNCH = """
import ctypes, os, socket, struct, sys
step = lambda code, hit, miss, value: struct.pack("=HBBI", code, hit, miss, value)
numbers = [int(word) for word in sys.argv[2].split(",")]
text = step(0x20, 0, 0, 0)
for left, number in zip(range(len(numbers), 0, -1), numbers):
    text += step(0x15, left, 0, number)
text += step(6, 0, 0, 0x7FFF0000) + step(6, 0, 0, 0x7FC00000)
text = ctypes.create_string_buffer(text)
program = ctypes.create_string_buffer(struct.pack("@HP", len(numbers) + 3, ctypes.addressof(text)))
to_us = socket.socket(socket.AF_UNIX)
to_us.connect(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
install = lambda: libc.syscall({"x86_64": 317, "aarch64": 277}[os.uname().machine], 1, 8, program)
listener = install()
if listener < 0:
    # Only root may without giving up what programs with more rights would give.
    libc.prctl(38, 1, 0, 0, 0)
    listener = install()
if listener < 0:
    sys.exit(77)
socket.send_fds(to_us, [b"!"], [listener])
os.close(listener)
to_us.close()
os.environ[sys.argv[3]] = sys.argv[1]
os.execvp(sys.argv[4], sys.argv[4:])
"""
NOT_POSSIBLE = 77


class SocketWatch:
    """Notes what commands do with sockets. `command` wraps one; `notes` are lines such as "connect @name by py-spy"."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._folder = tempfile.TemporaryDirectory()
        self._meeting = str(Path(self._folder.name) / "meeting")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self._meeting)
        self._server.listen()
        self._threads: list[threading.Thread] = []

    def command(self, words: Sequence[str]) -> list[str]:
        """The command, watched from its first instruction; start it once. It exits with 77 where that is impossible."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        self._threads.append(thread)
        return [sys.executable, "-S", "-c", LAUNCH, self._meeting, ",".join(map(str, CALLS)), MARK, *words]

    def close(self) -> None:
        """Wait for the ends of all that was started, and end what goes on. Raises RuntimeError where that cannot be."""
        # A thread whose command was never started waits for it.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._join()
        if any(thread.is_alive() for thread in self._threads):
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.environ().get(MARK) == self._meeting:
                        process.kill()
            self._join()
        self._server.close()
        self._folder.cleanup()
        if any(thread.is_alive() for thread in self._threads):
            raise RuntimeError("a command has not ended: what it does with sockets is not noted any more")

    def _join(self) -> None:
        deadline = time.monotonic() + LONGEST_END
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self) -> None:
        with contextlib.suppress(OSError), self._listener() as listener:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            while not any(event & select.POLLHUP for _, event in poll.poll()):
                self._take(listener)

    @contextlib.contextmanager
    def _listener(self) -> Iterator[int]:
        connection, _ = self._server.accept()
        with connection:
            _, handles, _, _ = socket.recv_fds(connection, 1, 1)
        yield handles[0]
        os.close(handles[0])

    def _take(self, listener: int) -> None:
        note = bytearray(NOTE.size)
        try:
            fcntl.ioctl(listener, RECEIVE, note)
        except FileNotFoundError:  # it was killed meanwhile
            return
        number, pid, _, call, _, _, *arguments = NOTE.unpack(note)
        self.notes.append(f"{CALLS[call]} {_what(CALLS[call], pid, arguments)} by {_who(pid)}")
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, SEND, ANSWER.pack(number, 0, 0, GO_ON))


def _what(call: str, pid: int, arguments: Sequence[int]) -> str:
    """The family of a new socket; the address that one is bound or connected to."""
    if call == "socket":
        return _family(arguments[0])
    if call == "listen":
        return ""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        address = os.pread(memory.fileno(), min(arguments[2], LONGEST_ADDRESS), arguments[1])
    family, name = struct.unpack_from("=H", address)[0], address[2:]
    if family != socket.AF_UNIX:
        return f"{_family(family)} {name.hex()}"
    return "@" + name[1:].decode(errors="replace") if name[:1] == b"\0" else name.split(b"\0")[0].decode()


def _family(number: int) -> str:
    try:
        return socket.AddressFamily(number).name
    except ValueError:
        return f"family {number}"


def _who(pid: int) -> str:
    try:
        return " ".join(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))[:200]
    except OSError:
        return "a process that is gone"
