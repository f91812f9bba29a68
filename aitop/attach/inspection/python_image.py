"""Finds CPython and its C library in a running process: functions, variables, and memory for the injected line."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

import msgspec

from aitop.attach.inspection.elf import PAGE, ElfImage, NotElfError, Span
from aitop.attach.inspection.machine_code import current_thread_state, errno_offset, initialized_at
from aitop.attach.inspection.process_memory import Mapping, Memory, mappings
from aitop.attach.refusal import AttachRefused

NEEDED = ("Py_AddPendingCall", "PyRun_SimpleString", "PyGILState_Ensure", "PyGILState_Release", "Py_IsInitialized")
# The last two are the names of one function up to 3.12 and since 3.13.
WANTED = (*NEEDED, "_PyRuntime", "Py_Version", "Py_NewRef", "_PyThreadState_UncheckedGet", "PyThreadState_GetUnchecked")
OLDEST, NEWEST = (3, 10), (3, 14)
LONGEST_LINE = 640
MARK = b"#aitop\n"
MOST_STACK_PADDING = 8192
ARGUMENTS_START_FIELD = 45
# Up to 3.11 "the current thread state" is that of whichever thread holds the GIL. Within this many bytes of its start,
# the structure holds that thread's pthread_self(), which equals the base of its fs segment.
THREAD_STATE_SIZE = 512
FIRST_WITH_OWN_THREAD_STATES = (3, 12)
# It takes about a hundred reads to find all functions, and some more for each other file with Python in its name. The
# tables that say where to read next are the target's own, and may lead anywhere.
MOST_READS = 50_000
# mov $15,%rax; syscall (rt_sigreturn): the code that signal handlers return to in every C library.
SIGRETURN = b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"


class ErrnoPlace(msgspec.Struct, frozen=True):
    """Where each thread's errno is: `offset` bytes from its fs base. `swab` is the address of that C function."""

    offset: int
    swab: int


class LibcImage(msgspec.Struct, frozen=True):
    """The C library as it is loaded. `restorer` is the address of the code that signal handlers return to.

    None means not found.
    """

    restorer: int | None
    errno: ErrnoPlace | None
    is_musl: bool


class PythonImage(msgspec.Struct, frozen=True):
    """CPython as it is loaded in one process.

    `version` is (major, minor). `symbols` has those of WANTED that it exports. `scratch` is memory for the injected
    line, None if there is none. `initialized` is the address of a number that is 0 before the interpreter is
    initialised and again once it is being finalised, None if not known.
    """

    version: tuple[int, int]
    symbols: dict[str, Span]
    libc: LibcImage
    scratch: Span | None
    initialized: int | None

    def address(self, name: str) -> int:
        return self.symbols[name].address

    def holds_gil(self, memory: Memory, fs_base: int) -> bool | None:
        """Return whether the stopped thread whose fs segment begins at `fs_base` holds the GIL; None if not known."""
        function = self.symbols.get("PyThreadState_GetUnchecked") or self.symbols.get("_PyThreadState_UncheckedGet")
        if function is None:
            return None
        current = current_thread_state(memory, function, fs_base, is_musl=self.libc.is_musl)
        if current is None or current == 0:
            return None if current is None else False
        if self.version >= FIRST_WITH_OWN_THREAD_STATES:
            return True
        return fs_base.to_bytes(8, "little") in memory.read(current, THREAD_STATE_SIZE)


def locate_python(pid: int, memory: Memory) -> PythonImage:
    """Find CPython in the process. Raises AttachRefused if there is none that can be entered."""
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
    # With musl the padding behind each library's data is no option, because musl gives it to malloc.
    scratch = None if libc.is_musl else _find_scratch(memory, maps, files, path, "rw")
    scratch = scratch or _find_stack_padding(pid, memory, maps) or _find_scratch(memory, maps, files, path, "r--p")
    return PythonImage(version, symbols, libc, scratch, initialized_at(memory, symbols["Py_IsInitialized"]))


def _loaded_files(maps: Sequence[Mapping]) -> dict[str, int]:
    """Return, by path, the address of the first page of each mapped file."""
    files: dict[str, int] = {}
    for mapping in maps:
        if mapping.offset == 0 and mapping.path.startswith("/"):
            files.setdefault(mapping.path, mapping.start)
    return files


