"""Reading /proc without ever raising: what a process is, from the kernel's own files."""

from __future__ import annotations

import functools
import os
import pwd
import re
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from aitop.model.host import ProcessId
from aitop.model.text import printable

PROC = "/proc"
TICKS_PER_SECOND: int = os.sysconf("SC_CLK_TCK")
NANOSECONDS = 1e9
PAGE_SIZE: int = os.sysconf("SC_PAGE_SIZE")
KERNEL_THREAD = 0x00200000
LONGEST_COMMAND = 300
# The most bytes that are read of a file, and of a command line: a process can make its own as long as its memory.
LARGEST, LARGEST_COMMAND = 16 << 20, 1 << 20

_FRAMEWORKS = (
    ("torch", re.compile(rb"/libtorch[\w.+-]*\.so")),
    # At most two folders in between: otherwise a path of many /jaxlib/ would take the square of its length to search.
    ("jax", re.compile(rb"/jaxlib/(?:[^\n/]*/){0,2}[^\n/]*\.so|/libjax[\w.+-]*\.so")),
    ("tensorflow", re.compile(rb"/libtensorflow[\w.+-]*\.so|/_pywrap_tensorflow[\w.+-]*\.so")),
)
_PYTHON_NAME = re.compile(r"(?:python|pypy)(?P<version>\d(?:\.\d+)?)?[a-z]?$")
_PYTHON_FILE = re.compile(rb"/(?:lib)?python3?[\d.]*t?d?(?:\.so[\d.]*)?(?: \(deleted\))?$")
_PYTHON_LIBRARY = re.compile(rb"/(?:libpython|libpypy)(?P<version>\d\.\d+)")
# What is opened to compute on a device; /dev/nvidiactl and the like are also opened to ask about one.
_DEVICE = re.compile(r"/dev/nvidia\d+$")
_STALLED = re.compile(r"^some avg10=(\d+(?:\.\d+)?) ", re.MULTILINE | re.ASCII)


# Seconds on a core and seconds runnable without one.
Scheduled = tuple[float, float]


class Stat(NamedTuple):
    """Fields of /proc/PID/stat. Times in clock ticks, `start` since boot, `rss` in pages.

    `stack` is the address of the main stack: a forked child has its parent's, an exec draws a new one;
    0 where the kernel hides it. `read_at` is the monotonic time of the read, in seconds.
    """

    pid: int
    comm: str
    state: str
    ppid: int
    flags: int
    user: int
    system: int
    threads: int
    start: int
    vsize: int
    rss: int
    stack: int
    read_at: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether it has ended: it is a zombie or dead."""
        return self.state in "ZXx"


def read(path: str, most: int = LARGEST) -> bytes | None:
    """The content of a file of /proc or /sys, `most` bytes or a little more of it; None where it cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        data = os.read(handle, 65536)
        # The kernel hands out whole lines, about a page at a time: less than half a page is the end.
        if len(data) < 2048:
            return data
        pieces, size = [data], len(data)
        while size < most and (more := os.read(handle, 65536)):
            pieces.append(more)
            size += len(more)
        return b"".join(pieces)
    except OSError:
        return None
    finally:
        os.close(handle)


def text(path: str) -> str | None:
    """The content of a file of /proc or /sys as text without surrounding white space."""
    data = read(path)
    return None if data is None else data.decode("utf-8", "replace").strip()


def link(path: str) -> str | None:
    """Where a symbolic link of /proc points to, None where that cannot be read."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return None


def parse_stat(data: bytes) -> Stat | None:
    """The content of /proc/PID/stat; None for anything else. The name may hold spaces and brackets."""
    opening, closing = data.find(b"("), data.rfind(b")")
    if opening < 0 or closing < opening:
        return None
    rest = data[closing + 1 :].split()
    try:
        return Stat(
            pid=int(data[:opening]),
            comm=data[opening + 1 : closing].decode("utf-8", "replace"),
            state=rest[0].decode("ascii", "replace"),
            ppid=int(rest[1]),
            flags=int(rest[6]),
            user=int(rest[11]),
            system=int(rest[12]),
            threads=int(rest[17]),
            start=int(rest[19]),
            vsize=int(rest[20]),
            rss=int(rest[21]),
            stack=int(rest[25]),
        )
    except (ValueError, IndexError):
        return None


def parse_schedstat(data: bytes | None) -> Scheduled | None:
    """The times of a thread since its start in the text of its schedstat file; None on kernels without it."""
    fields = (data or b"").split()
    if len(fields) != 3 or not (fields[0].isdigit() and fields[1].isdigit()) or fields == [b"0", b"0", b"0"]:
        return None
    return int(fields[0]) / NANOSECONDS, int(fields[1]) / NANOSECONDS


def stat(pid: int) -> Stat | None:
    """The kernel's line on a process, None when there is none."""
    line = parse_stat(read(f"{PROC}/{pid}/stat") or b"")
    return None if line is None else line._replace(read_at=time.monotonic())


