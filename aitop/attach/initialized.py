"""Whether an interpreter has begun and does not end yet, read from outside.

At its end CPython frees what a call would use, long before its process is gone: libraries have a lot to tidy up. A
call that comes then is a SIGSEGV for a run that had just finished.
"""

from __future__ import annotations

import re

from aitop.attach.elf import Symbol
from aitop.attach.memory import Memory
from aitop.attach.x86_code import LONGEST_FUNCTION, PROLOGUE, relative, signed

# mov d(%rip),%rax; mov d(%rax),%eax
_THROUGH_TABLE = re.compile(
    PROLOGUE + rb"\x48\x8b\x05(?P<a>.{4})(?:\x8b\x80(?P<b>.{4})|\x8b\x40(?P<c>.)|\x8b\x00)[\xc3\x5d]", re.S
)
# mov d(%rip),%eax
_DIRECT = re.compile(PROLOGUE + rb"\x8b\x05(?P<a>.{4})[\xc3\x5d]", re.S)


def initialized_at(memory: Memory, function: Symbol) -> int | None:
    """Where the number lies that `Py_IsInitialized`, the `function`, returns; None where its code is not understood."""
    start, code = function.address, memory.read(function.address, LONGEST_FUNCTION)
    if match := _THROUGH_TABLE.match(code):
        return memory.read_word(relative(start, match)) + signed(match["b"] or match["c"] or b"")
    if match := _DIRECT.match(code):
        return relative(start, match)
    return None
