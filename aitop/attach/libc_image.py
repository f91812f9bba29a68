"""The few things of the target's C library that a synthetic signal frame needs, on x86-64."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from aitop.attach.elf import ElfImage, NotElfError
from aitop.attach.memory import Mapping, Memory

# mov $15,%rax; syscall: what every C library has signal handlers return to.
SIGRETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
LONGEST_FUNCTION = 32
# glibc: mov d(%rip),%rax; add %fs:0,%rax; ret
_ERRNO_GLIBC = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?\x48\x8b\x05(?P<at>.{4})\x64\x48\x03\x04\x25\x00{4}\xc3", re.S)
# musl: mov %fs:0,%rax; add $n,%rax; ret
_ERRNO_MUSL = re.compile(
    rb"(?:\xf3\x0f\x1e\xfa)?\x64\x48\x8b\x04\x25\x00{4}\x48(?:\x83\xc0(?P<byte>.)|\x05(?P<int>.{4}))\xc3",
    re.S,
)


@dataclass(frozen=True)
class ErrnoPlace:
    """Where each thread's errno is: so many bytes from its fs base. `swab` is the address of the C function."""

    offset: int
    swab: int


@dataclass(frozen=True)
class LibcImage:
    """`restorer` is the address of the return path of signal handlers; `is_musl` tells the two libraries apart.

    What was not found is None.
    """

    restorer: int | None
    errno: ErrnoPlace | None
    is_musl: bool


def locate_libc(memory: Memory, maps: Sequence[Mapping], program: str) -> LibcImage:
    """Finds the C library, which may be linked into the `program`."""
    shared = {mapping.path for mapping in maps if _is_libc(mapping.path)}
    paths = shared or {program}
    first = {mapping.path: mapping.start for mapping in reversed(maps) if mapping.offset == 0}
    errno = next((place for path in paths if (place := _find_errno(memory, first.get(path, 0)))), None)
    # A program without a shared library has static musl in it, or static glibc: only the former is common.
    is_musl = not shared or any("musl" in path for path in shared)
    return LibcImage(_find_restorer(memory, maps, paths), errno, is_musl)


def _is_libc(path: str) -> bool:
    return os.path.basename(path).startswith(("libc.so", "libc-2", "ld-musl", "libc.musl"))


def _find_restorer(memory: Memory, maps: Sequence[Mapping], paths: set[str]) -> int | None:
    for mapping in maps:
        if mapping.path in paths and "x" in mapping.permissions:
            at = memory.read(mapping.start, mapping.end - mapping.start).find(SIGRETURN)
            if at >= 0:
                return mapping.start + at
    return None


def _find_errno(memory: Memory, base: int) -> ErrnoPlace | None:
    try:
        symbols = ElfImage(memory.read, base).symbols(("__errno_location", "swab"))
        if len(symbols) != 2:
            return None
        start = symbols["__errno_location"].address
        code = memory.read(start, LONGEST_FUNCTION)
        if match := _ERRNO_GLIBC.match(code):
            slot = start + match.end("at") + int.from_bytes(match["at"], "little", signed=True)
            offset = int.from_bytes(memory.read(slot, 8), "little", signed=True)
        elif match := _ERRNO_MUSL.match(code):
            offset = int.from_bytes(match["byte"] or match["int"], "little", signed=True)
        else:
            return None
    except (NotElfError, OSError):
        return None
    return ErrnoPlace(offset, symbols["swab"].address)