def main_stack(pid: int) -> int | None:
    """The address of the main stack, which an exec draws anew; None where it cannot be read."""
    line = stat(pid)
    return (line.stack or None) if line is not None else None


def lives(pid: int) -> bool:
    """Whether the process exists and has not ended: a zombie has."""
    line = stat(pid)
    return line is not None and not line.ended


def gone(pid: int) -> bool:
    """Whether there is no such process. Opens no file, so that a lack of descriptors is not taken for an end."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False


def numbered(folder: str) -> list[int]:
    """The entries of a folder of /proc whose names are numbers, sorted; empty where it cannot be read."""
    try:
        return sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except OSError:
        return []


def pids() -> list[int]:
    """Every process that this user can see."""
    return numbered(PROC)


def descriptors(pid: int) -> dict[int, str]:
    """What the open descriptors of a process are, by number; empty without permission."""
    links = {number: link(f"{PROC}/{pid}/fd/{number}") for number in numbered(f"{PROC}/{pid}/fd")}
    return {number: path for number, path in links.items() if path}


def argv(pid: int) -> tuple[str, ...]:
    """The command line; empty for kernel threads, zombies and processes that are gone."""
    data = read(f"{PROC}/{pid}/cmdline", LARGEST_COMMAND)
    if not data:
        return ()
    return tuple(part.decode("utf-8", "replace") for part in data.rstrip(b"\0").split(b"\0"))


def network(pid: int) -> str | None:
    """The network that a process is in, each with a loopback of its own.

    None without permission, for a process that has ended, and on a kernel that knows only one network.
    """
    return link(f"{PROC}/{pid}/ns/net")


def environ(pid: int) -> dict[str, str] | None:
    """The environment the process was started with; None without permission. Later changes are not in it.

    Of several values of one name the first counts, as for the process itself.
    """
    data = read(f"{PROC}/{pid}/environ")
    if data is None:
        return None
    pairs = [part.partition("=") for part in data.decode("utf-8", "replace").split("\0")]
    return {name: value for name, equals, value in reversed(pairs) if equals}


def status(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status, empty when the process is gone."""
    return parse_fields(text(f"{PROC}/{pid}/status") or "")


def parse_fields(content: str) -> dict[str, str]:
    """The fields of `name: value` lines."""
    pairs = (line.partition(":") for line in content.splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def numbers(path: str) -> dict[str, int]:
    """The `name number` and `name: number` lines of a file; values in kB are converted to bytes."""
    fields = {}
    for line in (read(path) or b"").splitlines():
        words = line.split()
        if len(words) > 1 and words[1].isdigit():
            fields[words[0].decode("ascii", "replace").rstrip(":")] = int(words[1]) * (1024 if b"kB" in words else 1)
    return fields


def inner_pid(pid: int) -> int:
    """The pid as the process itself sees it, in its own pid namespace."""
    words = status(pid).get("NSpid", "").split()
    return int(words[-1]) if words and words[-1].isdigit() else pid


def user_id(pid: int) -> int | None:
    """The user the process runs as (effective), None when it is gone."""
    words = status(pid).get("Uid", "").split()
    return int(words[1]) if len(words) == 4 and words[1].isdigit() else None


def user_name(user: int | None) -> str:
    """A user's name, or the number where there is none."""
    try:
        return pwd.getpwuid(user).pw_name if user is not None else "?"
    except KeyError:
        return str(user)


def maps(pid: int) -> bytes | None:
    """The memory map; None without permission, empty for zombies."""
    return read(f"{PROC}/{pid}/maps")


def interpreter_data(memory_map: bytes) -> tuple[range, ...]:
    """The interpreter's static variables: addresses of its file's writable pages and the anonymous pages after them."""
    ranges: list[range] = []
    for line in memory_map.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) < 5:
            continue
        addresses, rights, _, _, _, *path = fields
        begin, end = (int(address, 16) for address in addresses.split(b"-"))
        anonymous_after = not path and bool(ranges) and begin == ranges[-1].stop
        if b"w" in rights and (anonymous_after or (path and _PYTHON_FILE.search(path[0]))):
            ranges.append(range(begin, end))
    return tuple(ranges)


