"""The ways in on x86-64: a stopped thread calls functions through a synthetic signal frame, then goes on as before.

How it works, with Python 3.10 to 3.14:

1. The main thread is stopped for a fraction of a millisecond (stopped_thread.py) and its state is read.
2. We do what the kernel does to deliver a signal: write a frame with the thread's complete state below its stack
   pointer (`build`), and set its registers to the first instruction of a function.
3. The function returns into `rt_sigreturn`, with which the kernel itself restores general and vector registers, flags
   and signal mask. Frames can be chained: when one function returns, the next one starts.

Once the registers are set nothing depends on aitop any more, so it may be killed. `SignalFrame` calls
`Py_AddPendingCall`, which is safe at any point: CPython runs the line later, between two bytecodes. `SleepingCall` is
for a main thread that sleeps in a system call without the GIL, and so would not get to its pending calls: it takes the
GIL, runs the line and releases the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from aitop.attach.inspection.process import (
    SLEEPS,
    SYS_RESTART,
    cannot_be_woken,
    may_be_asleep,
    on_x86_64,
    same_process,
)
from aitop.attach.payload.request import Request
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.ways import (
    NO_ROOM,
    Obstacle,
    TargetProcess,
    WayIn,
    check_running,
    put_line,
)
from aitop.attach.ways.stopped_thread import Registers, StoppedThread, ThreadState, in_own_thread

RED_ZONE = 128
SIGNAL_INFO_SIZE = 128
CODE_SEGMENT_64 = 0x33
# The trap and direction flags must be off at the start of a function.
FLAGS_OFF = ~0x500
NO_SYSTEM_CALL = (1 << 64) - 1
UCONTEXT_FLAGS = 7
# Not a valid mode, so the kernel leaves the thread's alternate signal stack alone.
IGNORED_STACK_FLAGS = 0x7F
SIGCONTEXT_ORDER = (
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx"),
    *("rsp", "rip", "eflags"),
)
ARGUMENT_REGISTERS = ("rdi", "rsi", "rdx")

# What an interrupted system call returns inside the kernel, as negative numbers (include/linux/errno.h).
RESTART_SYS, RESTART_NO_INTR, RESTART_NO_HAND, RESTART_BLOCK = 512, 513, 514, 516
SYS_POLL, SYS_FUTEX = 7, 202
SYSCALL_INSTRUCTION_SIZE = 2
ERRNO_ROOM = 16
RSEQ_CRITICAL_SECTION_AT = 8

INTERRUPTED = {-errno.EINTR, -RESTART_SYS, -RESTART_NO_HAND, -RESTART_BLOCK}
BETWEEN_LOOKS_S = 0.1
# What PyGILState_Ensure returns in a thread that did not hold the GIL.
GIL_WAS_NOT_HELD = 1

# Layout of the vector state in a signal frame.
MAGIC_1, MAGIC_2 = 0x46505853, 0x46505845
SOFTWARE_BYTES_AT = 464
HEADER_AT = 512
FPSTATE_IN_UCONTEXT = 40 + 184
AMX_FEATURES = 3 << 17
SA_SIGINFO = 4


class SignalFrame(WayIn):
    """Stops the main thread for a moment and has it queue the line as a pending call."""

    name = "signal-frame"
    patience = 0.3

    def obstacle(self, target: TargetProcess) -> Obstacle | None:
        python = target.python
        if not on_x86_64():
            return Obstacle("signal frames are known for x86-64 only")
        if target.status.shadow_stack:
            return Obstacle("its shadow stack (CET) is on")
        if python.libc.restorer is None:
            return Obstacle("it has no return path for signals")
        if python.initialized is None:
            return Obstacle("its Python does not tell whether it is ending")
        return None if python.scratch else NO_ROOM

    def enter(self, target: TargetProcess, request: Request) -> None:
        run = target.python.address("PyRun_SimpleString")
        queue = [Call(target.python.address("Py_AddPendingCall"), (run, target.scratch.address))]
        # The call is safe wherever the thread is.
        in_own_thread(lambda: call_in_main_thread(target, queue, lambda thread, _: thread.state(), request.line))


class SleepingCall(SignalFrame):
    """Runs the line in the main thread while it sleeps in a system call, as a callback of a C extension would.

    Two looks must show the thread at the same point of the same system call, without the GIL. Chained signal frames
    then make the thread take the GIL, run the line and release the GIL.
    """

    name = "sleeping-call"
    patience = 1.0

    def enter(self, target: TargetProcess, request: Request) -> None:
        check_running(target)
        # /proc is asked first, so that a thread that runs is not stopped just for a look.
        for pause in (BETWEEN_LOOKS_S, 0):
            if not may_be_asleep(target.pid):
                raise NotNow("the main thread is not asleep")
            time.sleep(pause)
        first = in_own_thread(lambda: look_in(target, _asleep))
        time.sleep(BETWEEN_LOOKS_S)
        if not may_be_asleep(target.pid):
            raise NotNow("the main thread is not asleep")
        in_own_thread(lambda: _run_asleep(target, request.line, first))


def _run_asleep(target: TargetProcess, line: bytes, first: ThreadState) -> None:
    python = target.python
    calls = [
        Call(python.address("PyGILState_Ensure")),
        Call(python.address("PyRun_SimpleString"), (target.scratch.address,)),
        Call(python.address("PyGILState_Release"), (GIL_WAS_NOT_HELD,)),
    ]

    def still_asleep(thread: StoppedThread, target: TargetProcess) -> ThreadState:
        state = same_call(thread.state(), first)
        _check_no_gil(target, state)
        return state

    call_in_main_thread(target, calls, still_asleep, line)


def same_call(state: ThreadState, first: ThreadState) -> ThreadState:
    """Return the state of a thread that is still in the system call of the first look, or raise NotNow.

    Our first stop made the kernel restart a timed wait, which then has another number. It gets that of the call that it
    was, which alone tells how to go on.
    """
    if state.system_call not in (first.system_call, SYS_RESTART) or any(
        state.registers[name] != first.registers[name] for name in ("rip", "rsp", "rdi", "rsi", "rdx")
    ):
        raise NotNow("the main thread is not asleep")
    return msgspec.structs.replace(state, registers={**state.registers, "orig_rax": first.registers["orig_rax"]})


def _asleep(thread: StoppedThread, target: TargetProcess) -> ThreadState:
    """Return the state of a thread that sleeps without the GIL. Raises NotNow for any other."""
    state = thread.state()
    if state.system_call not in SLEEPS:
        raise NotNow("the main thread is not asleep")
    _check_no_gil(target, state)
    return state


def _check_no_gil(target: TargetProcess, state: ThreadState) -> None:
    if state.result not in INTERRUPTED:
        raise NotNow("the main thread is just waking up")
    try:
        held = target.python.holds_gil(target.memory, state.registers["fs_base"])
    except OSError:  # CPython has freed the thread state
        held = None
    if held is not False:
        raise NotNow("the main thread does not let go of the interpreter")


# Reads the state of the stopped main thread. Raises NotNow if the calls cannot be made where the thread is.
Look = Callable[[StoppedThread, TargetProcess], ThreadState]


def look_in(target: TargetProcess, look: Look) -> ThreadState:
    """Stop the main thread just long enough to read its state, and return that."""
    with _stopped(target) as thread:
        return look(thread, target)


def call_in_main_thread(target: TargetProcess, calls: Sequence[Call], look: Look, line: bytes) -> None:
    """Put the line in place, have the main thread make the calls, and then have it go on with what it was doing.

    Call this within `in_own_thread`. The target is unchanged until its registers are set. From then on it does the rest
    by itself.
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
        saved_errno = _errno_of(target, state)
        frame = build(state, calls, libc.restorer, layout, saved_errno)
        try:
            for address, data in ((frame.address, frame.content), (target.scratch.address, line[:1])):
                target.memory.write(address, data)
        except OSError as error:
            if error.errno in (errno.EIO, errno.EFAULT):
                raise NotNow("the main thread's stack is at its end") from error
            raise
        thread.set_registers(frame.registers)


