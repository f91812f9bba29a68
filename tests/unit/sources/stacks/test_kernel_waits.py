"""What a thread waits in, from the text of the kernel's files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aitop.model.stacks import ThreadState, WaitKind
from aitop.sources import procfs
from aitop.sources.stacks import kernel_waits
from aitop.sources.stacks.kernel_waits import (
    Call,
    Descriptors,
    KernelWaits,
    descriptor_type,
    local_sockets,
    parse_call,
    rules_of,
    wait_in_call,
)

PID = 4242
STACK = "0x7ffd1b0e5c68 0x7f5241eef503"
LINKS = {
    3: "/data/train/shard-0001.tar",
    4: "socket:[7001]",
    5: "socket:[7002]",
    6: "pipe:[7003]",
    7: "anon_inode:[eventfd]",
    8: "/dev/nvidia0",
    9: "anon_inode:[eventpoll]",
    10: "anon_inode:[eventpoll]",
    11: "anon_inode:[eventpoll]",
    12: "anon_inode:[pidfd]",
    13: "/dev/pts/1",
    14: "/dev/nvme0n1",
    15: "anon_inode:[timerfd]",
    16: "anon_inode:[eventpoll]",
}
UNIX = b"""Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01  5511 /run/dbus/system_bus_socket
0000000000000000: 00000003 00000000 00000000 0001 03  7002
"""


def epoll_of(*targets: int) -> str:
    lines = [f"tfd: {target:8d} events:       19 data: {target:16x}  pos:0 ino:2e sdev:d" for target in targets]
    return "\n".join(["pos:\t0", "flags:\t02000002", "mnt_id:\t15", "ino:\t44", *lines, ""])


# A server's loop that other threads wake by a unix socket; one with nothing else; one of a pipe and an eventfd.
EPOLLS = {9: epoll_of(5, 4), 10: epoll_of(5), 11: epoll_of(6, 7), 16: epoll_of()}


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc with one process, that has these open files."""
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    folder = tmp_path / str(PID)
    for name in ("fd", "fdinfo", "net", "task"):
        (folder / name).mkdir(parents=True)
    for number, link in LINKS.items():
        (folder / "fd" / str(number)).symlink_to(link)
    for number, text in EPOLLS.items():
        (folder / "fdinfo" / str(number)).write_text(text)
    (folder / "net" / "unix").write_bytes(UNIX)
    (folder / "maps").write_bytes(MAPS)
    return tmp_path


# libpython's code, its variables, and what its file does not hold of them; then another library's.
MAPS = b"""\
55d0a1b7d000-55d0a1c00000 rw-p 00000000 00:00 0                          [heap]
7fcf22000000-7fcf22700000 r-xp 00000000 fe:00 31 /opt/lib/libpython3.11.so.1.0
7fcf22740000-7fcf22760000 rw-p 00600000 fe:00 31 /opt/lib/libpython3.11.so.1.0
7fcf22760000-7fcf22780000 rw-p 00000000 00:00 0
7fcf22790000-7fcf227a0000 rw-p 00000000 00:00 0
7fcf227b0000-7fcf227c0000 rw-p 00000000 fe:00 32 /opt/lib/libtorch_python.so
"""


def line(number: int, *arguments: int) -> bytes:
    """As the kernel writes it: the number in decimal, six arguments and two addresses in hexadecimal."""
    values = " ".join(f"{value & 0xFFFFFFFFFFFFFFFF:#x}" for value in (*arguments, *[0] * (6 - len(arguments))))
    return f"{number} {values} {STACK}\n".encode()