def framework_of(memory_map: bytes) -> str | None:
    """The framework whose libraries a memory map holds: torch, jax or tensorflow, in this order."""
    return next((name for name, pattern in _FRAMEWORKS if pattern.search(memory_map)), None)


def thread_names(pid: int) -> frozenset[str]:
    """The names of the threads alive now."""
    folder = f"{PROC}/{pid}/task"
    return frozenset(name for thread in numbered(folder) if (name := text(f"{folder}/{thread}/comm")))


def open_devices(pid: int) -> frozenset[str]:
    """The files of the devices that a process computes on, as far as it has them open; empty without permission."""
    return frozenset(path for path in descriptors(pid).values() if _DEVICE.match(path))


@functools.lru_cache(maxsize=1)
def boot_time() -> float:
    """Seconds since the epoch at which the machine started, read once so that it does not move with the clock."""
    for line in (text(f"{PROC}/stat") or "").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def started(start_ticks: int) -> float:
    """Seconds since the epoch from the start in ticks since boot."""
    return boot_time() + start_ticks / TICKS_PER_SECOND


def process_id(pid: int) -> ProcessId | None:
    """The process that has this pid now; None when there is none."""
    line = stat(pid)
    return None if line is None else ProcessId(pid, started(line.start))


def python_version_of(exe: str | None, memory_map: bytes | None = None) -> str | None:
    """'3.11' from the name of the executable, or from the library the process has mapped."""
    match = _PYTHON_NAME.search(os.path.basename(exe or "").removesuffix(" (deleted)"))
    version = match["version"] if match else None
    if version and "." in version:
        return version
    library = _PYTHON_LIBRARY.search(memory_map or b"")
    return library["version"].decode() if library else None


def named_python(path: str | None) -> bool:
    """Whether the name of an executable is that of a Python interpreter."""
    return bool(path) and _PYTHON_NAME.match(os.path.basename(path or "").removesuffix(" (deleted)")) is not None


class CoreTicks(NamedTuple):
    """Clock ticks of one core since boot: all of them, idle ones, and idle ones with a task that waits for a disk."""

    total: int
    idle: int
    iowait: int


def core_ticks() -> dict[int, CoreTicks]:
    """The ticks of each core, by its number; empty where the kernel does not say."""
    cores = {}
    for line in (text(f"{PROC}/stat") or "").splitlines():
        name, _, times = line.partition(" ")
        if not name.startswith("cpu"):
            break
        if name[3:].isdigit():
            # The columns after these are the time of guests, which user time already includes.
            ticks = [int(number) for number in times.split()[:8]]
            cores[int(name[3:])] = CoreTicks(sum(ticks), ticks[3], ticks[4])
    return cores


def idle_seconds(cores: Collection[int]) -> float:
    """Seconds since boot that these cores have had nothing to run, all together."""
    return sum(ticks.idle + ticks.iowait for core, ticks in core_ticks().items() if core in cores) / TICKS_PER_SECOND


def stalled(path: str) -> float | None:
    """The share (0..1) of the last 10 s in which some thread was held up, from a pressure file; None without one."""
    match = _STALLED.search(text(path) or "")
    return float(match[1]) / 100 if match else None


def shown(arguments: Sequence[str], comm: str = "") -> str:
    """A command line as one printable line of at most LONGEST_COMMAND characters."""
    line = printable(" ".join(arguments)).strip() or f"[{printable(comm)}]"
    return line if len(line) <= LONGEST_COMMAND else line[: LONGEST_COMMAND - 1] + "…"
