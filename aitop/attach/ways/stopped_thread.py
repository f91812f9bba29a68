"""Stops one thread of another process, reads and sets its registers, and lets it go (ptrace, x86-64 Linux).

ptrace is bound to the calling operating-system thread. So everything from stop to release happens in one thread that is
made for it (`in_own_thread`). When that thread ends, or aitop is killed, the kernel lets the target run on with the
registers that it has then.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

import msgspec

from aitop.attach.held_libc import pause, ptrace, wait_event
from aitop.attach.refusal import AttachRefused, NotNow, ended

SEIZE, INTERRUPT, CONT, DETACH = 0x4206, 0x4207, 7, 17
GETREGSET, SETREGSET, GETSIGMASK, RSEQ_CONFIGURATION = 0x4204, 0x4205, 0x420A, 0x420F
NT_PRSTATUS, NT_X86_XSTATE = 1, 0x202
EVENT_STOP = 128
WALL = 0x40000000
LARGEST_XSTATE = 1 << 15
STOP_PATIENCE_S = 1.0
POLL_S = 0.0001
HELD_S = 0.003
HELD_POLL_US = 20

# struct user_regs_struct
REGISTER_NAMES = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
Registers = dict[str, int]
WORD = (1 << 64) - 1

# While a thread of the target is stopped, none of our other threads may take the GIL. So this is longer than any stop,
# with anything that may delay it.
SWITCH_INTERVAL_S = 1.0
Result = TypeVar("Result")
_one_stop_at_a_time = threading.Lock()


def in_own_thread(work: Callable[[], Result]) -> Result:
    """Run `work` in a new thread that ends with it, so that the kernel ends all tracing that `work` began.

    If the system allows it the thread gets real-time priority, so that a stopped target need not wait until we get a
    core.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def body() -> None:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            with _undisturbed():
                results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="aitop-tracer", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep garbage collection and our other threads from running between a stop and its end."""
    with _one_stop_at_a_time:
        interval, collects = sys.getswitchinterval(), gc.isenabled()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.disable()
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
            if collects:
                gc.enable()


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class ThreadState(msgspec.Struct, frozen=True):
    """The state of a stopped thread: registers, vector state in the kernel's XSAVE layout, signal mask."""

    registers: Registers
    xstate: bytes
    signal_mask: bytes

    @property
    def system_call(self) -> int | None:
        """The number of the system call that the thread is in, None in user code."""
        number = self.registers["orig_rax"]
        return number if number < 1 << 63 else None

    @property
    def result(self) -> int:
        """The return register as a signed number: a negative errno inside an interrupted system call."""
        rax = self.registers["rax"]
        return rax - (1 << 64) if rax >> 63 else rax


class StoppedThread:
    """Context manager that seizes and stops one thread, and releases it at the end. Use it within `in_own_thread`.

    `is_same_process` tells whether the pid still belongs to the process that was inspected. If the process is a child
    of ours, it must not be waited for elsewhere (`Popen.poll`) while it is stopped here.

    Raises AttachRefused if the kernel does not allow it or the process is ending, and NotNow if the thread does not
    stop in time.
    """

    def __init__(self, tid: int, is_same_process: Callable[[], bool]) -> None:
        self.tid = tid
        self._is_same_process = is_same_process
        self._attached = False

    def __enter__(self) -> StoppedThread:
        try:
            ptrace(SEIZE, self.tid)
        except OSError as error:
            raise _explain_seize(self.tid, error) from error
        self._attached = True
        try:
            # A traced process keeps its pid until we release it, so the answer stays true.
            if not self._is_same_process():
                raise ended(self.tid)
            ptrace(INTERRUPT, self.tid)
            self._await_stop()
        except OSError as error:
            self._let_go()
            raise ended(self.tid) from error
        except BaseException:
            self._let_go()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._attached:
            self._attached = False
            # This fails if the thread died or did not stop. Then the end of our own thread ends the tracing.
            with contextlib.suppress(OSError):
                ptrace(DETACH, self.tid)

    def _await_stop(self) -> None:
        """Wait for the requested stop. A signal that arrives first is passed on to the target."""
        deadline = time.monotonic() + STOP_PATIENCE_S
        while True:
            event, what = divmod(self._next_event(deadline), 256)
            if event == EVENT_STOP:
                if what != signal.SIGTRAP:
                    reason = f"process {self.tid} is stopped"
                    raise AttachRefused("absent", reason, f"kill -CONT {self.tid}", transient=True)
                return
            ptrace(CONT, self.tid, 0, 0 if event else what)

    def _next_event(self, deadline: float) -> int:
        """Return the status of the thread's next stop: signal number plus 256 × the ptrace event.

        Never consumes the exit status of the process, because it may be a child of ours.
        """
        hold_until = time.monotonic() + HELD_S
        while True:
            seen = wait_event(self.tid, os.WEXITED | os.WSTOPPED | os.WNOWAIT | WALL)
            if seen is not None:
                if seen.code in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
                    raise ended(self.tid)
                wait_event(self.tid, os.WSTOPPED | WALL)
                return seen.status
            now = time.monotonic()
            if now > deadline:
                raise NotNow("the main thread does not stop: it is in an uninterruptible system call")
            if now > hold_until:
                # The sleep releases the GIL. It must come back at once: the thread may be stopped by then.
                sys.setswitchinterval(POLL_S)
                time.sleep(POLL_S)
                sys.setswitchinterval(SWITCH_INTERVAL_S)
            else:
                pause(HELD_POLL_US)

    def state(self) -> ThreadState:
        """Read everything that a signal frame has to restore."""
        return ThreadState(self.registers(), self._regset(NT_X86_XSTATE, LARGEST_XSTATE), self._signal_mask())

    def registers(self) -> Registers:
        words = struct.unpack("<27Q", self._regset(NT_PRSTATUS, 27 * 8))
        return dict(zip(REGISTER_NAMES, words, strict=True))

    def set_registers(self, registers: Registers) -> None:
        raw = struct.pack("<27Q", *(registers[name] & WORD for name in REGISTER_NAMES))
        buffer = ctypes.create_string_buffer(raw, len(raw))
        vector = _IoVec(ctypes.addressof(buffer), len(raw))
        ptrace(SETREGSET, self.tid, NT_PRSTATUS, ctypes.addressof(vector))

    def rseq_area(self) -> int | None:
        """Return the address of the thread's restartable-sequence (rseq) area, None without one or if not known."""
        buffer = ctypes.create_string_buffer(24)
        try:
            ptrace(RSEQ_CONFIGURATION, self.tid, 24, ctypes.addressof(buffer))
        except OSError:
            return None
        return int.from_bytes(buffer.raw[:8], "little") or None

    def _regset(self, kind: int, size: int) -> bytes:
        buffer = ctypes.create_string_buffer(size)
        vector = _IoVec(ctypes.addressof(buffer), size)
        ptrace(GETREGSET, self.tid, kind, ctypes.addressof(vector))
        return buffer.raw[: vector.size]

    def _signal_mask(self) -> bytes:
        buffer = ctypes.create_string_buffer(8)
        ptrace(GETSIGMASK, self.tid, 8, ctypes.addressof(buffer))
        return buffer.raw


def _explain_seize(pid: int, error: OSError) -> AttachRefused:
    if error.errno == errno.ESRCH:
        return ended(pid)
    return AttachRefused(
        "denied",
        f"the system forbids tracing process {pid}: {os.strerror(error.errno or errno.EPERM)}",
        "allow ptrace here (in a container: --cap-add SYS_PTRACE)",
    )
