"""What the small functions of CPython that are read from outside look like in x86-64 machine code."""

from __future__ import annotations

import re

# endbr64; push %rbp, mov %rsp,%rbp; sub $8,%rsp
PROLOGUE = rb"(?:\xf3\x0f\x1e\xfa)?(?:\x55\x48\x89\xe5)?(?:\x48\x83\xec\x08)?"
LONGEST_FUNCTION = 40


def relative(start: int, match: re.Match[bytes]) -> int:
    """The address that the displacement `a`, from the next instruction, means in a function that begins at `start`."""
    return start + match.end("a") + signed(match["a"])


def signed(raw: bytes) -> int:
    """The number in these bytes, the lowest first."""
    return int.from_bytes(raw, "little", signed=True)
