"""The small pure parts of the way in: status, refusals, resumption of system calls."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from aitop.attach import attempt, entrance
from aitop.attach.inspection import preflight
from aitop.attach.inspection import process as inspected_process
from aitop.attach.inspection.process import seconds_old
from aitop.attach.payload.bundle import pack
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.ways import gdb, remote_debug
from aitop.attach.ways.signal_frame import Call, SavedErrno, build, resumption, same_call, xsave_layout
from aitop.attach.ways.stopped_thread import REGISTER_NAMES, ThreadState
from aitop.engine import hook_requests
from aitop.sources.foreign_file import open_below, open_folder_as
from aitop.sources.process_status import SYS_PTRACE, own_status, parse_status, read_status

STATUS = """Name:\tpython (x) y
State:\tS (sleeping)
Tgid:\t42
PPid:\t7
TracerPid:\t99
Uid:\t1000\t1001\t1002\t1000
Gid:\t5\t6\t7\t8
NSpid:\t42\t3
CapEff:\t0000000000080000
Seccomp:\t2
x86_Thread_features:\tshstk wrss
"""


def test_a_status_is_read() -> None:
    status = parse_status(42, STATUS, started=5)
    assert (status.leader, status.parent, status.tracer, status.state, status.inner_pid) == (42, 7, 99, "S", 3)
    assert status.uids == (1000, 1001, 1002, 1000) and status.shadow_stack and status.capabilities & SYS_PTRACE
    assert status.seccomp == 2 and status.name == "python (x) y"
    older = parse_status(42, "Name:\tx\nState:\tR (running)\nTgid:\t42\n", started=5)
    assert (older.inner_pid, older.tracer, older.shadow_stack, older.capabilities) == (42, 0, False, 0)
    assert own_status().leader == own_status().pid == os.getpid() and own_status().state in "RS"


def plain(**changes: object) -> object:
    base = parse_status(42, STATUS, started=5)
    ours = {"uids": (1000,) * 4, "capabilities": 0, "seccomp": 0, "inner_pid": changes.get("pid", 42), **changes}
    return msgspec.structs.replace(base, **ours)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words", "state", "transient"),
    [
        ({"seccomp": 1}, "forbidden itself every system call", "absent", False),
        ({"forked": True}, "only just been forked", "absent", True),
        ({"state": "Z"}, "is a zombie", "absent", False),
        ({"state": "T"}, "is stopped", "absent", True),
        ({"tracer": 1 << 30}, f"being traced by {1 << 30}", "denied", True),
        ({"leader": 41}, "is a thread of process 41", "absent", False),
    ],
)
def test_a_process_that_cannot_be_entered_is_refused_with_the_reason(
    monkeypatch, changes: dict, words: str, state: str, transient: bool
) -> None:
    ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    status = plain(**{"tracer": 0, "started": ticks, **changes})
    monkeypatch.setattr(preflight, "shares_memory", lambda *_: False)
    monkeypatch.setattr(preflight, "read_status", lambda pid: status if pid == 42 else None)
    with pytest.raises(AttachRefused, match=words) as refusal:
        preflight.check_alive(42)
    assert (refusal.value.state, refusal.value.transient) == (state, transient)


@pytest.mark.parametrize(
    ("seconds_run", "state", "settled"),
    [(0.0001, "R", False), (0.0001, "S", True), (1.0, "R", True), (None, "R", True)],
)
def test_a_fork_that_has_been_there_for_a_while_is_like_any_other(monkeypatch, seconds_run, state, settled) -> None:
    status = plain(tracer=0, forked=True, state=state)
    monkeypatch.setattr(preflight, "read_status", lambda _: status)
    monkeypatch.setattr(preflight, "main_thread_cpu_ns", lambda _: seconds_run and int(seconds_run * 1e9))
    monkeypatch.setattr(preflight, "shares_memory", lambda *_: False)
    if settled:
        assert preflight.check_alive(42) is status
    else:  # nobody gave it a processor since it was forked
        with pytest.raises(AttachRefused, match="only just been forked"):
            preflight.check_alive(42)


def test_gdb_is_for_other_machines_and_its_absence_says_what_to_install(monkeypatch) -> None:
    python = SimpleNamespace(scratch=object())
    target = SimpleNamespace(pid=42, python=python)
    monkeypatch.setattr(gdb.shutil, "which", lambda _: None)
    monkeypatch.setattr(gdb, "on_x86_64", lambda: True)
    with pytest.raises(AttachRefused, match="gdb is for other machines") as refusal:
        attempt._open_ways(target, [gdb.Gdb()])  # type: ignore[arg-type]
    assert refusal.value.remedy == "aitop run -- CMD"
    monkeypatch.setattr(gdb, "on_x86_64", lambda: False)
    with pytest.raises(AttachRefused, match="gdb is not installed") as refusal:
        attempt._open_ways(target, [gdb.Gdb()])  # type: ignore[arg-type]
    assert refusal.value.remedy == "install gdb, or start it with: aitop run -- CMD"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("echo '$1 = 1'", None),
        (
            'echo "Couldn\'t write extended state status: Bad address."; exit 1',
            "gdb does not work here: Couldn't write",
        ),
        ("exit 3", "gdb does not work here: it says nothing"),
        ("for p; do case $before in -p) kill -9 $p;; esac; before=$p; done; echo '$1 = 1'", "gdb harms processes here"),
    ],
)
def test_a_gdb_is_tried_on_a_process_of_our_own_before_it_is_used(
    monkeypatch, tmp_path: Path, script: str, fault: str | None
) -> None:
    program = tmp_path / "gdb"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(gdb.shutil, "which", lambda _: str(program))
    python = SimpleNamespace(scratch=object())
    monkeypatch.setattr(gdb, "on_x86_64", lambda: False)
    obstacle = gdb.Gdb().obstacle(SimpleNamespace(pid=42, python=python))  # type: ignore[arg-type]
    if fault is None:
        assert obstacle is None
    else:
        assert obstacle is not None and obstacle.reason.startswith(fault) and "newer gdb" in (obstacle.remedy or "")


# A child of vfork waits in the kernel, for a pipe that is nobody's to open, before it has a program of its own.
VFORK = """
import ctypes, os, sys
os.mkfifo(sys.argv[1])
libc = ctypes.PyDLL(None)
attributes, actions, pid = ctypes.create_string_buffer(512), ctypes.create_string_buffer(512), ctypes.c_int()
libc.posix_spawn_file_actions_init(actions)
libc.posix_spawn_file_actions_addopen(actions, 5, sys.argv[1].encode(), os.O_RDONLY, 0)
libc.posix_spawn(ctypes.byref(pid), b"/bin/true", actions, None, (ctypes.c_char_p * 2)(b"true", None), None)
os.waitpid(pid.value, 0)
"""


def test_a_child_in_its_parents_memory_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    with subprocess.Popen([sys.executable, "-c", VFORK, str(pipe)]) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while not (child := children.read_text().split()):
            assert parent.poll() is None
            time.sleep(0.005)
        with pytest.raises(AttachRefused, match="still uses its parent's memory") as refusal:
            preflight.check_alive(int(child[0]))
        assert refusal.value.transient
        os.close(os.open(pipe, os.O_WRONLY))
    assert parent.returncode == 0


@pytest.mark.parametrize(
    "torn", ["def install(way, load=None):\n    return (", "x = (1,", "from . import b\0", "class"]
)
def test_a_hook_whose_files_are_half_written_is_refused(torn: str) -> None:
    with pytest.raises(AttachRefused, match="being changed, or are damaged") as refusal:
        pack("install", (("hook.__init__", "from .a import x"), ("hook.a", torn)))
    assert refusal.value.state == "failed" and refusal.value.remedy


def test_a_child_knows_that_it_has_executed_nothing() -> None:
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    try:
        forked = read_status(child)
        assert forked is not None and forked.forked and seconds_old(forked) < 60
        assert not own_status().forked
        with pytest.raises(AttachRefused, match="only just been forked"):
            preflight.check_alive(child)
        # It has done next to nothing since then, and waits.
        time.sleep(2 * preflight.YOUNG_SECONDS)
        assert preflight.check_alive(child).pid == child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


LINKS = {"real": "real", "relative": "real", "up": "real", "absolute": "real", "out": None, "loop": None}


@pytest.mark.parametrize("name", LINKS)
def test_no_link_leads_out_of_the_targets_root(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "relative").symlink_to("real")
    (root / "up").symlink_to("../../../real")
    (root / "absolute").symlink_to("/real")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to("loop")
    fd = os.open(root, os.O_PATH)
    try:
        if LINKS[name] is None:
            with pytest.raises(OSError):
                open_below(fd, f"/{name}", None, folder=True)
        else:
            folder = open_below(fd, f"/{name}/../{name}/.", None, folder=True)
            assert os.fstat(folder).st_ino == (root / "real").stat().st_ino
            os.close(folder)
    finally:
        os.close(fd)


def test_a_path_through_hundreds_of_folders_is_not_followed(tmp_path: Path) -> None:
    """Each folder on the way is an open file of ours, and a target may name any path as its code's."""
    (tmp_path / "/".join("d" * 200)).mkdir(parents=True)
    fd = os.open(tmp_path, os.O_PATH)
    try:
        with pytest.raises(OSError, match="name too long"):
            open_below(fd, "/".join("d" * 200), None, folder=True)
        os.close(open_below(fd, "/".join("d" * 100), None, folder=True))
    finally:
        os.close(fd)


