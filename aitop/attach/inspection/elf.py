"""Looks up symbols of a loaded ELF file in a process's memory.

Reading the memory instead of the file also works if the file was deleted or replaced, or is in another mount namespace.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import msgspec

PT_LOAD, PT_DYNAMIC = 1, 2
PF_EXECUTE, PF_WRITE = 1, 2
DT_STRTAB, DT_SYMTAB, DT_GNU_HASH = 5, 6, 0x6FFFFEF5
PAGE = 4096
LONGEST_CHAIN = 100_000


class NotElfError(Exception):
    """There is no readable 64-bit ELF image at that address."""


class Span(msgspec.Struct, frozen=True):
    """A range of the process's memory, such as a symbol's: address, and size in bytes."""

    address: int
    size: int


class Segment(msgspec.Struct, frozen=True):
    """One program header: kind, flags, offset in the file, link-time address, size in memory."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int


class ElfImage:
    """One loaded 64-bit ELF file; `base` is where its first page is mapped.

    `read(address, size)` reads the process's memory and raises OSError if it cannot.
    """

    def __init__(self, read: Callable[[int, int], bytes], base: int) -> None:
        self._read = read
        try:
            header = read(base, 64)
            if header[:6] != b"\x7fELF\x02\x01":
                raise NotElfError(f"no ELF image at {base:#x}")
            (table,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            if size != 56:
                raise NotElfError(f"program headers of {size} bytes")
            raw = read(base + table, size * count)
        except OSError as error:
            raise NotElfError(str(error)) from error
        self.segments = [
            Segment(kind, flags, offset, address, in_memory)
            for kind, flags, offset, address, _, _, in_memory, _ in struct.iter_unpack("<IIQQQQQQ", raw)
        ]
        first = next((s.address for s in self.segments if s.kind == PT_LOAD and s.offset == 0), 0)
        self.bias = base - first // PAGE * PAGE

    def symbols(self, names: Iterable[str]) -> dict[str, Span]:
        """Return those of the symbols `names` that this file defines and exports."""
        try:
            table = self._dynamic()
            if not {DT_STRTAB, DT_SYMTAB, DT_GNU_HASH} <= table.keys():
                return {}
            lookup = _GnuHash(self._read, table[DT_GNU_HASH], table[DT_SYMTAB], table[DT_STRTAB])
            hits = {name: lookup.find(name) for name in names}
        except OSError:
            return {}
        return {name: Span(self.bias + hit[0], hit[1]) for name, hit in hits.items() if hit is not None}

    def ends(self, *, writable: bool) -> list[int]:
        """Return, for each segment of writable data or of constants, the address just past its last byte."""
        wanted, unwanted = (PF_WRITE, 0) if writable else (0, PF_WRITE | PF_EXECUTE)
        return [
            self.bias + s.address + s.size
            for s in self.segments
            if s.kind == PT_LOAD and s.flags & wanted == wanted and not s.flags & unwanted and s.size
        ]

    def _dynamic(self) -> dict[int, int]:
        """Return the dynamic table: tag → address in the process, whether or not the loader has relocated the entry."""
        segment = next((s for s in self.segments if s.kind == PT_DYNAMIC), None)
        if segment is None:
            return {}
        table: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<QQ", self._read(self.bias + segment.address, segment.size // 16 * 16)):
            if tag == 0:
                break
            table.setdefault(tag, value if value > self.bias else value + self.bias)
        return table


class _GnuHash:
    """Looks names up in a DT_GNU_HASH table."""

    def __init__(self, read: Callable[[int, int], bytes], table: int, symbols: int, strings: int) -> None:
        self._read, self._symbols, self._strings = read, symbols, strings
        self._buckets_n, self._first, bloom, _ = struct.unpack("<IIII", read(table, 16))
        self._buckets = table + 16 + 8 * bloom
        self._chain = self._buckets + 4 * self._buckets_n

    def find(self, name: str) -> tuple[int, int] | None:
        """Return the link-time address and size of a defined symbol, None if there is none."""
        if not self._buckets_n:
            return None
        wanted = gnu_hash(name)
        index = self._word(self._buckets + 4 * (wanted % self._buckets_n))
        if index < self._first:
            return None
        for i in range(index, index + LONGEST_CHAIN):
            seen = self._word(self._chain + 4 * (i - self._first))
            if seen | 1 == wanted | 1 and (hit := self._entry(i, name)) is not None:
                return hit
            if seen & 1:
                return None
        return None

    def _entry(self, index: int, name: str) -> tuple[int, int] | None:
        at, _, _, section, value, size = struct.unpack("<IBBHQQ", self._read(self._symbols + 24 * index, 24))
        text = name.encode() + b"\0"
        return (value, size) if section and self._read(self._strings + at, len(text)) == text else None

    def _word(self, address: int) -> int:
        return int.from_bytes(self._read(address, 4), "little")


def gnu_hash(name: str) -> int:
    """Return the hash of a symbol's name in a DT_GNU_HASH table."""
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