def _find_interpreter(pid: int, memory: Memory, files: dict[str, int], program: str) -> tuple[dict[str, Span], str]:
    """Return CPython's symbols, and the path of the file that holds them: libpython, or the program itself."""
    candidates = [path for path in files if path == program or "python" in os.path.basename(path)]
    reads = itertools.count(1)

    def read(address: int, size: int) -> bytes:
        if next(reads) > MOST_READS:
            reason = f"the symbol tables of process {pid} are damaged: reading them did not end"
            raise AttachRefused("failed", reason, "aitop run -- CMD")
        return memory.read(address, size)

    for path in sorted(candidates, key=lambda path: ("libpython" not in path, path != program)):
        try:
            symbols = ElfImage(read, files[path]).symbols(WANTED)
        except NotElfError:
            continue
        if all(name in symbols for name in NEEDED):
            return symbols, path
    if candidates and any("libpython" in path for path in candidates):
        raise AttachRefused("absent", f"the Python of process {pid} does not export its functions", "aitop run -- CMD")
    raise AttachRefused("absent", f"process {pid} is not a Python process", "give the pid of the Python process")


def _version(memory: Memory, symbols: dict[str, Span]) -> tuple[int, int]:
    """Return the version of the interpreter: `Py_Version` holds it since 3.11, and `Py_NewRef` exists since 3.10."""
    if (symbol := symbols.get("Py_Version")) is not None:
        number = memory.read_word(symbol.address)
        return number >> 24 & 0xFF, number >> 16 & 0xFF
    return (3, 10) if "Py_NewRef" in symbols else (3, 9)


def _find_scratch(
    memory: Memory, maps: Sequence[Mapping], files: dict[str, int], first: str, permissions: str
) -> Span | None:
    """Return the unused end of the last page of a library's data ("rw") or constants ("r--p"), or None.

    The file `first`, which holds the interpreter, is tried first. Nothing is allocated in the target; a page of
    constants becomes the target's private copy when it is written. Memory that is all zero is preferred to memory that
    still holds the line of a killed aitop.
    """
    libraries = [first, *(path for path in files if ".so" in os.path.basename(path) and "ld-" not in path)]
    used: Span | None = None
    for path in libraries:
        for scratch in _page_ends(memory, maps, files[path], permissions):
            content = memory.read(scratch.address, scratch.size)
            if not content.strip(b"\0"):
                return scratch
            # A line is wiped first byte first, so the mark may lack that byte.
            if content[1:].startswith(MARK[1:]) and used is None:
                used = scratch
    return used


def _page_ends(memory: Memory, maps: Sequence[Mapping], base: int, permissions: str) -> Iterator[Span]:
    try:
        ends = ElfImage(memory.read, base).ends(writable=permissions == "rw")
    except NotElfError:
        return
    for end in ends:
        start = (end + 63) & ~63
        size = -start % PAGE
        inside = any(m.start <= start and start + size <= m.end and m.permissions.startswith(permissions) for m in maps)
        if size >= LONGEST_LINE and inside:
            yield Span(start, size)


def _find_stack_padding(pid: int, memory: Memory, maps: Sequence[Mapping]) -> Span | None:
    """Return the unused bytes of the stack just below the program's arguments, None if they are too few.

    The kernel leaves a random number of bytes there, up to 8192, to shift the stack. Nothing ever uses them.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        end = int(file.read().rsplit(")", 1)[1].split()[ARGUMENTS_START_FIELD])
    stack = next((m for m in maps if m.start <= end < m.end and m.permissions.startswith("rw")), None)
    if stack is None:
        return None
    start = max(stack.start, end - MOST_STACK_PADDING)
    content = memory.read(start, end - start)
    # The mark shows where a killed aitop has left its line. That may be overwritten.
    left = content.rfind(MARK[1:])
    used = left - 1 if left > 0 else len(content.rstrip(b"\0"))
    first = (start + used + 63) & ~63
    return Span(first, end - first) if end - first >= LONGEST_LINE else None


def locate_libc(memory: Memory, maps: Sequence[Mapping], program: str) -> LibcImage:
    """Find the C library, which may be linked statically into the `program` itself."""
    shared = {mapping.path for mapping in maps if _is_libc(mapping.path)}
    paths = shared or {program}
    first = {mapping.path: mapping.start for mapping in reversed(maps) if mapping.offset == 0}
    errno = next((place for path in paths if (place := _find_errno(memory, first.get(path, 0)))), None)
    # Without a shared C library, the program contains static musl or static glibc. Only the former is common.
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
        offset = errno_offset(memory, symbols["__errno_location"])
    except (NotElfError, OSError):
        return None
    return None if offset is None else ErrnoPlace(offset, symbols["swab"].address)
