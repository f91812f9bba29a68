"""The way into an idle program: its main thread sleeps in a system call and has given the GIL away."""

from __future__ import annotations

import time

from aitop.attach.from_outside import SLEEPS, SYS_RESTART, may_be_asleep
from aitop.attach.gil import holds_gil
from aitop.attach.ptrace import StoppedThread, ThreadState
from aitop.attach.refusal import NotNow
from aitop.attach.request import Request
from aitop.attach.signal_frame import EINTR, RESTART_BLOCK, RESTART_NO_HAND, RESTART_SYS, Call
from aitop.attach.target import Target, call_in_main_thread, check_running, frame_obstacle, look_in, wipe
from aitop.attach.undisturbed import in_own_thread

INTERRUPTED = {-EINTR, -RESTART_SYS, -RESTART_NO_HAND, -RESTART_BLOCK}
BETWEEN_LOOKS_S = 0.1
# What PyGILState_Ensure returns in a thread that had given the GIL away.
GIL_WAS_NOT_HELD = 1


class SleepingCall:
    """Runs the line in the main thread while it sleeps, the way a C extension's callback would run Python.

    Two looks must show the thread at the same place of the same system call without the GIL. The thread
    takes the GIL, runs the line and gives the GIL back by itself, through chained signal frames.
    """

    name = "sleeping-call"
    patience = 1.0
    costly = False
    alone = False

    def obstacle(self, target: Target) -> str | None:
        return frame_obstacle(target)

    def enter(self, target: Target, request: Request) -> float:
        check_running(target)
        # A thread that is plainly not asleep is not stopped for a look.
        for pause in (BETWEEN_LOOKS_S, 0):
            if not may_be_asleep(target.pid):
                raise NotNow("the main thread is not asleep")
            time.sleep(pause)
        pause_us, first = in_own_thread(lambda: look_in(target, _asleep))
        time.sleep(BETWEEN_LOOKS_S)
        if not may_be_asleep(target.pid):
            raise NotNow("the main thread is not asleep")
        return max(pause_us, in_own_thread(lambda: _run(target, request.line, first)))

    def withdraw(self, target: Target, *, in_use: bool) -> None:
        wipe(target, in_use=in_use)


def _run(target: Target, line: bytes, first: ThreadState) -> float:
    python = target.python
    calls = [
        Call(python.address("PyGILState_Ensure")),
        Call(python.address("PyRun_SimpleString"), (target.scratch.address,)),
        Call(python.address("PyGILState_Release"), (GIL_WAS_NOT_HELD,)),
    ]

    def still_asleep(thread: StoppedThread, target: Target) -> ThreadState:
        state = thread.state()
        # Our first look made the kernel restart a timed wait: it then goes by another number.
        if state.system_call not in (first.system_call, SYS_RESTART) or any(
            state.registers[name] != first.registers[name] for name in ("rip", "rsp", "rdi", "rsi")
        ):
            raise NotNow("the main thread is not asleep")
        _check_no_gil(target, state)
        return state

    return call_in_main_thread(target, calls, still_asleep, line)


def _asleep(thread: StoppedThread, target: Target) -> ThreadState:
    """The state of a thread that sleeps without the GIL; raises NotNow for any other."""
    state = thread.state()
    if state.system_call not in SLEEPS:
        raise NotNow("the main thread is not asleep")
    _check_no_gil(target, state)
    return state


def _check_no_gil(target: Target, state: ThreadState) -> None:
    if state.result not in INTERRUPTED:
        raise NotNow("the main thread is just waking up")
    try:
        held = holds_gil(target.memory, target.python, state.registers["fs_base"])
    except OSError:  # a thread state that was freed under our eyes
        held = None
    if held is not False:
        raise NotNow("the main thread does not let go of the interpreter")
