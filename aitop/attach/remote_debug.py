"""The way that CPython itself offers since 3.14 (PEP 768), spoken without the help of our own Python.

The target's main thread is told, by a few bytes written into its memory, to run a script at its next safe
point. Nothing is stopped. Python's own documentation calls this its remote debugging protocol.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.request import Request
from aitop.attach.target import Target, check_running, wait_for_reader

COOKIE = b"xdebugpy"
FIRST = (3, 14)
# Where `debugger_support` lies in struct _Py_DebugOffsets (Include/internal/pycore_debug_offsets.h).
SUPPORT_AT = {(3, 14): 712}
# runtime_state.interpreters_head; interpreter_state.threads_main
INTERPRETERS_AT, MAIN_THREAD_AT = 40, 80
PLEASE_STOP = 1 << 5
SHORTEST_PATH, LARGEST_OFFSET = 64, 1 << 24


@dataclass(frozen=True)
class _Mailbox:
    """Addresses in the target: the main thread's flags, the switch, and the place for a path of `room` bytes."""

    breaker: int
    pending: int
    path: int
    room: int


class RemoteDebug:
    """Has the main thread run the request's file as a script."""

    name = "remote-debug"
    patience = 0.3
    costly = False
    # An interpreter that finds no file behind the path complains on the target's stderr.
    alone = True

    def obstacle(self, target: Target) -> str | None:
        """Raises AttachRefused where the target's owner does not want this."""
        if target.python.version < FIRST:
            return "its Python is older than 3.14"
        if target.python.version not in SUPPORT_AT:
            return "the layout of its Python is not known"
        try:
            return None if _find(target) else "its main thread has not begun"
        except _UnknownLayoutError as error:
            return str(error)

    def enter(self, target: Target, request: Request) -> float:
        try:
            mailbox = _find(target)
        except _UnknownLayoutError as error:
            raise NotNow(str(error)) from error
        if mailbox is None:
            raise NotNow("the main thread has not begun")
        check_running(target)
        path = request.path.encode("utf-8", "surrogateescape") + b"\0"
        if len(path) > mailbox.room:
            raise NotNow("the path of the hook's file is too long")
        memory = target.memory
        memory.write(mailbox.path, path)
        memory.write(mailbox.pending, struct.pack("<i", 1))
        # Only the byte that has the flag: what the target keeps in the others is its own.
        flags = memory.read(mailbox.breaker, 1)[0]
        memory.write(mailbox.breaker, bytes((flags | PLEASE_STOP,)))
        return 0.0

    def withdraw(self, target: Target, *, in_use: bool) -> None:
        """Takes the switch back; a main thread that has just seen it gets the time to open the file."""
        try:
            mailbox = _find(target)
            if mailbox is None:
                return
            target.memory.write(mailbox.pending, struct.pack("<i", 0))
            if in_use:
                wait_for_reader(target)
            target.memory.write(mailbox.path, bytes(mailbox.room))
        except (OSError, _UnknownLayoutError):  # the process is gone, and the switch with it
            pass


class _UnknownLayoutError(Exception):
    """What lies in the target's memory is not what this version of Python has there."""


def _find(target: Target) -> _Mailbox | None:
    """None where there is no main thread yet; raises AttachRefused where it is switched off, _UnknownLayoutError."""
    symbol = target.python.symbols.get("_PyRuntime")
    if symbol is None:
        raise _UnknownLayoutError("its Python does not export its runtime")
    runtime, read = symbol.address, target.memory.read
    major, minor = target.python.version
    cookie, number = struct.unpack("<8sQ", read(runtime, 16))
    if cookie != COOKIE or (number >> 24, number >> 16 & 0xFF) != (major, minor):
        raise _UnknownLayoutError("its Python has no table for debuggers")
    table = read(runtime + SUPPORT_AT[major, minor], 48)
    breaker_at, support_at, enabled_at, pending_at, path_at, room = struct.unpack("<6Q", table)
    interpreters_at = target.memory.read_word(runtime + INTERPRETERS_AT)
    main_thread_at = target.memory.read_word(runtime + MAIN_THREAD_AT)
    offsets = (breaker_at, support_at, enabled_at, pending_at, path_at, interpreters_at, main_thread_at)
    if max(offsets) > LARGEST_OFFSET or not SHORTEST_PATH <= room <= LARGEST_OFFSET:
        raise _UnknownLayoutError("the layout of its Python is not known")
    interpreter = target.memory.read_word(runtime + interpreters_at)
    if not interpreter:
        return None
    if int.from_bytes(read(interpreter + enabled_at, 4), "little") != 1:
        raise AttachRefused(
            "denied",
            f"the owner of process {target.pid} switched remote debugging off, or its Python was built without",
        )
    thread = target.memory.read_word(interpreter + main_thread_at)
    if not thread:
        return None
    support = thread + support_at
    return _Mailbox(thread + breaker_at, support + pending_at, support + path_at, room)
