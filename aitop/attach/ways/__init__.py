"""The ways into a process, and what they share: the line that is injected, and how it is put in place and taken back.

Each way makes the target's main thread run that line between two bytecodes, or where the main thread is proven to have
released the GIL. None runs Python in a thread that was interrupted anywhere.

    remote_debug   Python 3.14 and later: CPython's own protocol (PEP 768); nothing is stopped
    signal_frame   x86-64: one stopped thread queues a pending call (SignalFrame), or, where it sleeps in a system
                   call, runs the line there (SleepingCall)
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

# Copying the line takes the target microseconds of CPU time; on a loaded machine it may wait for a processor meanwhile.
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
        """The room for the line. Raises NotNow where there is none."""
        if self.python.scratch is None:
            raise NotNow("there is no room for the hook's first line")
        return self.python.scratch


def check_running(target: TargetProcess) -> None:
    """Raises NotNow where the interpreter has not begun or is ending, as far as that is known.

    When CPython ends it frees what a call would use, long before the process is gone: a call at that time would crash a
    run that had just finished.
    """
    place = target.python.initialized
    if place is not None and target.memory.read(place, 4) == bytes(4):
        raise NotNow("its Python has not begun, or is ending")


def put_line(target: TargetProcess, line: bytes) -> None:
    """Writes the line all but for its first byte, which makes it valid.

    A call that an aitop left in the queue when it was killed reads an empty text meanwhile.
    """
    place = target.scratch.address
    if target.memory.read(place, len(line)) != line:
        target.memory.write(place, b"\0")
        target.memory.write(place + 1, line[1:])


def wipe_line(target: TargetProcess, *, in_use: bool) -> None:
    """Erases the line: a call that is still queued then runs an empty text, which does nothing.

    The first byte goes first, so that a reader sees the whole line or nothing. Where it may be `in_use`, the rest goes
    when a reader has surely finished.
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
    """Waits until a main thread that may be copying the line at this moment has surely done so."""
    let_it_finish(target.pid, COPYING_NS, COPYING_S, LONGEST_COPYING_S)


class WayIn:
    """One way in.

    `patience` is how long to wait for the answer before the next way is tried as well, in seconds. A `costly` way
    stops the whole program for long and is tried only where no other got in. What an `exclusive` way brought in is
    withdrawn before the next way is tried.
    """

    name: str
    patience: float
    costly = False
    exclusive = False

    def obstacle(self, target: TargetProcess) -> Obstacle | None:
        """What closes this way for the target, None where it is open."""
        raise NotImplementedError

    def enter(self, target: TargetProcess, request: Request) -> None:
        """Brings the request in, once.

        Raises NotNow, with the target as it was, where another moment may suit, and AttachRefused where none will.
        """
        raise NotImplementedError

    def withdraw(self, target: TargetProcess, *, in_use: bool) -> None:
        """Takes back what `enter` left. `in_use`: the target may be reading it at this moment."""
        wipe_line(target, in_use=in_use)
