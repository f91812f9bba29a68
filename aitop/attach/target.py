"""A process that passed the preflight, and what is done to its main thread while that one stands still."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aitop.attach.from_outside import cannot_be_woken, let_it_finish, on_x86_64
from aitop.attach.memory import Memory
from aitop.attach.proc_status import ProcStatus, same_process
from aitop.attach.ptrace import StoppedThread, ThreadState
from aitop.attach.python_image import NEEDED, PythonImage, Scratch
from aitop.attach.refusal import NotNow
from aitop.attach.signal_frame import CODE_SEGMENT_64, Call, KeptErrno, build
from aitop.attach.xsave_layout import xsave_layout

RSEQ_CRITICAL_SECTION_AT = 8
# Copying the line takes a reader microseconds; on a crowded machine it may be kept waiting in their midst.
READER_NS, READER_S, LATE_READER_S = 1_000_000, 0.005, 1.0


@dataclass(frozen=True)
class Target:
    """A process that passed the preflight, with its memory open and its Python found."""

    status: ProcStatus
    memory: Memory
    python: PythonImage

    @property
    def pid(self) -> int:
        return self.status.pid

    @property
    def scratch(self) -> Scratch:
        """The room for the line; to be asked for only where there is some."""
        if self.python.scratch is None:
            raise NotNow("there is no room for the hook's first line")
        return self.python.scratch


# Looks at the stopped main thread; raises NotNow where it is in the wrong place.
Look = Callable[[StoppedThread, Target], ThreadState]


def look_in(target: Target, look: Look) -> tuple[float, ThreadState]:
    """Stops the main thread for a look. Returns for how many microseconds it stood still, and what was seen."""
    with _stopped(target) as thread:
        state = look(thread, target)
    return thread.pause_us, state


def call_in_main_thread(target: Target, calls: Sequence[Call], look: Look, line: bytes) -> float:
    """Puts the line in its place and has the main thread make the calls and then go on with what it was doing.

    Returns for how many microseconds it stood still; to be called within `in_own_thread`. Until the
    registers are set nothing has happened to the target, from then on everything happens without us.
    """
    if cannot_be_woken(target.pid):
        raise NotNow("the main thread is in an uninterruptible system call")
    layout, libc = xsave_layout(), target.python.libc
    if libc.restorer is None:
        raise NotNow("there is no return path for signals")
    put_line(target, line)
    with _stopped(target) as thread:
        state = look(thread, target)
        check_interruptible(thread, target, state)
        check_running(target)
        kept = _errno_of(target, state)
        frame = build(state, calls, libc.restorer, layout, kept)
        try:
            for address, data in ((frame.address, frame.content), (target.scratch.address, line[:1])):
                target.memory.write(address, data)
        except OSError as error:
            if error.errno in (errno.EIO, errno.EFAULT):
                raise NotNow("the main thread's stack is at its end") from error
            raise
        thread.set_registers(frame.registers)
    return thread.pause_us


def check_running(target: Target) -> None:
    """Raises NotNow where the interpreter has not begun or is ending, as far as that is known."""
    place = target.python.initialized
    if place is not None and target.memory.read(place, 4) == bytes(4):
        raise NotNow("its Python has not begun, or is ending")


def put_line(target: Target, line: bytes) -> None:
    """Puts the line in its place, but for its first byte, which makes it valid.

    A call that a killed aitop left in the queue reads an empty text meanwhile.
    """
    place = target.scratch.address
    if target.memory.read(place, len(line)) != line:
        target.memory.write(place, b"\0")
        target.memory.write(place + 1, line[1:])


def _errno_of(target: Target, state: ThreadState) -> KeptErrno | None:
    """The thread's errno and where it lies; None where that is not known."""
    place = target.python.libc.errno
    if place is None:
        return None
    address = state.registers["fs_base"] + place.offset
    return KeptErrno(address, target.memory.read(address, 4), place.swab)


def frame_obstacle(target: Target) -> str | None:
    """Why no signal frame can be made for this target, None where one can."""
    python = target.python
    if not on_x86_64():
        return "signal frames are known for x86-64 only"
    if target.status.shadow_stack:
        return "its shadow stack (CET) is on"
    if not all(name in python.symbols for name in NEEDED):
        return "its Python does not export its functions"
    if python.libc.restorer is None:
        return "it has no return path for signals"
    if python.initialized is None:
        return "its Python does not tell whether it is ending"
    return None if python.scratch else "it has no room for the hook's first line"


def anywhere(thread: StoppedThread, _target: Target) -> ThreadState:
    """A look for calls that are harmless at any place."""
    return thread.state()


def check_interruptible(thread: StoppedThread, target: Target, state: ThreadState) -> None:
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
    scratch = target.scratch
    try:
        target.memory.write(scratch.address, b"\0")
        if in_use:
            wait_for_reader(target)
        target.memory.write(scratch.address, bytes(scratch.size))
    except OSError:  # the process is gone, and the line with it
        pass


def wait_for_reader(target: Target) -> None:
    """Waits until a main thread that may be copying the line this moment has surely done so."""
    let_it_finish(target.pid, READER_NS, READER_S, LATE_READER_S)


def _stopped(target: Target) -> StoppedThread:
    return StoppedThread(target.pid, lambda: same_process(target.status))