def _errno_of(target: TargetProcess, state: ThreadState) -> SavedErrno | None:
    """Return the thread's errno and its address; None if the address is not known."""
    place = target.python.libc.errno
    if place is None:
        return None
    address = state.registers["fs_base"] + place.offset
    return SavedErrno(address, target.memory.read(address, 4), place.swab)


def check_interruptible(thread: StoppedThread, target: TargetProcess, state: ThreadState) -> None:
    """Raise NotNow at the few points where the kernel would not simply deliver a signal."""
    if state.registers["cs"] & 0xFFFF != CODE_SEGMENT_64:
        raise NotNow("the main thread runs 32-bit code")
    if (area := thread.rseq_area()) is None:
        return
    section = target.memory.read_word(area + RSEQ_CRITICAL_SECTION_AT)
    if section:
        _, _, start, length, _ = struct.unpack("<IIQQQ", target.memory.read(section, 32))
        if start <= state.registers["rip"] < start + length:
            raise NotNow("the main thread is in a restartable sequence")


@contextlib.contextmanager
def _stopped(target: TargetProcess) -> Iterator[StoppedThread]:
    """Stop the main thread for the block."""
    stopped = StoppedThread(target.pid, lambda: same_process(target.status))
    with target.memory.holding_gil(), stopped as thread:
        yield thread