def test_root_makes_no_file_where_the_target_could_not() -> None:
    text = "Uid:\t{0}\t{0}\t{0}\t{0}\nGid:\t{0}\t{0}\t{0}\t{0}\nGroups:\t{0} 77\n"
    stranger = parse_status(os.getpid(), text.format(12345), 1).user
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        inner = Path(name) / "inner"
        inner.mkdir()
        inner.chmod(0o777)
        Path(name).chmod(0o700)
        with pytest.raises(PermissionError):  # it may write there, but could not get there
            open_folder_as(os.getpid(), str(inner), stranger)
        Path(name).chmod(0o711)
        os.close(open_folder_as(os.getpid(), str(inner), stranger))
        inner.chmod(0o770)
        with pytest.raises(PermissionError):
            open_folder_as(os.getpid(), str(inner), stranger)
        if os.geteuid() == 0:
            os.chown(inner, 0, 77)
            os.close(open_folder_as(os.getpid(), str(inner), stranger))


def state(**registers: int) -> ThreadState:
    values = dict.fromkeys(REGISTER_NAMES, 0) | {"cs": 0x33, "rsp": 0x7FFF0000, "rip": 0x1000, **registers}
    return ThreadState(values, bytes(16384), bytes(8))


def interrupted(number: int, error: int, **registers: int) -> ThreadState:
    return state(orig_rax=number, rax=(1 << 64) - error, **registers)