CALLS: list[tuple[str, bytes, bytes | None, WaitKind | None]] = [
    # what, on x86-64, on aarch64, wait
    ("a lock", line(202, 0x7F66A800, 393, 0), line(98, 0x7F66A800, 393, 0), "lock"),
    ("the GIL", line(202, 0x7FCF2274E6F0, 137, 0, 0x7F00), line(98, 0x7FCF2274E6F0, 137, 0, 0x7F00), "gil"),
    ("the GIL, beyond what the file holds", line(202, 0x7FCF22760010, 128), line(98, 0x7FCF22760010, 128), "gil"),
    ("a lock on a file", line(73, 3, 2), line(32, 3, 2), "lock"),
    ("time.sleep", line(230, 1, 1, 0x7FFE8), line(115, 1, 1, 0x7FFE8), "sleep"),
    ("fsync", line(74, 3), line(82, 3), "disk"),
    ("open of a file", line(257, -100, 0x7F00, 0x80000), line(56, -100, 0x7F00, 0x80000), "disk"),
    ("read of a file", line(0, 3, 0x7F00, 65536), line(63, 3, 0x7F00, 65536), "disk"),
    ("pread of a block device", line(17, 14, 0x7F00, 4096), line(67, 14, 0x7F00, 4096), "disk"),
    ("read of a terminal", line(0, 13, 0x7F00, 1024), line(63, 13, 0x7F00, 1024), None),
    ("read of a pipe", line(0, 6, 0x7F00, 4), line(63, 6, 0x7F00, 4), "queue"),
    ("write to a pipe", line(1, 6, 0x7F00, 65536), line(64, 6, 0x7F00, 65536), "queue"),
    ("read of a closed file", line(0, 77, 0x7F00, 4), line(63, 77, 0x7F00, 4), None),
    ("recv of TCP", line(45, 4, 0x7F00, 1), line(207, 4, 0x7F00, 1), "network"),
    ("recv of a unix socket", line(45, 5, 0x7F00, 1), line(207, 5, 0x7F00, 1), "queue"),
    ("accept of TCP", line(288, 4, 0, 0, 0x80000), line(242, 4, 0, 0, 0x80000), "network"),
    ("ioctl of a GPU", line(16, 8, 0xC020462A, 0x7F00), line(29, 8, 0xC020462A, 0x7F00), "device"),
    ("waitpid", line(61, 4243, 0x7F00, 0), line(260, 4243, 0x7F00, 0), "child"),
    ("vfork", line(58), None, None),
    ("vfork of glibc", line(56, 0x4111, 0x7F00), line(220, 0x4111, 0x7F00), "child"),
    ("poll of nothing", line(7, 0, 0, 100), line(73, 0, 0, 0x7F00), "sleep"),
    ("poll of many kinds", line(7, 0x7F00, 1, 5000), line(73, 0x7F00, 1, 0x7F00), "other"),
    ("select of nothing", line(23, 0, 0, 0, 0, 0x7F00), line(72, 0, 0, 0, 0, 0x7F00), "sleep"),
    ("select of a pipe", line(270, 7, 0x7F00), line(72, 7, 0x7F00), "queue"),
    ("select of TCP", line(270, 5, 0x7F00), line(72, 5, 0x7F00), "network"),
    ("a server's loop", line(232, 9, 0x7F00, 3, -1), line(22, 9, 0x7F00, 3, -1), "network"),
    ("a loop's timer", line(232, 10, 0x7F00, 1, 1000), line(22, 10, 0x7F00, 1, 1000), "sleep"),
    ("a loop to be woken", line(232, 10, 0x7F00, 1, 0xFFFFFFFF), line(22, 10, 0x7F00, 1, 0xFFFFFFFF), "queue"),
    ("a loop of pipes", line(232, 11, 0x7F00, 1, 1000), line(22, 11, 0x7F00, 1, 1000), "queue"),
    ("epoll of nothing", line(232, 16, 0x7F00, 1, 1000), line(22, 16, 0x7F00, 1, 1000), "sleep"),
    ("epoll_pwait2, a timer", line(441, 10, 0x7F00, 1, 0x7F08), line(441, 10, 0x7F00, 1, 0x7F08), "sleep"),
    ("epoll_pwait2, endless", line(441, 10, 0x7F00, 1, 0), line(441, 10, 0x7F00, 1, 0), "queue"),
    ("read of a timer", line(0, 15, 0x7F00, 8), line(63, 15, 0x7F00, 8), "sleep"),
    ("mmap", line(9, 0, 4096, 3), line(222, 0, 4096, 3), None),
    ("a page fault", f"-1 {STACK}\n".encode(), f"-1 {STACK}\n".encode(), None),
]


@pytest.mark.parametrize(("what", "x86", "arm", "kind"), CALLS, ids=[what for what, *_ in CALLS])
def test_what_a_call_waits_for(proc: Path, what: str, x86: bytes, arm: bytes | None, kind: WaitKind | None) -> None:
    for machine, text in (("x86_64", x86), ("aarch64", arm)):
        call = parse_call(text or b"")
        expected = "child" if what == "vfork" and machine == "x86_64" else kind
        assert wait_in_call(call, rules_of(machine), Descriptors(PID)) == expected


