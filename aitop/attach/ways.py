"""The ways in, best first. Each is a small object of one shape; an attempt goes down the list.

A way queues the injected line with CPython's own machinery, which runs it in the main thread between two
bytecodes, or runs it where the main thread is proven to have let go of the interpreter. None of them runs
Python in a thread that was interrupted anywhere.
"""

from __future__ import annotations

from typing import Protocol

from aitop.attach.debugger import Gdb
from aitop.attach.remote_debug import RemoteDebug
from aitop.attach.request import Request
from aitop.attach.signal_frame import Call
from aitop.attach.sleeping_call import SleepingCall
from aitop.attach.target import Target, anywhere, call_in_main_thread, frame_obstacle, wipe
from aitop.attach.undisturbed import in_own_thread


class WayIn(Protocol):
    """One way in. `patience` is how long to wait for the answer before the next way is tried as well, in seconds.

    A `costly` one stops the whole program for long, and is for where no other got in. What was brought in by one
    that is to be `alone` is withdrawn before the next way is tried.

    `obstacle` says why the way is closed for this target, None where it is open. `enter` brings the request
    in, once, and returns the number of microseconds for which a thread of the target stood still; it raises
    NotNow where another moment may suit, with the target as it was, and AttachRefused where none will.
    `withdraw` takes back what `enter` left; `in_use` where the target may be reading it this moment.
    """

    name: str
    patience: float
    costly: bool
    alone: bool

    def obstacle(self, target: Target) -> str | None: ...

    def enter(self, target: Target, request: Request) -> float: ...

    def withdraw(self, target: Target, *, in_use: bool) -> None: ...


class SignalFrame:
    """Stops the main thread for a moment and has it queue the line through a synthetic signal frame."""

    name = "signal-frame"
    patience = 0.3
    costly = False
    alone = False

    def obstacle(self, target: Target) -> str | None:
        return frame_obstacle(target)

    def enter(self, target: Target, request: Request) -> float:
        run = target.python.address("PyRun_SimpleString")
        queue = [Call(target.python.address("Py_AddPendingCall"), (run, target.scratch.address))]
        return in_own_thread(lambda: call_in_main_thread(target, queue, anywhere, request.line))

    def withdraw(self, target: Target, *, in_use: bool) -> None:
        wipe(target, in_use=in_use)


WAYS: tuple[WayIn, ...] = (RemoteDebug(), SignalFrame(), SleepingCall(), Gdb())
