"""The ways in, best first. Each is a small object of one shape; the session goes down the list.

A way queues the injected line with CPython's own machinery, which runs it in the main thread between two
bytecodes, or runs it where the main thread is proven to have let go of the interpreter. None of them runs
Python in a thread that was interrupted anywhere.
"""

from __future__ import annotations

from typing import Protocol

from aitop.attach.ptrace import in_own_thread
from aitop.attach.signal_frame import Call
from aitop.attach.sleeping_call import SleepingCall
from aitop.attach.target import Target, anywhere, call_in_main_thread


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
        return "its shadow stack (CET) is on" if target.status.shadow_stack else None

    def enter(self, target: Target, line: bytes) -> float:
        python = target.python
        run = python.address("PyRun_SimpleString")
        queue = [Call(python.address("Py_AddPendingCall"), (run, python.scratch.address))]
        return in_own_thread(lambda: call_in_main_thread(target, queue, anywhere, line))


WAYS: tuple[WayIn, ...] = (SignalFrame(), SleepingCall())
