"""Tells what threads wait for while they do not run, from the kernel's files /proc/PID/task/TID.

`schedstat` counts how long a thread was on a core or waited for one. `syscall` says whether it sleeps, and in which
system call with which arguments; a file descriptor among these says what it waits for. Where the call says nothing, as
in a page fault, an uninterruptible sleep ("D") counts as a wait for the disk: all of 181 such waits under load were,
and the kernel's function (`wchan`) told no more. Reading stops nothing, and no file or memory of the target is opened.

A lock does not tell which thread holds it. If the main thread waits for a lock other than the GIL while a thread that
Python does not know runs in its process, it counts as waiting for a library's threads ("native").
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import zip_longest
from typing import Literal, NamedTuple, TypeVar

from aitop.model.stacks import ThreadState, WaitKind
from aitop.sources import procfs
from aitop.sources.stacks.speedscope import MAIN_NAME

SECONDS_BETWEEN_LOOKS = 0.05
# A look costs some 60 µs for waking up and 20 µs for each thread: 3 ms a second for four threads.
MOST_THREADS = 8
# What is known of this many processes is kept while others are looked at.
MOST_PROCESSES = 64
# Threads of the first process that are always read besides its main thread, however many processes there are.
LEAST_OTHERS = 3
BUSY = 0.05
# A few threads of a native pool tell whether it is at work: the busiest MOST_NATIVE of the newest MOST_COUNTED threads.
MOST_NATIVE, MOST_COUNTED = 4, 256
MOST_DESCRIPTORS = 512
MOST_CHARACTERS = 300

DescriptorType = Literal["file", "internet", "local", "pipe", "event", "timer", "process", "device", "epoll", "other"]
_Rule = WaitKind | Literal["futex", "descriptor", "poll", "select", "epoll"]

_Seen = WaitKind | Literal["running"]
_Item = TypeVar("_Item")

_WAITS: dict[DescriptorType, WaitKind] = {
    "file": "disk",
    "internet": "network",
    "local": "queue",
    "pipe": "queue",
    "event": "queue",
    "timer": "sleep",
    "process": "child",
    "device": "device",
}

# System calls by what they wait for, each with its name and its numbers on x86-64 and aarch64, "-" where it has none.
# Sources: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux.
_CALLS: dict[_Rule, str] = {
    "futex": "futex 202 98, futex_wait 455 455",
    "lock": "futex_waitv 449 449, flock 73 32, fcntl 72 25, semop 65 193, semtimedop 220 192",
    "disk": "open 2 -, stat 4 -, fstat 5 80, lstat 6 -, access 21 -, fsync 74 82, fdatasync 75 83, truncate 76 45, "
    "ftruncate 77 46, getdents 78 -, rename 82 -, mkdir 83 -, rmdir 84 -, unlink 87 -, readlink 89 -, statfs 137 43, "
    "fstatfs 138 44, sync 162 81, readahead 187 213, io_getevents 208 4, getdents64 217 61, fadvise64 221 223, "
    "openat 257 56, mkdirat 258 34, newfstatat 262 79, unlinkat 263 35, renameat 264 38, readlinkat 267 78, "
    "faccessat 269 48, sync_file_range 277 84, fallocate 285 47, syncfs 306 267, renameat2 316 276, "
    "copy_file_range 326 285, statx 332 291, io_pgetevents 333 292, openat2 437 437, faccessat2 439 439, msync 26 227",
    "queue": "msgsnd 69 189, msgrcv 70 188, mq_timedsend 242 182, mq_timedreceive 243 183",
    "child": "clone 56 220, vfork 58 -, wait4 61 260, waitid 247 95, clone3 435 435",
    "sleep": "nanosleep 35 101, clock_nanosleep 230 115",
    "descriptor": "read 0 63, write 1 64, ioctl 16 29, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, "
    "sendfile 40 71, connect 42 203, accept 43 202, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, "
    "splice 275 76, accept4 288 242, preadv 295 69, pwritev 296 70, recvmmsg 299 243, sendmmsg 307 269, "
    "preadv2 327 286, pwritev2 328 287",
    "poll": "poll 7 -, ppoll 271 73",
    "select": "select 23 -, pselect6 270 72",
    "epoll": "epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441",
}
_EPOLL_PWAIT2 = 441

# What poll and its like may wait for. An event loop that watches several kinds of files counts as the first of these.
_POLLED: tuple[WaitKind, ...] = ("network", "device", "child", "queue")

_SOCKET = re.compile(r"socket:\[(\d+)\]$")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/neuron", "/dev/davinci", "/dev/hl")
_DISKS = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|dm-|md|mapper/|loop|mmcblk|shm/|hugepages/)")
_ANONYMOUS: dict[str, DescriptorType] = {
    "[eventfd]": "event",
    "[signalfd]": "event",
    "inotify": "event",
    "[timerfd]": "timer",
    "[pidfd]": "process",
    "[eventpoll]": "epoll",
}
_TARGET = re.compile(rb"^tfd:\s*(\d+)", re.MULTILINE)


class Call(NamedTuple):
    """A system call that a thread sleeps in. `number` -1: it sleeps in none, as in a page fault."""

    number: int
    arguments: tuple[int, ...]


def parse_call(data: bytes) -> Call | None:
    """The content of /proc/PID/task/TID/syscall; None for a thread that runs."""
    if data.startswith(b"running"):
        return None
    words = data.split()
    try:
        return Call(int(words[0]), tuple(int(value, 16) for value in words[1:7]) if len(words) == 9 else ())
    except (ValueError, IndexError):
        return Call(-1, ())


def rules_of(machine: str) -> dict[int, _Rule]:
    """What each system call waits for, by its number on that machine (os.uname); empty for an unknown machine."""
    column = {"x86_64": 1, "aarch64": 2}.get(machine)
    if column is None:
        return {}
    rules: dict[int, _Rule] = {}
    for rule, calls in _CALLS.items():
        for call in calls.split(","):
            number = call.split()[column]
            if number != "-":
                rules[int(number)] = rule
    return rules


def descriptor_type(link: str | None, local: frozenset[int]) -> DescriptorType | None:
    """The type of file that the link /proc/PID/fd/N names, None if it is gone. `local`: inodes of unix sockets."""
    if link is None:
        return None
    if socket := _SOCKET.match(link):
        return "local" if int(socket[1]) in local else "internet"
    if link.startswith("pipe:"):
        return "pipe"
    if link.startswith("anon_inode:"):
        return _ANONYMOUS.get(link.removeprefix("anon_inode:"), "other")
    if link.startswith("/dev/infiniband/"):
        return "internet"
    if link.startswith(_DEVICES):
        return "device"
    if link.startswith("/dev/mqueue/"):
        return "pipe"
    if link.startswith("/dev/") and not _DISKS.match(link):
        return "other"
    return "file" if link.startswith("/") else "other"


def local_sockets(table: bytes | None) -> frozenset[int]:
    """The inodes in /proc/PID/net/unix."""
    lines = (line.split() for line in (table or b"").splitlines()[1:])
    return frozenset(int(words[6]) for words in lines if len(words) > 6 and words[6].isdigit())


class Descriptors:
    """The open files of one process and its GIL, each looked up once. The files are never opened, so nothing can block.

    `type_of` returns the type of a descriptor, None if it is not open; `watched_by` the descriptors that an epoll
    descriptor watches. `interpreters` is a cache: by pid, the addresses of the interpreter's static variables.
    """

    def __init__(self, pid: int, interpreters: dict[int, tuple[range, ...]] | None = None) -> None:
        self._pid = pid
        self._folder = f"{procfs.PROC}/{pid}"
        self._interpreters = {} if interpreters is None else interpreters
        self.type_of = cache(self._type_of)
        self.watched_by = cache(self._watched_by)

    def is_gil(self, address: int) -> bool:
        """Whether a lock at this address is the interpreter's: it is a static variable, other locks are on the heap."""
        if self._pid not in self._interpreters:
            self._interpreters[self._pid] = procfs.interpreter_data(procfs.maps(self._pid) or b"")
        return any(address in data for data in self._interpreters[self._pid])

    def waited_for(self, numbers: Iterable[int]) -> set[WaitKind]:
        """The kinds of wait that a wait for any of these descriptors may be."""
        return {_WAITS.get(kind, "other") for number in numbers if (kind := self.type_of(number))}

    @cached_property
    def everything(self) -> tuple[int, ...]:
        """All descriptors but the standard ones; empty where there are too many to look at."""
        numbers = tuple(number for number in procfs.numbered(f"{self._folder}/fd") if number > 2)
        return numbers if len(numbers) <= MOST_DESCRIPTORS else ()

    @cached_property
    def _local(self) -> frozenset[int]:
        return local_sockets(procfs.read(f"{self._folder}/net/unix"))

    def _type_of(self, descriptor: int) -> DescriptorType | None:
        link = procfs.link(f"{self._folder}/fd/{descriptor}")
        return descriptor_type(link, self._local if (link or "").startswith("socket:") else frozenset())

    def _watched_by(self, epoll: int) -> tuple[int, ...]:
        data = procfs.read(f"{self._folder}/fdinfo/{epoll}") or b""
        return tuple(int(number) for number in _TARGET.findall(data))


