"""Finds where this very build of CPython and libc keeps certain variables, from the x86-64 code of small C functions.

So the layout of CPython's own structures need not be known. The functions here return None if they do not recognise the
code.
"""

from __future__ import annotations

import re
import struct

from aitop.attach.inspection.elf import Span
from aitop.attach.inspection.process_memory import Memory

LONGEST_FUNCTION = 40
# endbr64; push %rbp, mov %rsp,%rbp; sub $8,%rsp
_PROLOGUE = rb"(?:\xf3\x0f\x1e\xfa)?(?:\x55\x48\x89\xe5)?(?:\x48\x83\xec\x08)?"

# Py_IsInitialized:
# mov d(%rip),%rax; mov d(%rax),%eax
_FLAG_IN_TABLE = re.compile(
    _PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})(?:\x8b\x80(?P<b>.{4})|\x8b\x40(?P<c>.)|\x8b\x00)[\xc3\x5d]", re.S
)
# mov d(%rip),%eax
_FLAG = re.compile(_PROLOGUE + rb"\x8b\x05(?P<a>.{4})[\xc3\x5d]", re.S)

# PyThreadState_GetUnchecked, which was _PyThreadState_UncheckedGet:
# mov d(%rip),%rax; mov d(%rax),%rax
_POINTER_IN_TABLE = re.compile(
    _PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})(?:\x48\x8b\x80(?P<b>.{4})|\x48\x8b\x40(?P<c>.))[\xc3\x5d]", re.S
)
# mov d(%rip),%rax
_POINTER = re.compile(_PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})[\xc3\x5d]", re.S)
# lea d(%rip),%rdi; call __tls_get_addr; mov (%rax),%rax
_TLS_GENERAL = re.compile(
    _PROLOGUE + rb"\x66\x48\x8d\x3d(?P<a>.{4})\x66(?:\x66\x48\xe8|\x48\xff\x15).{4}\x48\x8b\x00", re.S
)
# mov d(%rip),%rax; mov %fs:(%rax),%rax
_TLS_INITIAL = re.compile(_PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})\x64\x48\x8b\x00[\xc3\x5d]", re.S)
# mov %fs:d,%rax
_TLS_LOCAL = re.compile(_PROLOGUE + rb"\x64\x48\x8b\x04\x25(?P<a>.{4})[\xc3\x5d]", re.S)

# __errno_location:
# glibc: mov d(%rip),%rax; add %fs:0,%rax; ret
_ERRNO_GLIBC = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?\x48\x8b\x05(?P<a>.{4})\x64\x48\x03\x04\x25\x00{4}\xc3", re.S)
# musl: mov %fs:0,%rax; add $n,%rax; ret
_ERRNO_MUSL = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?\x64\x48\x8b\x04\x25\x00{4}\x48(?:\x83\xc0(?P<byte>.)|\x05(?P<int>.{4}))\xc3",
    re.S,
)


def initialized_at(memory: Memory, function: Span) -> int | None:
    """Return the address of the number that `Py_IsInitialized` returns."""
    start, code = function.address, memory.read(function.address, LONGEST_FUNCTION)
    if match := _FLAG_IN_TABLE.match(code):
        return memory.read_word(_relative(start, match)) + _signed(match["b"] or match["c"] or b"")
    if match := _FLAG.match(code):
        return _relative(start, match)
    return None


def current_thread_state(memory: Memory, function: Span, fs_base: int, *, is_musl: bool) -> int | None:
    """Return what `PyThreadState_GetUnchecked` would return in the thread whose fs segment begins at `fs_base`.

    That is the address of its thread state, 0 if it has none at the moment.
    """
    start, code = function.address, memory.read(function.address, LONGEST_FUNCTION)
    if match := _POINTER_IN_TABLE.match(code):
        offset = _signed(match["b"] or match["c"])
        return memory.read_word(memory.read_word(_relative(start, match)) + offset)
    if match := _POINTER.match(code):
        return memory.read_word(_relative(start, match))
    if match := _TLS_GENERAL.match(code):
        module, offset = struct.unpack("<QQ", memory.read(_relative(start, match), 16))
        # The thread's vector of TLS blocks (dtv) has two words for each module in glibc, and one in musl.
        entry = 8 if is_musl else 16
        block = memory.read_word(memory.read_word(fs_base + 8) + entry * module)
        return memory.read_word(block + offset) if block and block + 1 < 1 << 64 else 0
    if match := _TLS_INITIAL.match(code):
        offset = _signed(memory.read(_relative(start, match), 8))
        return memory.read_word(fs_base + offset)
    if match := _TLS_LOCAL.match(code):
        return memory.read_word(fs_base + _signed(match["a"]))
    return None


def errno_offset(memory: Memory, function: Span) -> int | None:
    """Return the offset of a thread's errno from its fs base, read from the code of `__errno_location`."""
    start, code = function.address, memory.read(function.address, LONGEST_FUNCTION)
    if match := _ERRNO_GLIBC.match(code):
        return _signed(memory.read(_relative(start, match), 8))
    if match := _ERRNO_MUSL.match(code):
        return _signed(match["byte"] or match["int"])
    return None


def _relative(start: int, match: re.Match[bytes]) -> int:
    """Return the address that the rip-relative displacement `a` refers to, in a function at `start`."""
    return start + match.end("a") + _signed(match["a"])


def _signed(raw: bytes) -> int:
    """Return the signed number in these bytes (little-endian)."""
    return int.from_bytes(raw, "little", signed=True)
