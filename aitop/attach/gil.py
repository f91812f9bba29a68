"""Whether a stopped thread holds the GIL, read from outside.

CPython has one small function that returns the current thread state. Its few instructions say where that
pointer is kept in this very build; the layouts of CPython's own structures need not be known.
"""

from __future__ import annotations

import re
import struct

from aitop.attach.memory import Memory
from aitop.attach.python_image import PythonImage
from aitop.attach.x86_code import LONGEST_FUNCTION, PROLOGUE, relative, signed

# Up to 3.11 the pointer is that of whichever thread holds the GIL; its structure holds that thread's
# pthread_self(), which is the base of its fs segment, within this many bytes.
THREAD_STATE_SIZE = 512
FIRST_PER_THREAD = (3, 12)

# mov d(%rip),%rax; mov d(%rax),%rax
_THROUGH_TABLE = re.compile(
    PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})(?:\x48\x8b\x80(?P<b>.{4})|\x48\x8b\x40(?P<c>.))[\xc3\x5d]", re.S
)
# mov d(%rip),%rax
_DIRECT = re.compile(PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})[\xc3\x5d]", re.S)
# lea d(%rip),%rdi; call __tls_get_addr; mov (%rax),%rax
_TLS_GENERAL = re.compile(
    PROLOGUE + rb"\x66\x48\x8d\x3d(?P<a>.{4})\x66(?:\x66\x48\xe8|\x48\xff\x15).{4}\x48\x8b\x00", re.S
)
# mov d(%rip),%rax; mov %fs:(%rax),%rax
_TLS_INITIAL = re.compile(PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})\x64\x48\x8b\x00[\xc3\x5d]", re.S)
# mov %fs:d,%rax
_TLS_LOCAL = re.compile(PROLOGUE + rb"\x64\x48\x8b\x04\x25(?P<a>.{4})[\xc3\x5d]", re.S)


def holds_gil(memory: Memory, python: PythonImage, fs_base: int) -> bool | None:
    """Whether the thread whose fs segment begins at `fs_base` holds the GIL; None where this build does not tell."""
    current = current_thread_state(memory, python, fs_base)
    if current is None or current == 0:
        return None if current is None else False
    if python.version >= FIRST_PER_THREAD:
        return True
    return fs_base.to_bytes(8, "little") in memory.read(current, THREAD_STATE_SIZE)


def current_thread_state(memory: Memory, python: PythonImage, fs_base: int) -> int | None:
    """What `_PyThreadState_UncheckedGet` would return in that thread, None where its code is not understood."""
    symbol = python.symbols.get("PyThreadState_GetUnchecked") or python.symbols.get("_PyThreadState_UncheckedGet")
    if symbol is None:
        return None
    start, code = symbol.address, memory.read(symbol.address, LONGEST_FUNCTION)
    if match := _THROUGH_TABLE.match(code):
        offset = signed(match["b"] or match["c"])
        return memory.read_word(memory.read_word(relative(start, match)) + offset)
    if match := _DIRECT.match(code):
        return memory.read_word(relative(start, match))
    if match := _TLS_GENERAL.match(code):
        module, offset = struct.unpack("<QQ", memory.read(relative(start, match), 16))
        # The thread's vector of TLS blocks: two words for each module in glibc, one in musl.
        entry = 8 if python.libc.is_musl else 16
        block = memory.read_word(memory.read_word(fs_base + 8) + entry * module)
        return memory.read_word(block + offset) if block and block + 1 < 1 << 64 else 0
    if match := _TLS_INITIAL.match(code):
        offset = signed(memory.read(relative(start, match), 8))
        return memory.read_word(fs_base + offset)
    if match := _TLS_LOCAL.match(code):
        return memory.read_word(fs_base + signed(match["a"]))
    return None