def wait_in_call(call: Call, rules: Mapping[int, _Rule], descriptors: Descriptors) -> WaitKind | None:
    """What a thread in this call waits for; None where the call alone does not say."""
    rule = rules.get(call.number)
    arguments = call.arguments
    if rule is None or not arguments:
        return None
    if rule == "descriptor":
        kind = descriptors.type_of(c_int(arguments[0]).value)
        return _WAITS.get(kind) if kind else None
    if rule == "futex":
        return "gil" if descriptors.is_gil(arguments[0]) else "lock"
    if rule == "poll":
        return "sleep" if arguments[1] == 0 else _in_poll(descriptors)
    if rule == "select":
        return _in_select(c_int(arguments[0]).value, descriptors)
    if rule == "epoll":
        # The timeout in ms, negative for none. For epoll_pwait2 it is the address of one, 0 for none.
        endless = arguments[3] == 0 if call.number == _EPOLL_PWAIT2 else c_int(arguments[3]).value < 0
        return _in_epoll(descriptors.watched_by(c_int(arguments[0]).value), endless, descriptors)
    return rule


def _in_poll(descriptors: Descriptors) -> WaitKind:
    """What a poll waits for. Its list is in the target's memory: known only if all open descriptors are alike."""
    likely = descriptors.waited_for(descriptors.everything) & set(_POLLED)
    return likely.pop() if len(likely) == 1 else "other"


