"""The ways in, best first. Each is a small object of one shape; the session goes down the list.

A way queues the injected line with CPython's own machinery (`Py_AddPendingCall`), which runs it in the
main thread between two bytecodes, or sees to it that a queued line gets its turn. None of them runs
Python in a thread that was interrupted anywhere.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from aitop.attach.memory import Memory
from aitop.attach.proc_status import ProcStatus, same_process
from aitop.attach.ptrace import StoppedThread, ThreadState, in_own_thread
from aitop.attach.python_image import PythonImage
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.signal_frame import CODE_SEGMENT_64, Call, build
from aitop.attach.xsave_layout import xsave_layout

RSEQ_CRITICAL_SECTION_AT = 8
READER_S = 0.02


@dataclass(frozen=True)
class Target:
    """A process that passed the preflight, with its memory open and its Python found."""

    status: ProcStatus
    memory: Memory
    python: PythonImage

    @property
    def pid(self) -> int:
        return self.status.pid


class WayIn(Protocol):
    """One way in. `patience` is how long to wait for the answer before the next way is tried as well, in seconds.

    `obstacle` says why the way is closed for this target, None where it is open. `enter` brings the line in
    and returns the number of microseconds for which a thread of the target stood still; it raises NotNow
    where another moment may suit, with the target as it was, and AttachRefused where none will.
    """

    name: str
    patience: float

    def obstacle(self, target: Target) -> str | None: ...

    def enter(self, target: Target, line: bytes) -> float: ...


class SignalFrame:
    """Stops the main thread for a moment and has it queue the line through a synthetic signal frame."""

    name = "signal-frame"
    patience = 0.3

    def obstacle(self, target: Target) -> str | None:
        if target.status.shadow_stack:
            return "its shadow stack (CET) is on"
        return None

    def enter(self, target: Target, line: bytes) -> float:
        python = target.python
        if len(line) > python.scratch.size:
            raise AttachRefused("absent", f"process {target.pid} has no room for the hook's first line")
        add, run = python.address("Py_AddPendingCall"), python.address("PyRun_SimpleString")
        before = (python.scratch.address, line)
        return in_own_thread(lambda: call_in_thread(target, [Call(add, (run, python.scratch.address))], before))


def call_in_thread(target: Target, calls: Sequence[Call], *writes: tuple[int, bytes]) -> float:
    """Has the main thread make the calls and go on. Returns for how many microseconds it stood still."""
    layout = xsave_layout()
    with StoppedThread(target.pid, lambda: same_process(target.status)) as thread:
        state = thread.state()
        check_interruptible(target, thread, state)
        frame = build(state, calls, target.python.restorer, layout)
        try:
            for address, data in (*writes, *frame.writes):
                target.memory.write(address, data)
        except OSError as error:
            if error.errno in (errno.EIO, errno.EFAULT):
                raise NotNow("the main thread's stack is at its end") from error
            raise
        thread.set_registers(frame.registers)
    return thread.pause_us


def check_interruptible(target: Target, thread: StoppedThread, state: ThreadState) -> None:
    """Raises NotNow in the few places where the kernel would not simply deliver a signal."""
    if state.registers["cs"] & 0xFFFF != CODE_SEGMENT_64:
        raise NotNow("the main thread runs 32-bit code")
    if (area := thread.rseq_area()) is None:
        return
    section = target.memory.read_word(area + RSEQ_CRITICAL_SECTION_AT)
    if section:
        _, _, start, length, _ = struct.unpack("<IIQQQ", target.memory.read(section, 32))
        if start <= state.registers["rip"] < start + length:
            raise NotNow("the main thread is in a restartable sequence")


def wipe(target: Target, *, in_use: bool) -> None:
    """Takes the line away: a call that is still queued then runs an empty text, which does nothing.

    Its first byte goes first, so that whoever reads it sees all of it or nothing; where it may be `in_use`,
    the rest goes when a reader has surely finished.
    """
    scratch = target.python.scratch
    try:
        target.memory.write(scratch.address, b"\0")
        if in_use:
            time.sleep(READER_S)
        target.memory.write(scratch.address, bytes(scratch.size))
    except OSError:  # the process is gone, and the line with it
        pass


WAYS: tuple[WayIn, ...] = (SignalFrame(),)