@pytest.mark.parametrize(
    ("before", "rax", "rip"),
    [
        (state(orig_rax=(1 << 64) - 1, rax=7), 7, 0x1000),  # in user code
        (interrupted(0, 512), 0, 0xFFE),  # read: issued again
        (interrupted(61, 513), 61, 0xFFE),
        (interrupted(7, 516, rdx=0xFFFFFFFF), 7, 0xFFE),  # poll without a limit: the same again
        (interrupted(7, 516, rdx=0), 7, 0xFFE),  # nor does one that does not wait
        (interrupted(7, 516, rdx=100), (1 << 64) - 4, 0x1000),  # with a limit: EINTR
        (interrupted(202, 512), (1 << 64) - 4, 0x1000),  # a lock: EINTR, so that CPython looks up
        (interrupted(35, 516), (1 << 64) - 4, 0x1000),
        (interrupted(0, 11), (1 << 64) - 11, 0x1000),  # finished with EAGAIN: left alone
    ],
)
def test_a_system_call_goes_on_as_after_a_signal(before: ThreadState, rax: int, rip: int) -> None:
    after = resumption(before)
    assert (after["rax"], after["rip"]) == (rax, rip)


def test_a_call_that_a_look_made_the_kernel_restart_goes_on_as_the_call_that_it_was() -> None:
    endless = interrupted(7, 516, rdx=0xFFFFFFFF)
    after = resumption(same_call(interrupted(219, 516, rdx=0xFFFFFFFF), endless))
    assert (after["rax"], after["rip"]) == (7, 0xFFE)
    for other in (interrupted(0, 512, rdx=0xFFFFFFFF), interrupted(219, 516, rdx=100)):
        with pytest.raises(NotNow):
            same_call(other, endless)


class Memory(bytearray):
    def read(self, address: int, size: int) -> bytes:
        return bytes(self[address : address + size])

    def write(self, address: int, data: bytes) -> None:
        self[address : address + len(data)] = data


