"""Which processes are refused before anything is done to them, and why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from aitop.attach.inspection import preflight
from aitop.attach.inspection.process import seconds_old
from aitop.attach.refusal import AttachRefused
from aitop.sources.process_status import own_status, parse_status, read_status

STATUS = "Name:\tpython\nState:\tS (sleeping)\nTgid:\t42\nPPid:\t7\nUid:\t1000\t1000\t1000\t1000\n"


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
