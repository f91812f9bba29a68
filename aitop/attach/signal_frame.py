"""The synthetic signal frame: makes a stopped thread call functions and then go on as if nothing had been.

What the kernel does to deliver a signal is done by us: below the thread's stack a frame is written that
holds everything it was doing, and the thread is set to the function's first instruction. When the
function returns, it returns into `rt_sigreturn`, and the kernel itself restores general and vector
registers, flags and signal mask. Nobody has to wait for it: once the registers are set we may die.
Frames can be chained: the end of one function starts the next.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from aitop.attach.ptrace import Registers, ThreadState
from aitop.attach.xsave_layout import XsaveLayout

RED_ZONE = 128
SIGNAL_INFO_SIZE = 128
CODE_SEGMENT_64 = 0x33
# Trap and direction flag: a function must start with both off.
FLAGS_OFF = ~0x500
NO_SYSTEM_CALL = (1 << 64) - 1
UCONTEXT_FLAGS = 7
# Not a valid mode: the kernel then leaves the alternate stack alone.
IGNORED_STACK_FLAGS = 0x7F
SIGCONTEXT_ORDER = (
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx"),
    *("rsp", "rip", "eflags"),
)
ARGUMENT_REGISTERS = ("rdi", "rsi", "rdx")

EINTR = 4
RESTART_SYS, RESTART_NO_INTR, RESTART_NO_HAND, RESTART_BLOCK = 512, 513, 514, 516
SYS_POLL, SYS_FUTEX, SYS_RESTART = 7, 202, 219
SYSCALL_INSTRUCTION_SIZE = 2
ERRNO_ROOM = 16


@dataclass(frozen=True)
class Call:
    """A function in the target and its (at most three) integer arguments. Its result is not seen by anybody."""

    function: int
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True)
class KeptErrno:
    """A thread's errno: where it lies, its four bytes, and the C function `swab` that puts them back."""

    address: int
    content: bytes
    swab: int


@dataclass(frozen=True)
class Frame:
    """The bytes to write at `address`, and the registers to set after that."""

    address: int
    content: bytes
    registers: Registers


def build(
    state: ThreadState, calls: Sequence[Call], restorer: int, layout: XsaveLayout, errno: KeptErrno | None = None
) -> Frame:
    """A frame that runs `calls` one after the other, puts `errno` back, and then brings `state` back.

    `restorer` is the address of a `mov $15,%rax; syscall` in the target.
    """
    vector = layout.seal(state.xstate)
    area = (state.registers["rsp"] - RED_ZONE - len(vector)) & ~63
    writes = [(area, vector)]
    resumed, vector_at = resumption(state), area
    at = area
    registers = state.registers
    if errno is not None:
        at -= ERRNO_ROOM
        # `swab` copies pairs of bytes and turns each round.
        writes.append((at, bytes(errno.content[i ^ 1] for i in range(4))))
        calls = [*calls, Call(errno.swab, (at, errno.address, 4))]
    for call in reversed(calls):
        context = _ucontext(resumed, vector_at, state.signal_mask)
        # The stack is 8 off a multiple of 16 where a function begins, just behind its return address.
        at = ((at - 16 - 8 - len(context) - SIGNAL_INFO_SIZE) & ~15) - 8
        writes.append((at, struct.pack("<Q", restorer) + context))
        registers = _entering(state.registers, call, at)
        # Between two calls the vector state is reset to its defaults, as a function may expect.
        resumed, vector_at = registers, 0
    return Frame(*_joined(writes), registers)


def _joined(writes: Sequence[tuple[int, bytes]]) -> tuple[int, bytes]:
    """The writes as one, with zeros between them: they lie close together."""
    start = min(at for at, _ in writes)
    whole = bytearray(max(at + len(data) for at, data in writes) - start)
    for at, data in writes:
        whole[at - start : at - start + len(data)] = data
    return start, bytes(whole)


def resumption(state: ThreadState) -> Registers:
    """The registers the thread must go on with: as the kernel arranges them when a signal interrupts a system call."""
    registers = dict(state.registers)
    number = state.system_call
    if number is None:
        return registers
    if -state.result in (RESTART_SYS, RESTART_NO_INTR, RESTART_NO_HAND):
        # A lock wait is told of the interruption, so that CPython looks at its pending calls; it then waits on.
        # Anything else is issued again, which is what the kernel does where no handler runs.
        if number == SYS_FUTEX and -state.result == RESTART_SYS:
            registers["rax"] = -EINTR & NO_SYSTEM_CALL
        else:
            _issue_again(registers)
    elif -state.result == RESTART_BLOCK:
        # The kernel forgets how to restart a timed wait when a frame is returned from.
        if number == SYS_POLL and _signed_int(registers["rdx"]) < 0:
            _issue_again(registers)
        else:
            registers["rax"] = -EINTR & NO_SYSTEM_CALL
    return registers


def _issue_again(registers: Registers) -> None:
    registers["rax"] = registers["orig_rax"]
    registers["rip"] -= SYSCALL_INSTRUCTION_SIZE


def _signed_int(word: int) -> int:
    low = word & 0xFFFFFFFF
    return low - (1 << 32) if low >> 31 else low


def _entering(registers: Registers, call: Call, stack: int) -> Registers:
    """The registers at the first instruction of a function."""
    entering = dict(registers)
    entering.update(
        rip=call.function, rsp=stack, rax=0, orig_rax=NO_SYSTEM_CALL, eflags=registers["eflags"] & FLAGS_OFF
    )
    entering.update(zip(ARGUMENT_REGISTERS, call.arguments, strict=False))
    return entering


def _ucontext(registers: Registers, vector_at: int, signal_mask: bytes) -> bytes:
    """`struct ucontext` of the kernel, with the registers to go on with."""
    general = struct.pack("<18Q", *(registers[name] for name in SIGCONTEXT_ORDER))
    segments = struct.pack("<4H", registers["cs"] & 0xFFFF, 0, 0, registers["ss"] & 0xFFFF)
    # err, trapno, oldmask, cr2, fpstate, reserved
    rest = struct.pack("<5Q", 0, 0, 0, 0, vector_at) + bytes(64)
    head = struct.pack("<QQQiiQ", UCONTEXT_FLAGS, 0, 0, IGNORED_STACK_FLAGS, 0, 0)
    return head + general + segments + rest + signal_mask