@pytest.mark.parametrize("text", [b"", b"\n", b"x 0x1 0x2\n", b"0 0x1\n", b"0 1 2 3 4 5 6 7 zz\n"])
def test_a_line_of_something_else_is_no_call_that_is_known(proc: Path, text: bytes) -> None:
    assert parse_call(b"running\n") is None
    assert wait_in_call(parse_call(text), rules_of("x86_64"), Descriptors(PID)) is None


def test_numbers_mean_nothing_on_another_machine():
    assert rules_of("riscv64") == {}
    assert rules_of("x86_64")[35] == rules_of("aarch64")[101] == "sleep"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the header of another machine")
def test_the_numbers_are_those_of_the_system_headers():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("needs the headers of Linux")
    words = (text.split() for text in header.read_text().splitlines() if text.startswith("#define __NR_"))
    numbers = {name.removeprefix("__NR_"): number for _, name, number in words}
    calls = [call.split() for calls in kernel_waits._CALLS.values() for call in calls.split(",")]
    assert len(calls) > 60
    assert {name: number for name, number, _ in calls if name in numbers} == {
        name: numbers[name] for name, _, _ in calls if name in numbers
    }


@pytest.mark.parametrize(
    ("links", "kind"),
    [
        ({}, "other"),
        ({3: "pipe:[1]", 4: "/data/x", 5: "anon_inode:[eventfd]"}, "queue"),
        ({3: "socket:[9]", 4: "/data/x"}, "network"),
        ({3: "socket:[9]", 4: "pipe:[1]"}, "other"),
        ({0: "pipe:[1]", 1: "pipe:[2]", 2: "pipe:[2]", 3: "socket:[9]"}, "network"),
    ],
)
def test_a_poll_waits_for_what_all_descriptors_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: dict[int, str], kind: WaitKind
) -> None:
    """Which of them it has lies in the target's memory."""
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    (tmp_path / str(PID) / "fd").mkdir(parents=True)
    for number, link in links.items():
        (tmp_path / str(PID) / "fd" / str(number)).symlink_to(link)
    assert wait_in_call(Call(7, (0x7F00, 1, 5000, 0, 0, 0)), rules_of("x86_64"), Descriptors(PID)) == kind


def test_descriptors_and_sockets():
    assert local_sockets(UNIX) == {5511, 7002}
    assert local_sockets(None) == local_sockets(b"x\ny\n") == frozenset()
    assert descriptor_type(None, frozenset()) is None
    assert descriptor_type("/dev/shm/ring", frozenset()) == "file"
    assert descriptor_type("/dev/nvidia-uvm", frozenset()) == "device"
    assert descriptor_type("/dev/null", frozenset()) == "other"
    assert descriptor_type("anon_inode:inotify", frozenset()) == "event"
    assert descriptor_type("memfd:x (deleted)", frozenset()) == "other"


# threads ----------------------------------------------------------------------------------------------------------

Thread = Callable[..., Path]


@pytest.fixture
def thread(proc: Path) -> Thread:
    def make(number: int, call: bytes | None, *, pid: int = PID, state: str = "S") -> Path:
        folder = proc / str(pid) / "task" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        if call is not None:
            (folder / "syscall").write_bytes(call)
        rest = " ".join(["1"] * 48)
        (folder / "stat").write_text(f"{number} (python) {state} {rest}\n")
        return folder

    return make


def by_name(states: tuple[ThreadState, ...]) -> dict[tuple[int, str], ThreadState]:
    return {(state.pid, state.thread): state for state in states}


def looked(*pids: int, windows: int = 1, names: dict[str, str] | None = None) -> dict[tuple[int, str], ThreadState]:
    """What one look at these processes says (in the last of so many windows); `names` are py-spy's of their threads."""
    kernel = KernelWaits("x86_64")
    for _ in range(windows):
        kernel.begin(list(pids))
        kernel.look()
        kernel.end()
        states = kernel.states({pid: names or {} for pid in pids})
    return by_name(states)


