"""Where CPython's functions lie in a running process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aitop.attach.elf import PAGE, ElfImage, NotElfError, Symbol
from aitop.attach.initialized import initialized_at
from aitop.attach.libc_image import LibcImage, locate_libc
from aitop.attach.memory import Mapping, Memory, mappings
from aitop.attach.refusal import AttachRefused

NEEDED = (
    *("Py_AddPendingCall", "Py_MakePendingCalls", "PyRun_SimpleString", "PyGILState_Ensure", "PyGILState_Release"),
    "Py_IsInitialized",
)
# The last two name one function before and after 3.13.
WANTED = (*NEEDED, "_PyRuntime", "Py_Version", "Py_NewRef", "_PyThreadState_UncheckedGet", "PyThreadState_GetUnchecked")
OLDEST, NEWEST = (3, 10), (3, 14)
LONGEST_LINE = 640
MARK = b"#aitop\n"
MOST_STACK_PADDING = 8192
ARGUMENTS_START_FIELD = 45


@dataclass(frozen=True)
class Scratch:
    """Room in the target for the injected text: address and size in bytes."""

    address: int
    size: int


@dataclass(frozen=True)
class PythonImage:
    """CPython as it is loaded in one process.

    `version` is (major, minor); `scratch` is None where there is no room. `initialized` is where the number lies that
    is 0 before the interpreter has begun and from its end on, None where that is not known.
    """

    version: tuple[int, int]
    symbols: dict[str, Symbol]
    libc: LibcImage
    scratch: Scratch | None
    initialized: int | None

    def address(self, name: str) -> int:
        return self.symbols[name].address


def locate_python(pid: int, memory: Memory) -> PythonImage:
    """Finds CPython in the process, or raises AttachRefused with the reason why it cannot be entered."""
    maps = list(mappings(pid))
    files = _loaded_files(maps)
    program = os.readlink(f"/proc/{pid}/exe")
    symbols, path = _find_interpreter(pid, memory, files, program)
    version = _version(memory, symbols)
    if not OLDEST <= version <= NEWEST:
        raise AttachRefused(
            "absent",
            f"process {pid} runs Python {version[0]}.{version[1]}, and the hook knows 3.10 to 3.14",
            "run the job with a Python from 3.10 to 3.14",
        )
    libc = locate_libc(memory, maps, program)
    # musl gives the padding behind each library's data to malloc.
    scratch = None if libc.is_musl else _find_scratch(memory, maps, files, path, "rw")
    scratch = scratch or _find_stack_padding(pid, memory, maps) or _find_scratch(memory, maps, files, path, "r--p")
    return PythonImage(version, symbols, libc, scratch, initialized_at(memory, symbols["Py_IsInitialized"]))


def _loaded_files(maps: Sequence[Mapping]) -> dict[str, int]:
    """Path of each mapped file → address of its first page."""
    files: dict[str, int] = {}
    for mapping in maps:
        if mapping.offset == 0 and mapping.path.startswith("/"):
            files.setdefault(mapping.path, mapping.start)
    return files


def _find_interpreter(pid: int, memory: Memory, files: dict[str, int], program: str) -> tuple[dict[str, Symbol], str]:
    """CPython's symbols and the file that holds them: libpython, or the program itself."""
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


def _find_scratch(
    memory: Memory, maps: Sequence[Mapping], files: dict[str, int], first: str, permissions: str
) -> Scratch | None:
    """The unused end of the last page of a library's data ("rw") or constants ("r--p"), the interpreter's before all.

    Nothing is allocated in the target, and a page of constants becomes the target's own copy as it is written. Room
    that is all zero is preferred to room that still holds the text of an aitop that was killed.
    """
    libraries = [first, *(path for path in files if ".so" in os.path.basename(path) and "ld-" not in path)]
    used: Scratch | None = None
    for path in libraries:
        for scratch in _page_ends(memory, maps, files[path], permissions):
            content = memory.read(scratch.address, scratch.size)
            if not content.strip(b"\0"):
                return scratch
            # The first byte is the first to go when a line is wiped.
            if content[1:].startswith(MARK[1:]) and used is None:
                used = scratch
    return used


def _page_ends(memory: Memory, maps: Sequence[Mapping], base: int, permissions: str) -> Iterator[Scratch]:
    try:
        image = ElfImage(memory.read, base)
        ends = image.ends_of_writable_data() if permissions == "rw" else image.ends_of_constants()
    except NotElfError:
        return
    for end in ends:
        start = (end + 63) & ~63
        size = -start % PAGE
        inside = any(m.start <= start and start + size <= m.end and m.permissions.startswith(permissions) for m in maps)
        if size >= LONGEST_LINE and inside:
            yield Scratch(start, size)


def _find_stack_padding(pid: int, memory: Memory, maps: Sequence[Mapping]) -> Scratch | None:
    """The unused bytes between the program's arguments and what the kernel put below them.

    The kernel leaves a random number of them, up to 8192, to shift the stack; nobody ever uses them.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        end = int(file.read().rsplit(")", 1)[1].split()[ARGUMENTS_START_FIELD])
    stack = next((m for m in maps if m.start <= end < m.end and m.permissions.startswith("rw")), None)
    if stack is None:
        return None
    start = max(stack.start, end - MOST_STACK_PADDING)
    content = memory.read(start, end - start)
    # What an aitop that was killed left there is found again by its mark.
    left = content.rfind(MARK[1:])
    used = left - 1 if left > 0 else len(content.rstrip(b"\0"))
    first = (start + used + 63) & ~63
    return Scratch(first, end - first) if end - first >= LONGEST_LINE else None
