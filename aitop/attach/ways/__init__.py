"""The ways into a process, and what they share: how the injected line is put in place and taken back.

Each way makes the target's main thread run that line between two bytecodes, or while the main thread is proven to have
released the GIL. None runs Python in a thread that was interrupted at an arbitrary point.

    remote_debug   Python 3.14 and later: CPython's own protocol (PEP 768); nothing is stopped
    signal_frame   x86-64: the briefly stopped main thread queues a pending call (SignalFrame) or, if it sleeps in a
                   system call, runs the line right there (SleepingCall)
    gdb            other machines: the user's gdb queues the pending call

What was measured of each is in tests/bench/README.md: no target harmed in thousands of cycles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aitop.attach.inspection.elf import Span
from aitop.attach.inspection.process import let_it_finish
from aitop.attach.inspection.process_memory import Memory
from aitop.attach.inspection.python_image import PythonImage
from aitop.attach.refusal import NotNow
from aitop.sources.process_status import ProcStatus

if TYPE_CHECKING:
    from aitop.attach.payload.request import Request

# Ways that write the target's memory and do not trace it.
WITHOUT_PTRACE = frozenset(("remote-debug",))

# For how long the target may be copying the line: that takes microseconds of CPU time, but on a loaded machine the
# target may have to wait for a core. In nanoseconds of its CPU time, and in seconds at least and at most.
COPYING_NS, COPYING_S, LONGEST_COPYING_S = 1_000_000, 0.005, 1.0


class Obstacle(msgspec.Struct, frozen=True):
    """Why a way is closed for a target, and what would open it."""

    reason: str
    remedy: str | None = None


NO_ROOM = Obstacle("it has no room for the hook's first line")


class TargetProcess(msgspec.Struct, frozen=True):
    """A process that passed the preflight, with its memory open and its Python located."""

    status: ProcStatus
    memory: Memory
    python: PythonImage

    @property
    def pid(self) -> int:
        return self.status.pid

    @property
    def scratch(self) -> Span:
        """The memory for the injected line. Raises NotNow if there is none."""
        if self.python.scratch is None:
            raise NotNow("there is no room for the hook's first line")
        return self.python.scratch


def check_running(target: TargetProcess) -> None:
    """Raise NotNow if the interpreter is not initialised yet or is being finalised, as far as that is known.

    At its end CPython frees what our call would use, long before the process is gone. A call at that time would crash a
    run that has just finished.
    """
    place = target.python.initialized
    if place is not None and target.memory.read(place, 4) == bytes(4):
        raise NotNow("its Python has not begun, or is ending")


def put_line(target: TargetProcess, line: bytes) -> None:
    """Write the line except for its first byte, which makes it valid.

    Until then a call that a killed aitop has left in the queue reads an empty text.
    """
    place = target.scratch.address
    if target.memory.read(place, len(line)) != line:
        target.memory.write(place, b"\0")
        target.memory.write(place + 1, line[1:])


def wipe_line(target: TargetProcess, *, in_use: bool) -> None:
    """Erase the line. A call that is still queued then runs an empty text, which does nothing.

    The first byte is erased first, so that a reader sees the whole line or nothing. If the target may be reading the
    line (`in_use`), the rest is erased only when the reader has surely finished.
    """
    scratch = target.scratch
    try:
        target.memory.write(scratch.address, b"\0")
        if in_use:
            wait_for_reader(target)
        target.memory.write(scratch.address, bytes(scratch.size))
    except OSError:  # the process is gone, and the line with it
        pass


def wait_for_reader(target: TargetProcess) -> None:
    """Wait until a main thread that may be copying the line right now has surely finished."""
    let_it_finish(target.pid, COPYING_NS, COPYING_S, LONGEST_COPYING_S)


class WayIn:
    """One way in.

    `patience` is how many seconds to wait for the answer before the next way is tried as well. A `costly` way stops the
    whole program for long, so it is tried only if no other way has brought the request in. What an `exclusive` way
    brought in is withdrawn before the next way is tried.
    """

    name: str
    patience: float
    costly = False
    exclusive = False

    def obstacle(self, target: TargetProcess) -> Obstacle | None:
        """Return what closes this way for the target, None if it is open."""
        raise NotImplementedError

    def enter(self, target: TargetProcess, request: Request) -> None:
        """Bring the request in, once.

        Raises NotNow, with the target unchanged, if it may work at another moment, and AttachRefused if it never will.
        """
        raise NotImplementedError

    def withdraw(self, target: TargetProcess, *, in_use: bool) -> None:
        """Take back what `enter` left in the target. `in_use`: the target may be reading it right now."""
        wipe_line(target, in_use=in_use)