def entered(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> None:
    """A request as Python 3.14 takes it: the breaker at 0, the flag at 8, the path at 16."""
    monkeypatch.setattr(remote_debug, "_find", lambda target: remote_debug._Mailbox(0, 8, 16, 128))
    monkeypatch.setattr(remote_debug, "check_running", lambda target: None)
    target, request = SimpleNamespace(memory=memory), SimpleNamespace(path="/tmp/file")
    remote_debug.RemoteDebug().enter(target, request)  # type: ignore[arg-type]


@pytest.mark.parametrize("waiting", [b"", b"/tmp/.aitop-7-0123456789ab"])
def test_flags_that_an_interpreter_changes_meanwhile_are_neither_lost_nor_set_for_good(
    monkeypatch: pytest.MonkeyPatch, waiting: bytes
) -> None:
    memory = Memory(200)
    memory.write(0, bytes((0b10001,)))  # a thread asks for the GIL, and a collection is due
    memory.write(8, bytes((bool(waiting),)))
    memory.write(16, waiting)
    entered(monkeypatch, memory)
    assert memory[0] == 0b111110 and memory[8] == 1
    assert memory.read(16, 10) == b"/tmp/file\0"


def test_another_debuggers_script_is_left_to_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(200)
    memory.write(8, b"\1")
    memory.write(16, b"/tmp/pdb_script.py\0")
    before = bytes(memory)
    with pytest.raises(NotNow, match="another debugger"):
        entered(monkeypatch, memory)
    assert bytes(memory) == before


def test_a_frame_lies_below_the_stack_and_is_aligned_like_a_call() -> None:
    before = state(orig_rax=(1 << 64) - 1, rdi=1, eflags=0x746)
    frame = build(before, [Call(0x5000, (8, 9)), Call(0x6000)], restorer=0x7000, layout=xsave_layout())
    top = before.registers["rsp"] - 128
    assert frame.address + len(frame.content) <= top
    assert frame.registers["rsp"] == frame.address and frame.registers["rsp"] % 16 == 8
    assert (frame.registers["rip"], frame.registers["rdi"], frame.registers["rsi"]) == (0x5000, 8, 9)
    assert frame.registers["eflags"] == 0x246
    assert frame.content.count((0x7000).to_bytes(8, "little")) == 2


def test_errno_is_put_back_behind_the_calls() -> None:
    before = state(orig_rax=(1 << 64) - 1)
    saved = SavedErrno(0x9000, b"\x01\x02\x03\x04", swab=0x8000)
    frame = build(before, [Call(0x5000)], restorer=0x7000, layout=xsave_layout(), saved_errno=saved)
    at = frame.content.index(b"\x02\x01\x04\x03") + frame.address
    assert frame.registers["rip"] == 0x5000
    # In the frame that the first call returns into: rdi, rsi, (rbp, rbx,) rdx, (rax, rcx, rsp,) rip of the next call.
    words = struct.unpack(f"<{len(frame.content) // 8}Q", frame.content[: len(frame.content) // 8 * 8])
    place = words.index(0x8000) - 8
    assert words[place : place + 2] == (at, 0x9000) and words[place + 4] == 4


@pytest.mark.parametrize(("ends", "words"), [(True, "ended"), (False, "could not be reached")])
def test_a_process_that_ends_under_our_hands_is_a_refusal(monkeypatch, ends: bool, words: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as child:

        def locate(pid: int, memory: object) -> None:
            if ends:
                child.kill()
                child.wait()
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(attempt, "locate_python", locate)
        with pytest.raises(AttachRefused, match=words):
            entrance.remove(child.pid)
        child.kill()


def test_a_main_thread_is_let_finish_until_it_has_run_for_some_time_or_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, slept = iter(range(0, 50_000_000, 300_000)), []
    monkeypatch.setattr(inspected_process, "main_thread_cpu_ns", lambda pid: next(runs) + 1)
    monkeypatch.setattr(inspected_process, "main_thread_state", lambda pid: "R")
    monkeypatch.setattr(inspected_process.time, "sleep", slept.append)
    inspected_process.let_it_finish(1, cpu_ns=1_000_000, least_s=0.005, most_s=60)
    assert slept == [0.005, 0.001, 0.001, 0.001]
    slept.clear()
    monkeypatch.setattr(inspected_process, "main_thread_state", lambda pid: "S")
    inspected_process.let_it_finish(1, cpu_ns=10**9, least_s=0.005, most_s=60)
    assert slept == [0.005]
    monkeypatch.setattr(inspected_process, "main_thread_cpu_ns", lambda pid: 0)
    monkeypatch.setattr(inspected_process, "main_thread_state", lambda pid: "R")
    inspected_process.let_it_finish(1, cpu_ns=10**9, least_s=0.005, most_s=60)
    assert slept == [0.005, 0.005]


def test_the_line_is_left_to_its_readers_where_two_ways_brought_it_in() -> None:
    withdrawn: list[bool] = []
    way = SimpleNamespace(withdraw=lambda target, *, in_use: withdrawn.append(in_use))
    request = SimpleNamespace(close=lambda: None)
    tried = attempt.Attempt.__new__(attempt.Attempt)
    tried._target = None  # type: ignore[assignment]
    for entered in ([way], [way, way]):
        pending = SimpleNamespace(entered=entered, request=request, way="x")
        tried._settle(pending, "installed")  # type: ignore[arg-type]
    assert withdrawn == [False, True, True]


def test_an_answer_that_comes_while_another_way_is_refused_is_not_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(("installed", None, "installed", None))

    def wait(limit: object) -> None:
        raise AttachRefused("denied", "not this way")

    def close() -> attempt.Attachment | None:
        answer = next(answers)
        return None if answer is None else attempt.Attachment("another way", answer)

    tried = SimpleNamespace(wait=wait, close=close)
    monkeypatch.setattr(entrance, "Attempt", lambda *args, **options: tried)
    monkeypatch.setattr(hook_requests, "begin", lambda *args, **options: tried)
    on_the_way = hook_requests.HookRequests()
    for install in (lambda: entrance.install(7), lambda: on_the_way.bring_in(7)):
        install()
        with pytest.raises(AttachRefused, match="not this way"):
            install()
    assert on_the_way.hooked == {7}
