"""Symbols of a loaded library, read from our own memory image."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

from aitop.attach import held_libc
from aitop.attach.inspection import python_image
from aitop.attach.inspection.elf import ElfImage, NotElfError, gnu_hash
from aitop.attach.inspection.process_memory import Memory, mappings
from aitop.attach.inspection.python_image import NEEDED, _find_scratch, locate_python
from aitop.attach.refusal import AttachRefused


@pytest.fixture
def memory() -> Iterator[Memory]:
    with Memory(os.getpid()) as own:
        yield own


def address_of(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def test_functions_are_where_the_dynamic_linker_put_them(memory: Memory) -> None:
    python = locate_python(os.getpid(), memory)
    assert {name: python.address(name) for name in NEEDED} == {name: address_of(name) for name in NEEDED}


def test_scratch_is_writable_unused_and_next_to_no_symbol(memory: Memory) -> None:
    scratch = locate_python(os.getpid(), memory).scratch
    assert memory.read(scratch.address, scratch.size) == bytes(scratch.size)
    home = next(m for m in mappings(os.getpid()) if m.start <= scratch.address < m.end)
    assert home.permissions.startswith("rw") and scratch.address + scratch.size <= home.end


def test_symbol_tables_without_an_end_are_not_searched_for_long(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_image, "MOST_READS", 20)
    with pytest.raises(AttachRefused, match="reading them did not end"):
        locate_python(os.getpid(), memory)


def test_our_other_threads_wait_for_a_read_only_while_a_thread_of_the_process_is_stopped(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    monkeypatch.setattr(held_libc, "read", lambda fd, size, address: held.append(address) or bytes(size))
    word = ctypes.create_string_buffer(b"seventy", 8)
    at = ctypes.addressof(word)
    assert memory.read(at, 8) == b"seventy\0" and not held
    with memory.holding_gil():
        memory.read(at, 8)
    assert held == [at]
    assert memory.read(at, 8) == b"seventy\0" and held == [at]


def test_an_unknown_symbol_is_not_found(memory: Memory) -> None:
    libc = next(m for m in mappings(os.getpid()) if "libc.so" in m.path and m.offset == 0)
    assert list(ElfImage(memory.read, libc.start).symbols(["mmap", "no_such_function"])) == ["mmap"]


def test_no_image_no_symbols(memory: Memory) -> None:
    heap = ctypes.create_string_buffer(4096)
    with pytest.raises(NotElfError):
        ElfImage(memory.read, ctypes.addressof(heap))
    with pytest.raises(NotElfError):
        ElfImage(memory.read, 0)


def test_hash_of_a_name() -> None:
    assert gnu_hash("printf") == 0x156B2BB8
    assert gnu_hash("") == 5381


def test_the_end_of_constants_holds_a_line_and_nobody_sees_it_in_the_file(memory: Memory) -> None:
    program = os.readlink("/proc/self/exe")
    maps = list(mappings(os.getpid()))
    files = {m.path: m.start for m in reversed(maps) if m.offset == 0 and m.path.startswith("/")}
    scratch = _find_scratch(memory, maps, files, program, "r--p")
    assert scratch is not None and memory.read(scratch.address, scratch.size) == bytes(scratch.size)
    home = next(m for m in maps if m.start <= scratch.address < m.end)
    assert home.permissions == "r--p" and scratch.address + scratch.size <= home.end
    line = b"#aitop\npass"
    memory.write(scratch.address, line)
    try:
        assert ctypes.string_at(scratch.address, len(line)) == line
        with open(home.path, "rb") as file:
            file.seek(home.offset + scratch.address - home.start)
            assert file.read(len(line)).strip(b"\0") == b""
    finally:
        memory.write(scratch.address, bytes(len(line)))
