"""A thread that was interrupted in a system call goes on as after a signal."""

from __future__ import annotations

import struct

import pytest

from aitop.attach.refusal import NotNow
from aitop.attach.ways.signal_frame import Call, SavedErrno, build, resumption, same_call, xsave_layout
from aitop.attach.ways.stopped_thread import REGISTER_NAMES, ThreadState


def state(**registers: int) -> ThreadState:
    values = dict.fromkeys(REGISTER_NAMES, 0) | {"cs": 0x33, "rsp": 0x7FFF0000, "rip": 0x1000, **registers}
    return ThreadState(values, bytes(16384), bytes(8))


def interrupted(number: int, error: int, **registers: int) -> ThreadState:
    return state(orig_rax=number, rax=(1 << 64) - error, **registers)


@pytest.mark.parametrize(
    ("before", "rax", "rip"),
    [
        (state(orig_rax=(1 << 64) - 1, rax=7), 7, 0x1000),  # in user code
        (interrupted(0, 512), 0, 0xFFE),  # read: issued again
        (interrupted(61, 513), 61, 0xFFE),
        (interrupted(7, 516, rdx=0xFFFFFFFF), 7, 0xFFE),  # poll without a limit: the same again
        (interrupted(7, 516, rdx=0), 7, 0xFFE),  # nor does one that does not wait
        (interrupted(7, 516, rdx=100), (1 << 64) - 4, 0x1000),  # with a limit: EINTR
        (interrupted(202, 512), (1 << 64) - 4, 0x1000),  # a lock: EINTR, so that CPython looks up
        (interrupted(35, 516), (1 << 64) - 4, 0x1000),
        (interrupted(0, 11), (1 << 64) - 11, 0x1000),  # finished with EAGAIN: left alone
    ],
)
def test_a_system_call_goes_on_as_after_a_signal(before: ThreadState, rax: int, rip: int) -> None:
    after = resumption(before)
    assert (after["rax"], after["rip"]) == (rax, rip)


def test_a_call_that_a_look_made_the_kernel_restart_goes_on_as_the_call_that_it_was() -> None:
    endless = interrupted(7, 516, rdx=0xFFFFFFFF)
    after = resumption(same_call(interrupted(219, 516, rdx=0xFFFFFFFF), endless))
    assert (after["rax"], after["rip"]) == (7, 0xFFE)
    for other in (interrupted(0, 512, rdx=0xFFFFFFFF), interrupted(219, 516, rdx=100)):
        with pytest.raises(NotNow):
            same_call(other, endless)


def test_a_frame_lies_below_the_stack_and_is_aligned_like_a_call() -> None:
    before = state(orig_rax=(1 << 64) - 1, rdi=1, eflags=0x746)
    frame = build(before, [Call(0x5000, (8, 9)), Call(0x6000)], restorer=0x7000, layout=xsave_layout())
    top = before.registers["rsp"] - 128
    assert frame.address + len(frame.content) <= top
    assert frame.registers["rsp"] == frame.address and frame.registers["rsp"] % 16 == 8
    assert (frame.registers["rip"], frame.registers["rdi"], frame.registers["rsi"]) == (0x5000, 8, 9)
    assert frame.registers["eflags"] == 0x246
    assert frame.content.count((0x7000).to_bytes(8, "little")) == 2


def test_errno_is_put_back_behind_the_calls() -> None:
    before = state(orig_rax=(1 << 64) - 1)
    saved = SavedErrno(0x9000, b"\x01\x02\x03\x04", swab=0x8000)
    frame = build(before, [Call(0x5000)], restorer=0x7000, layout=xsave_layout(), saved_errno=saved)
    at = frame.content.index(b"\x02\x01\x04\x03") + frame.address
    assert frame.registers["rip"] == 0x5000
    # In the frame that the first call returns into: rdi, rsi, (rbp, rbx,) rdx, (rax, rcx, rsp,) rip of the next call.
    words = struct.unpack(f"<{len(frame.content) // 8}Q", frame.content[: len(frame.content) // 8 * 8])
    place = words.index(0x8000) - 8
    assert words[place : place + 2] == (at, 0x9000) and words[place + 4] == 4