class Call(msgspec.Struct, frozen=True):
    """A call to make in the target: address of the function, and at most three integer arguments."""

    function: int
    arguments: tuple[int, ...] = ()


class SavedErrno(msgspec.Struct, frozen=True):
    """A thread's errno: its address, its four bytes, and the address of C's `swab`, which puts them back."""

    address: int
    content: bytes
    swab: int


class Frame(msgspec.Struct, frozen=True):
    """A signal frame: the bytes to write at `address`, and the registers to set after that."""

    address: int
    content: bytes
    registers: Registers


def build(
    state: ThreadState, calls: Sequence[Call], restorer: int, layout: XsaveLayout, saved_errno: SavedErrno | None = None
) -> Frame:
    """Return the frame that runs `calls` one after the other, then restores `saved_errno` and finally `state`.

    `restorer` is the address of a `mov $15,%rax; syscall` (rt_sigreturn) in the target.
    """
    vector = layout.seal(state.xstate)
    area = (state.registers["rsp"] - RED_ZONE - len(vector)) & ~63
    writes = [(area, vector)]
    resumed, vector_at = resumption(state), area
    at = area
    registers = state.registers
    if saved_errno is not None:
        at -= ERRNO_ROOM
        # `swab` swaps the two bytes of each pair that it copies, so they are swapped here first.
        writes.append((at, bytes(saved_errno.content[i ^ 1] for i in range(4))))
        calls = [*calls, Call(saved_errno.swab, (at, saved_errno.address, 4))]
    for call in reversed(calls):
        context = _ucontext(resumed, vector_at, state.signal_mask)
        # At a function's start the ABI wants the stack pointer, which points to the return address, 8 off a multiple
        # of 16.
        at = ((at - 16 - 8 - len(context) - SIGNAL_INFO_SIZE) & ~15) - 8
        writes.append((at, struct.pack("<Q", restorer) + context))
        registers = _entering(state.registers, call, at)
        # Between two calls the vector state is reset to its defaults, as functions may expect.
        resumed, vector_at = registers, 0
    return Frame(*_joined(writes), registers)


def _joined(writes: Sequence[tuple[int, bytes]]) -> tuple[int, bytes]:
    """Join the writes into one: (address, bytes), with zeros in the gaps, which are small."""
    start = min(at for at, _ in writes)
    whole = bytearray(max(at + len(data) for at, data in writes) - start)
    for at, data in writes:
        whole[at - start : at - start + len(data)] = data
    return start, bytes(whole)


def resumption(state: ThreadState) -> Registers:
    """Return the registers with which the thread goes on.

    They are set as the kernel sets them after a signal has interrupted a system call.
    """
    registers = dict(state.registers)
    number = state.system_call
    if number is None:
        return registers
    if -state.result in (RESTART_SYS, RESTART_NO_INTR, RESTART_NO_HAND):
        # A wait for a lock returns EINTR, so that CPython runs its pending calls and then waits on. Any other system
        # call is issued again, as the kernel does if no handler runs.
        if number == SYS_FUTEX and -state.result == RESTART_SYS:
            registers["rax"] = -errno.EINTR & NO_SYSTEM_CALL
        else:
            _issue_again(registers)
    elif -state.result == RESTART_BLOCK:
        # After rt_sigreturn the kernel no longer knows how to restart a timed wait. But a `poll` without a time limit,
        # or with one of zero, can be issued again.
        if number == SYS_POLL and ctypes.c_int(registers["rdx"]).value <= 0:
            _issue_again(registers)
        else:
            registers["rax"] = -errno.EINTR & NO_SYSTEM_CALL
    return registers