def _in_select(most: int, descriptors: Descriptors) -> WaitKind:
    """What a select waits for. Its highest descriptor, `most` - 1, stands for all; without any it is a sleep."""
    return next(iter(descriptors.waited_for([most - 1])), "other") if most > 0 else "sleep"


def _in_epoll(watched: Sequence[int], endless: bool, descriptors: Descriptors) -> WaitKind:
    types = [kind for number in watched if (kind := descriptors.type_of(number))]
    # An event loop always watches a descriptor by which other threads wake it. With a timeout and nothing else to
    # watch, it sleeps until its next timer.
    if not endless and types in ([], ["local"], ["event"]):
        return "sleep"
    kinds = descriptors.waited_for(watched)
    return next((kind for kind in (*_POLLED, "sleep") if kind in kinds), "other")


@dataclass
class _Thread:
    pid: int
    number: int
    descriptors: Descriptors
    # None where the kernel's file cannot be read.
    file: int | None = None
    # The last content of the file that alone told what the thread does, and what that was. Mostly the next look reads
    # the same, which saves decoding it.
    line: bytes = b"running\n"
    kind: _Seen = "running"
    seen: Counter[_Seen] = field(default_factory=Counter)
    # What the newest look saw; None where that failed.
    now: _Seen | None = None
    # The first reading of the kernel's counts: time, seconds on a core, seconds waiting for a core; None where they
    # cannot be read. `counted` is the share of both in the time until the last reading, `delayed` that of the waiting.
    began: tuple[float, float, float] | None = None
    counted: float | None = None
    delayed: float = 0.0

    def read_counts(self) -> tuple[float, float, float] | None:
        """The time now, seconds on a core and seconds waiting for one; None where they cannot be read."""
        data = procfs.read(f"{procfs.PROC}/{self.pid}/task/{self.number}/schedstat")
        times = procfs.parse_schedstat(data)
        return None if times is None else (time.monotonic(), *times)

    def open(self) -> None:
        """Open the file that says in which system call it is, as far as that may be read."""
        with contextlib.suppress(OSError):
            self.file = os.open(f"{procfs.PROC}/{self.pid}/task/{self.number}/syscall", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close that file."""
        if self.file is not None:
            os.close(self.file)
            self.file = None


def _state(pid: int, name: str, main: bool, threads: Sequence[_Thread], native: int) -> ThreadState:
    """Make the state of the threads of one name; `native` of their waits for locks were for native threads."""
    kinds: Counter[_Seen] = sum((thread.seen for thread in threads), Counter())
    if native:
        kinds += Counter[_Seen]({"native": native})
        kinds -= Counter[_Seen]({"lock": native})
    counted = [(thread.counted, thread.delayed) for thread in threads if thread.counted is not None]
    whole, delayed = (sum(each) for each in zip(*counted, strict=True)) if counted else (0.0, 0.0)
    known = len(counted) == len(threads)
    return ThreadState(
        pid=pid,
        thread=name,
        main=main,
        asked=kinds.total(),
        running=kinds["running"],
        waits={kind: count for kind, count in kinds.items() if kind != "running"},
        counted=round(whole / len(counted), 4) if known else None,
        delayed=round(delayed / len(counted), 4) if known else None,
    )


def _by_turns(*lists: Sequence[_Item]) -> list[_Item]:
    """The first of each list, then the second of each, and so on."""
    return [one for row in zip_longest(*lists) for one in row if one is not None]


class KernelWaits:
    """Looks at threads of the sampled processes while a window is taken.

    It looks at the main thread of each process, and at as many others as there is room for: of the first process some
    in any case, then of the others in turn. Of a process it takes those that py-spy knows: by turns a busy one, and one
    of the others that was looked at longest ago. While the main thread of the first process waits for a lock, it also
    looks at a few of its native threads. `begin`, `look` and `end` must be called from one thread.
    """

    def __init__(self, machine: str | None = None) -> None:
        self._rules = rules_of(machine or os.uname().machine)
        self._threads: list[_Thread] = []
        self._alive: list[_Thread] = []
        self._native: list[_Thread] = []
        # How many looks found the main thread of the first process waiting for a lock, by the set of its other threads
        # that ran at that moment.
        self._beside: Counter[frozenset[int]] = Counter()
        self._window = 0
        self._first: int | None = None
        # By process, the ids that py-spy gave its threads; and by thread of it, the last window that looked at it, and
        # the share of those looks that found it running.
        self._known: dict[int, frozenset[str]] = {}
        self._last: dict[int, dict[int, tuple[int, float]]] = {}
        # Of the first process, at the start of the last window: the ids that py-spy may have for its threads, and by
        # thread that py-spy does not know, the seconds that it had run.
        self._there: frozenset[str] = frozenset()
        self._ran: dict[int, float] = {}
        # By process, whether it is in a pid namespace of its own.
        self._boxed: dict[int, bool] = {}
        self._interpreters: dict[int, tuple[range, ...]] = {}
        self._programs: dict[int, int | None] = {}

    def begin(self, pids: Sequence[int]) -> None:
        """Choose the threads of the next window."""
        self.end()
        self._window += 1
        self._native = []
        self._beside.clear()
        if list(pids[:1]) != [self._first]:
            self._first, self._ran = pids[0] if pids else None, {}
        self._boxed = {pid: procfs.inner_pid(pid) != pid for pid in pids}
        # An exec draws new addresses.
        stacks = {pid: procfs.main_stack(pid) for pid in pids}
        same = {pid for pid, stack in self._programs.items() if stack == stacks.get(pid, stack)}
        self._programs = {pid: stack for pid, stack in self._programs.items() if pid not in stacks} | stacks
        self._programs = dict(list(self._programs.items())[-MOST_PROCESSES:])
        same.intersection_update(self._programs)
        self._known = {pid: known for pid, known in self._known.items() if pid in same}
        self._last = {pid: last for pid, last in self._last.items() if pid in same}
        self._interpreters = {pid: data for pid, data in self._interpreters.items() if data and pid in same}
        files = {pid: Descriptors(pid, self._interpreters) for pid in pids}
        self._threads = [_Thread(pid, pid, files[pid]) for pid in pids]
        if self._first is not None:
            self._threads += [_Thread(pid, number, files[pid]) for pid, number in self._others(pids)]
            self._native = [_Thread(self._first, number, files[self._first]) for number in self._busiest_native()]
        for thread in self._threads:
            thread.began = thread.read_counts()
        for thread in (*self._threads, *self._native):
            thread.open()
        self._alive = list(self._threads)

    def look(self) -> None:
        """Look at every chosen thread once. One that has ended is not looked at again."""
        self._alive = self._looked_at(self._alive)
        main = next(iter(self._alive), None)
        if main is not None and (main.pid, main.number) == (self._first, self._first) and main.now == "lock":
            self._native = self._looked_at(self._native)
            others = (*self._alive[1:], *self._native)
            at_work = [other.number for other in others if other.pid == main.pid and other.now == "running"]
            self._beside[frozenset(at_work)] += 1

    def _looked_at(self, threads: Sequence[_Thread]) -> list[_Thread]:
        """Those of the threads that have not ended, each looked at once."""
        ended = set()
        for thread in threads:
            thread.now = None
            try:
                line = os.pread(thread.file, MOST_CHARACTERS, 0) if thread.file is not None else None
                thread.now = thread.kind if line == thread.line else self._kind_of(thread, line)
                thread.seen[thread.now] += 1
            except PermissionError:
                thread.close()
            except OSError:
                thread.close()
                ended.add(thread.number)
        return [thread for thread in threads if thread.number not in ended]

    @staticmethod
    def pause() -> float:
        """Seconds to the next look. They vary, so that looks do not keep step with the target."""
        return SECONDS_BETWEEN_LOOKS * random.uniform(0.5, 1.5)  # noqa: S311

    def end(self) -> None:
        """Read the kernel's counts again and close what is open; what was seen stays."""
        for thread in self._alive:
            now = thread.read_counts() if thread.began is not None else None
            if now is not None and thread.began is not None and now[0] > thread.began[0]:
                seconds, ran, delayed = (after - before for after, before in zip(now, thread.began, strict=True))
                thread.counted = max(0.0, min(1.0, (ran + delayed) / seconds))
                thread.delayed = max(0.0, min(thread.counted, delayed / seconds))
        for thread in (*self._threads, *self._native):
            thread.close()
        self._alive = []

    def states(self, names: Mapping[int, Mapping[str, str]]) -> tuple[ThreadState, ...]:
        """What was seen since `begin`. `names` has by pid, then by py-spy's id, the names of all but main threads."""
        self._known |= {pid: frozenset(known) for pid, known in names.items()}
        native = self._waits_for_native()
        alike: dict[tuple[int, str, bool], list[_Thread]] = {}
        for thread in self._threads:
            main = thread.number == thread.pid
            known = names.get(thread.pid, {})
            ids = self._ids(thread.pid, thread.number)
            name = MAIN_NAME if main else next((known[one] for one in ids if one in known), None)
            if not name or not thread.seen:
                continue
            if not main:
                running = thread.seen["running"] / thread.seen.total()
                self._last.setdefault(thread.pid, {})[thread.number] = self._window, running
            alike.setdefault((thread.pid, name, main), []).append(thread)
        return tuple(
            _state(pid, name, main, threads, native if main and pid == self._first else 0)
            for (pid, name, main), threads in alike.items()
        )

    def _waits_for_native(self) -> int:
        """The number of looks in which the main thread of the first process waited for native threads.

        0 where these cannot be told from Python's: before Python 3.11 py-spy does not know the kernel's thread ids.
        """
        known = self._known.get(self._first) if self._first is not None else None
        if self._first is None or known is None or not known <= self._there:
            return 0
        first = self._first
        return sum(
            count
            for at_work, count in self._beside.items()
            if not all(self._knows(first, number) for number in at_work)
        )

    def _knows(self, pid: int, number: int) -> bool:
        """Whether py-spy has seen the interpreter run this thread."""
        return not self._known.get(pid, frozenset()).isdisjoint(self._ids(pid, number))

    def _busiest_native(self) -> list[int]:
        """The threads of the first process that ran longest since the last window, of those that py-spy does not know.

        Before py-spy has seen any, Python's threads may be among them; `states` tells these apart.
        """
        if self._first is None:
            return []
        first = self._first
        numbers = [n for n in procfs.numbered(f"{procfs.PROC}/{first}/task") if n != first][-MOST_COUNTED:]
        self._there = frozenset(name for number in numbers for name in self._ids(first, number))
        watched = {thread.number for thread in self._threads}
        ran: dict[int, float] = {}
        for number in numbers:
            if number not in watched and not self._knows(first, number):
                times = procfs.parse_schedstat(procfs.read(f"{procfs.PROC}/{first}/task/{number}/schedstat"))
                ran[number] = times[0] if times is not None else 0.0
        busiest = sorted(ran, key=lambda number: self._ran.get(number, 0.0) - ran[number])
        self._ran = ran
        return busiest[:MOST_NATIVE]

    def _others(self, pids: Sequence[int]) -> list[tuple[int, int]]:
        """Threads to look at besides the main ones, each with its process."""
        room = max(LEAST_OTHERS, MOST_THREADS - len(pids))
        ordered = [[(pid, number) for number in self._in_order(pid)] for pid in pids]
        of_first, others = ordered[0] if ordered else [], ordered[1:]
        begin = self._window % len(others) if others else 0
        in_turn = _by_turns(*others[begin:], *others[:begin], of_first[LEAST_OTHERS:])
        return [*of_first[:LEAST_OTHERS], *in_turn][:room]

    def _in_order(self, pid: int) -> list[int]:
        """The threads of a process without the main one, the first to look at in front."""
        numbers = [number for number in procfs.numbered(f"{procfs.PROC}/{pid}/task") if number != pid]
        if pid not in self._known:
            # The newest first: pools of native threads are mostly made early, when libraries are loaded.
            return numbers[::-1] if pid == self._first else []
        numbers = [number for number in numbers if self._knows(pid, number)]
        last = self._last.get(pid, {})
        last = self._last[pid] = {number: last.get(number, (0, 1.0)) for number in numbers}
        numbers.sort(key=lambda number: last[number][0])
        busy = [number for number in numbers if last[number][1] >= BUSY]
        return _by_turns(busy, [number for number in numbers if number not in busy])

    def _ids(self, pid: int, number: int) -> tuple[str, ...]:
        """The ids that py-spy may have for a thread: here, and in its own pid namespace."""
        return (str(number), str(procfs.inner_pid(number))) if self._boxed.get(pid) else (str(number),)

    def _kind_of(self, thread: _Thread, line: bytes | None) -> _Seen:
        """What the thread does; `line` is its syscall file, None if unreadable. Raises OSError if it has ended."""
        if line is not None:
            call = parse_call(line)
            kind: _Seen | None = "running" if call is None else wait_in_call(call, self._rules, thread.descriptors)
            if kind is not None:
                thread.line, thread.kind = line, kind
                return kind
        stat = procfs.parse_stat(procfs.read(f"{procfs.PROC}/{thread.pid}/task/{thread.number}/stat") or b"")
        if stat is None or stat.ended:
            raise ProcessLookupError(f"thread {thread.number} has ended")
        return "running" if stat.state == "R" else "disk" if stat.state == "D" else "other"
