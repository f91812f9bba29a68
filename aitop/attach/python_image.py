"""Where CPython's functions lie in a running process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aitop.attach.elf import PAGE, ElfImage, NotElfError, Symbol
from aitop.attach.memory import Mapping, Memory, mappings
from aitop.attach.refusal import AttachRefused

NEEDED = ("Py_AddPendingCall", "Py_MakePendingCalls", "PyRun_SimpleString", "PyGILState_Ensure", "PyGILState_Release")
# The last two name one function before and after 3.13.
WANTED = (*NEEDED, "_PyRuntime", "Py_Version", "Py_NewRef", "_PyThreadState_UncheckedGet", "PyThreadState_GetUnchecked")
OLDEST, NEWEST = (3, 10), (3, 14)
# mov $15,%rax; syscall: what every C library has signal handlers return to.
SIGRETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
SMALLEST_SCRATCH = 256
MARK = b"#aitop\n"


@dataclass(frozen=True)
class Scratch:
    """Room in the target for the injected text: address and size in bytes."""

    address: int
    size: int


@dataclass(frozen=True)
class PythonImage:
    """CPython as it is loaded in one process. `version` is (major, minor)."""

    version: tuple[int, int]
    symbols: dict[str, Symbol]
    scratch: Scratch
    restorer: int

    def address(self, name: str) -> int:
        return self.symbols[name].address


def locate_python(pid: int, memory: Memory) -> PythonImage:
    """Finds CPython in the process, or raises AttachRefused with the reason why it cannot be entered."""
    maps = list(mappings(pid))
    files = _loaded_files(maps)
    symbols, path = _find_interpreter(pid, memory, files)
    version = _version(memory, symbols)
    if not OLDEST <= version <= NEWEST:
        raise AttachRefused(
            "absent",
            f"process {pid} runs Python {version[0]}.{version[1]}, and the hook knows 3.10 to 3.14",
            "run the job with a Python from 3.10 to 3.14",
        )
    libc = [path for path in files if _is_libc(path)]
    if any("musl" in path for path in libc):
        # musl hands the padding behind each library's data to malloc.
        raise AttachRefused("absent", f"process {pid} uses musl, where the hook has no safe place", "aitop run -- CMD")
    restorer = _find_restorer(memory, maps, libc)
    scratch = _find_scratch(memory, maps, files, path)
    if restorer is None or scratch is None:
        lack = "no return path for signals" if restorer is None else "no room for the hook's first line"
        raise AttachRefused("absent", f"process {pid} has {lack}", "aitop run -- CMD")
    return PythonImage(version, symbols, scratch, restorer)


def _loaded_files(maps: Sequence[Mapping]) -> dict[str, int]:
    """Path of each mapped file → address of its first page."""
    files: dict[str, int] = {}
    for mapping in maps:
        if mapping.offset == 0 and mapping.path.startswith("/"):
            files.setdefault(mapping.path, mapping.start)
    return files


def _find_interpreter(pid: int, memory: Memory, files: dict[str, int]) -> tuple[dict[str, Symbol], str]:
    """CPython's symbols and the file that holds them: libpython, or the program itself."""
    program = os.readlink(f"/proc/{pid}/exe")
    candidates = [path for path in files if path == program or "python" in os.path.basename(path)]
    for path in sorted(candidates, key=lambda path: ("libpython" not in path, path != program)):
        try:
            symbols = ElfImage(memory.read, files[path]).symbols(WANTED)
        except NotElfError:
            continue
        if all(name in symbols for name in NEEDED):
            return symbols, path
    if candidates and any("libpython" in path for path in candidates):
        raise AttachRefused("absent", f"the Python of process {pid} does not export its functions", "aitop run -- CMD")
    raise AttachRefused("absent", f"process {pid} is not a Python process", "give the pid of the Python process")


def _version(memory: Memory, symbols: dict[str, Symbol]) -> tuple[int, int]:
    """The version of the interpreter: `Py_Version` tells since 3.11, `Py_NewRef` came with 3.10."""
    if (symbol := symbols.get("Py_Version")) is not None:
        number = memory.read_word(symbol.address)
        return number >> 24 & 0xFF, number >> 16 & 0xFF
    return (3, 10) if "Py_NewRef" in symbols else (3, 9)


def _is_libc(path: str) -> bool:
    return os.path.basename(path).startswith(("libc.so", "libc-2", "ld-musl", "libc.musl"))


def _find_restorer(memory: Memory, maps: Sequence[Mapping], libc: Sequence[str]) -> int | None:
    for mapping in maps:
        if mapping.path in libc and "x" in mapping.permissions:
            at = memory.read(mapping.start, mapping.end - mapping.start).find(SIGRETURN)
            if at >= 0:
                return mapping.start + at
    return None


def _find_scratch(memory: Memory, maps: Sequence[Mapping], files: dict[str, int], first: str) -> Scratch | None:
    """The unused end of the last page of a library's data, first of all the interpreter's.

    Nothing is allocated in the target. Room that is all zero is preferred to room that still holds the
    text of an aitop that was killed.
    """
    libraries = [first, *(path for path in files if ".so" in os.path.basename(path) and "ld-" not in path)]
    used: Scratch | None = None
    for path in libraries:
        for scratch in _page_ends(memory, maps, files[path]):
            content = memory.read(scratch.address, scratch.size)
            if not content.strip(b"\0"):
                return scratch
            # The first byte is the first to go when a line is wiped.
            if content[1:].startswith(MARK[1:]) and used is None:
                used = scratch
    return used


def _page_ends(memory: Memory, maps: Sequence[Mapping], base: int) -> Iterator[Scratch]:
    try:
        ends = ElfImage(memory.read, base).ends_of_writable_data()
    except NotElfError:
        return
    for end in ends:
        start = (end + 63) & ~63
        size = -start % PAGE
        inside = any(m.start <= start and start + size <= m.end and m.permissions.startswith("rw") for m in maps)
        if size >= SMALLEST_SCRATCH and inside:
            yield Scratch(start, size)