def _issue_again(registers: Registers) -> None:
    registers["rax"] = registers["orig_rax"]
    registers["rip"] -= SYSCALL_INSTRUCTION_SIZE


def _entering(registers: Registers, call: Call, stack: int) -> Registers:
    """Return the registers at the first instruction of the called function."""
    entering = dict(registers)
    entering.update(
        rip=call.function, rsp=stack, rax=0, orig_rax=NO_SYSTEM_CALL, eflags=registers["eflags"] & FLAGS_OFF
    )
    entering.update(zip(ARGUMENT_REGISTERS, call.arguments, strict=False))
    return entering


def _ucontext(registers: Registers, vector_at: int, signal_mask: bytes) -> bytes:
    """Return the kernel's `struct ucontext` with the registers to restore. `vector_at`: address of the vector state."""
    general = struct.pack("<18Q", *(registers[name] for name in SIGCONTEXT_ORDER))
    segments = struct.pack("<4H", registers["cs"] & 0xFFFF, 0, 0, registers["ss"] & 0xFFFF)
    # err, trapno, oldmask, cr2, fpstate, reserved
    rest = struct.pack("<5Q", 0, 0, 0, 0, vector_at) + bytes(64)
    head = struct.pack("<QQQiiQ", UCONTEXT_FLAGS, 0, 0, IGNORED_STACK_FLAGS, 0, 0)
    return head + general + segments + rest + signal_mask


class XsaveLayout(msgspec.Struct, frozen=True):
    """The layout of the vector state in a signal frame.

    `features` is the mask of its state components, `size` its bytes without the trailing magic number.
    """

    features: int
    size: int

    def seal(self, xstate: bytes) -> bytes:
        """Turn a thread's vector state into the area that `rt_sigreturn` restores bit for bit."""
        layout = self._for(xstate)
        area = bytearray(xstate[: layout.size])
        software = struct.pack("<IIQI", MAGIC_1, layout.size + 4, layout.features, layout.size)
        area[SOFTWARE_BYTES_AT:HEADER_AT] = software.ljust(HEADER_AT - SOFTWARE_BYTES_AT, b"\0")
        return bytes(area) + struct.pack("<I", MAGIC_2)

    def _for(self, xstate: bytes) -> XsaveLayout:
        """Return the layout for this vector state: the full one if the thread uses matrix tiles (AMX), else `self`."""
        (in_use,) = struct.unpack_from("<Q", xstate, HEADER_AT)
        if in_use & AMX_FEATURES:
            (supported,) = struct.unpack_from("<Q", xstate, SOFTWARE_BYTES_AT)
            return XsaveLayout(supported, len(xstate))
        if len(xstate) < self.size:
            raise AttachRefused("failed", f"the kernel gave {len(xstate)} bytes of vector state, not {self.size}")
        return self


@functools.cache
def xsave_layout() -> XsaveLayout:
    """Return the layout on this machine, found by sending our own thread a signal. Handler and mask are restored.

    That is needed because neither Python nor ptrace tells the size of the area that a process without matrix tiles may
    restore.
    """
    number = int(signal.SIGRTMAX) - 5
    libc = ctypes.CDLL(None)
    seen: list[tuple[int, int, int, int]] = []

    def handler(_signal: int, _info: int, context: int) -> None:
        (area,) = struct.unpack("<Q", ctypes.string_at(context + FPSTATE_IN_UCONTEXT, 8))
        seen.append(struct.unpack("<IIQI", ctypes.string_at(area + SOFTWARE_BYTES_AT, 20)))

    callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(handler)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    # struct sigaction in both glibc and musl: handler, mask of 128 bytes, flags, restorer.
    action = struct.pack("<Q128siiQ", address, b"", SA_SIGINFO, 0, 0)
    before = ctypes.create_string_buffer(len(action))
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    try:
        libc.sigaction(number, action, before)
        getattr(libc, "raise")(number)
        libc.sigaction(number, before, None)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if not seen or seen[0][0] != MAGIC_1:
        raise AttachRefused("absent", "this processor has no XSAVE state that aitop knows how to bring back")
    return XsaveLayout(features=seen[0][2], size=seen[0][3])
