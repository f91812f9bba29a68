"""The way in for Python 3.14 and later: our own implementation of CPython's remote debugging protocol (PEP 768).

A few bytes written into the target's memory make its main thread run a script at its next safe point. Nothing is
stopped.
"""

from __future__ import annotations

import struct

import msgspec

from aitop.attach.payload.carriers import REQUEST
from aitop.attach.payload.request import Request
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.ways import Obstacle, TargetProcess, WayIn, check_running, wait_for_reader

COOKIE = b"xdebugpy"
FIRST = (3, 14)
# Offset of `debugger_support` in struct _Py_DebugOffsets (Include/internal/pycore_debug_offsets.h).
SUPPORT_AT = {(3, 14): 712}
# Offsets in the same struct of runtime_state.interpreters_head and interpreter_state.threads_main.
INTERPRETERS_AT, MAIN_THREAD_AT = 40, 80
# Bits of the eval breaker. GIL_DROP_REQUEST is repeated every 5 ms by whoever asks for the GIL.
GIL_DROP_REQUEST, PLEASE_STOP = 1 << 0, 1 << 5
# Signals, calls and asynchronous exceptions that are to be looked for.
TO_LOOK_FOR = 1 << 1 | 1 << 2 | 1 << 3
SHORTEST_PATH, LARGEST_OFFSET = 64, 1 << 24


class _Mailbox(msgspec.Struct, frozen=True):
    """Addresses in the target: the main thread's eval breaker, the "script pending" flag, and the script's path.

    `room` is the number of bytes for the path.
    """

    breaker: int
    pending: int
    path: int
    room: int


class RemoteDebug(WayIn):
    """Has the main thread run the request's file as a script."""

    name = "remote-debug"
    patience = 0.3
    # If another way were to take the request first, the interpreter would find no file at the path and complain on the
    # target's stderr.
    exclusive = True

    def obstacle(self, target: TargetProcess) -> Obstacle | None:
        """Return what closes this way, or None. Raises AttachRefused if the target's owner switched it off."""
        if target.python.version < FIRST:
            return Obstacle("its Python is older than 3.14")
        if target.python.version not in SUPPORT_AT:
            return Obstacle("the layout of its Python is not known")
        try:
            return None if _find(target) else Obstacle("its main thread has not begun")
        except _UnknownLayoutError as error:
            return Obstacle(str(error))

    def enter(self, target: TargetProcess, request: Request) -> None:
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
        waits = int.from_bytes(memory.read(mailbox.pending, 4), "little") != 0
        if waits and not self._is_ours(memory.read(mailbox.path, mailbox.room)):
            raise NotNow("another debugger has left it a script that it has not begun yet")
        memory.write(mailbox.path, path)
        memory.write(mailbox.pending, struct.pack("<i", 1))
        # Write only the byte that has the flag, because the target may be changing the others. It may change bits of
        # this one, too, between our reading and our writing. TO_LOOK_FOR is set: at worst the target looks for signals
        # or calls and finds none. GIL_DROP_REQUEST is cleared: were it set again after the thread that asked has got
        # its answer, the target could wait for ever for another one to take the GIL.
        flags = memory.read(mailbox.breaker, 1)[0]
        memory.write(mailbox.breaker, bytes((flags & ~GIL_DROP_REQUEST | PLEASE_STOP | TO_LOOK_FOR,)))

    @staticmethod
    def _is_ours(path: bytes) -> bool:
        """Return whether a monitor of ours, this one or one that was killed, has left this path."""
        name = path.split(b"\0", 1)[0].rpartition(b"/")[2].decode("utf-8", "replace")
        return REQUEST.fullmatch(name) is not None

    def withdraw(self, target: TargetProcess, *, in_use: bool) -> None:
        """Clear the flag. A main thread that has just seen it gets time to open the file before the path is erased."""
        try:
            mailbox = _find(target)
            if mailbox is None or not self._is_ours(target.memory.read(mailbox.path, mailbox.room)):
                return
            target.memory.write(mailbox.pending, struct.pack("<i", 0))
            if in_use:
                wait_for_reader(target)
            if self._is_ours(target.memory.read(mailbox.path, mailbox.room)):
                target.memory.write(mailbox.path, bytes(mailbox.room))
        except (OSError, _UnknownLayoutError):  # the process is gone, and the flag with it
            pass


class _UnknownLayoutError(Exception):
    """The target's memory does not have the layout that this version of Python should have."""


def _find(target: TargetProcess) -> _Mailbox | None:
    """Return the mailbox, None if there is no main thread yet. Raises AttachRefused if the owner switched it off."""
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