def test_looks_are_summed_by_the_names_of_the_threads(thread: Thread) -> None:
    main = thread(PID, b"running\n")
    thread(PID + 1, line(202, 0x7F00))
    thread(PID + 2, line(230, 1))
    thread(PID + 3, b"running\n")
    thread(50, line(45, 4), pid=50)
    kernel = KernelWaits("x86_64")
    kernel.begin([PID, 50])
    kernel.look()
    (main / "syscall").write_bytes(line(0, 6))
    kernel.look()
    kernel.look()
    kernel.end()
    states = by_name(kernel.states({PID: {str(PID + 1): "worker", str(PID + 2): "worker"}, 50: {}}))
    assert states == {
        (PID, "MainThread"): ThreadState(
            pid=PID, thread="MainThread", main=True, asked=3, running=1, waits={"queue": 2}
        ),
        (PID, "worker"): ThreadState(
            pid=PID, thread="worker", main=False, asked=6, running=0, waits={"lock": 3, "sleep": 3}
        ),
        (50, "MainThread"): ThreadState(pid=50, thread="MainThread", main=True, asked=3, running=0, waits={"other": 3}),
    }


def pooled(thread: Thread, *, python: bytes, native: bytes) -> ThreadState:
    """What is said of a main thread that waits for a lock; one other thread is Python's."""
    thread(PID, line(202, 0x7F00))
    thread(PID + 1, python)
    for number in (PID + 2, PID + 3):
        folder = thread(number, native if number == PID + 2 else line(202))
        (folder / "schedstat").write_text(f"{9000000000 - number} 0 1\n")
    return looked(PID, windows=2, names={str(PID + 1): "worker"})[PID, "MainThread"]


@pytest.mark.parametrize(
    ("python", "native", "kind"),
    [
        (line(202), b"running\n", "native"),
        (b"running\n", b"running\n", "native"),
        (b"running\n", line(202), "lock"),
        (line(202), line(202), "lock"),
    ],
)
def test_a_lock_wait_while_native_threads_compute_counts_as_native(
    thread: Thread, python: bytes, native: bytes, kind: WaitKind
) -> None:
    assert pooled(thread, python=python, native=native).waits == {kind: 1}


def test_without_the_kernels_ids_no_thread_is_taken_for_a_native_one(thread: Thread) -> None:
    """Before Python 3.11 py-spy knows threads by other numbers: the one that runs may be Python's."""
    thread(PID, line(202))
    thread(PID + 1, b"running\n")
    assert looked(PID, names={"140512345": "worker"})[PID, "MainThread"].waits == {"lock": 1}


def test_the_busiest_native_threads_are_looked_at(thread: Thread) -> None:
    thread(PID, line(202))
    for number in range(PID + 1, PID + 30):
        at_work = number == PID + 9
        folder = thread(number, b"running\n" if at_work else line(202))
        (folder / "schedstat").write_text(f"{5 if at_work else 1}000000000 0 1\n")
    assert looked(PID)[PID, "MainThread"].waits == {"native": 1}


@pytest.mark.parametrize("ends", [False, True], ids=["it lives on", "a native thread ends meanwhile"])
def test_no_file_stays_open(thread: Thread, monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    thread(PID, line(202))
    other = thread(PID + 1, b"running\n") / "syscall"
    before, read = os.listdir("/proc/self/fd"), os.pread

    def of_the_dead(file: int, size: int, offset: int) -> bytes:
        if os.path.samestat(os.fstat(file), other.stat()):
            raise ProcessLookupError
        return read(file, size, offset)

    if ends:
        monkeypatch.setattr(os, "pread", of_the_dead)
    looked(PID, windows=2, names={str(PID): "main"})
    kernel = KernelWaits("x86_64")
    kernel.begin([PID])
    kernel.begin([PID])
    kernel.end()
    assert os.listdir("/proc/self/fd") == before


def test_the_kernel_counts_how_long_a_thread_ran_or_waited_for_a_core(
    thread: Thread, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    files = {number: thread(number, line(202)) / "schedstat" for number in (PID, PID + 1, PID + 2)}
    for file in files.values():
        file.write_text("5000000000 1000000000 700\n")
    kernel = KernelWaits("x86_64")
    kernel.begin([PID])
    kernel.look()
    now = 102.0
    files[PID].write_text("5500000000 1200000000 900\n")
    files[PID + 1].write_text("7000000000 1000000000 900\n")
    # A kernel that does not count writes zeros; then the looks alone must do.
    files[PID + 2].write_text("0 0 0\n")
    kernel.end()
    states = by_name(kernel.states({PID: {str(PID + 1): "worker", str(PID + 2): "other"}}))
    assert states[PID, "MainThread"].counted == states[PID, "MainThread"].on_core == 0.35
    assert states[PID, "worker"].counted == 1.0
    assert (states[PID, "MainThread"].delayed, states[PID, "worker"].delayed) == (0.1, 0.0)
    assert states[PID, "other"].counted is None and states[PID, "other"].on_core == 0.0
    assert states[PID, "other"].delayed is None


def test_without_the_syscall_file_the_state_of_the_thread_is_used(thread: Thread) -> None:
    main = thread(PID, None, state="R")
    kernel = KernelWaits("x86_64")
    kernel.begin([PID])
    kernel.look()
    thread(PID, None)
    kernel.look()
    thread(PID, None, state="D")
    kernel.look()
    (main / "stat").unlink()
    kernel.look()
    [state] = kernel.states({})
    assert (state.asked, state.running, state.waits) == (3, 1, {"other": 1, "disk": 1})


def test_a_page_fault_is_disk_and_a_process_that_is_gone_has_no_states(thread: Thread) -> None:
    thread(PID, f"-1 {STACK}\n".encode(), state="D")
    assert looked(PID)[PID, "MainThread"].waits == {"disk": 1}
    assert looked(9999) == {}


def test_of_many_threads_the_busy_ones_are_always_looked_at_and_the_others_in_turn(thread: Thread) -> None:
    thread(PID, line(202))
    pool = range(PID + 1, PID + 30)
    for number in pool:
        thread(number, b"running\n" if number == PID + 20 else line(202))
    python = {str(number): f"t{number}" for number in pool if number % 2 == PID % 2}
    kernel = KernelWaits("x86_64")
    seen: list[set[str]] = []
    for _ in range(8):
        kernel.begin([PID])
        kernel.look()
        kernel.end()
        seen.append({state.thread for state in kernel.states({PID: python})})
    assert all(len(names) <= 8 for names in seen)
    assert all("MainThread" in names for names in seen)
    assert set().union(*seen) == {"MainThread", *python.values()}
    first = next(index for index, names in enumerate(seen) if f"t{PID + 20}" in names)
    assert all(f"t{PID + 20}" in names for names in seen[first:])


@pytest.mark.parametrize("in_turn", [False, True], ids=["in every window", "the others in turn"])
def test_threads_of_every_process_are_looked_at(thread: Thread, in_turn: bool) -> None:
    """A server whose processes each answer in threads; what those of the second one wait for counts as well."""
    pids = [PID, PID + 100, PID + 200]
    names = {pid: {str(pid + number): f"t{number}" for number in range(1, 7)} for pid in pids}
    for pid in pids:
        thread(pid, line(202), pid=pid)
        for number in range(1, 7):
            thread(pid + number, line(202), pid=pid)
    kernel = KernelWaits("x86_64")
    seen: list[tuple[int, str]] = []
    for number in range(12):
        sampled = [PID, pids[1 + number % 2]] if in_turn else pids
        kernel.begin(sampled)
        kernel.look()
        kernel.end()
        window = [(state.pid, state.thread) for state in kernel.states({pid: names[pid] for pid in sampled})]
        assert len(window) <= 8
        seen += window
    assert set(seen) == {(pid, name) for pid in pids for name in ("MainThread", *names[pid].values())}
    assert sum(pid == PID for pid, _ in seen) > len(seen) / 3


@pytest.mark.parametrize(
    ("path", "address", "static"),
    [
        ("/usr/bin/python3.11", 0x1000, True),
        ("/usr/bin/python3.11", 0x2800, True),
        ("/usr/bin/python3.11", 0x3800, False),
        ("/opt/libpython3.13t.so.1.0 (deleted)", 0x1000, True),
        ("/opt/libtorch_python.so", 0x1000, False),
        ("/home/me/python3.11/train.so", 0x1000, False),
    ],
)
def test_where_an_interpreter_has_its_variables(path: str, address: int, static: bool) -> None:
    memory_map = f"1000-2000 rw-p 0 fe:00 9 {path}\n2000-3000 rw-p 0 00:00 0\n3800-4000 rw-p 0 00:00 0\n"
    assert any(address in data for data in procfs.interpreter_data(memory_map.encode())) is static
