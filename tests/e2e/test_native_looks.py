"""Whatever stops a process is followed by a proof that it runs on, or by a sentence that says that it does not.

What stops here are stand-ins for py-spy and gdb that attach as gdb does (PTRACE_ATTACH), and are killed while the
process is in an uninterruptible sleep: it takes the signal that stops it only afterwards. py-spy itself is killed, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import line_of, until

from aitop.attach.ways import gdb_guard
from aitop.sources import procfs
from aitop.sources.source import SourceError
from aitop.sources.stacks import dump
from aitop.sources.stacks.dump import RunsOn

pytestmark = pytest.mark.e2e

# A parent waits in the kernel, as for a disk, until what it has started with vfork runs: here until the pipe is opened.
ASLEEP = """
import os, sys, time
print(flush=True)
waits = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.posix_spawn("/bin/true", ["true"], {}, file_actions=waits)
while True:
    print(flush=True)
    time.sleep(0.02)
"""
# It attaches to the process whose number is among its arguments, and waits for it to stop.
TRACER = f"""#!{sys.executable} -S
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
pid = next(int(word) for word in sys.argv if word.isdigit())
if libc.ptrace(16, pid, None, None) == 0:
    {{then}}
    libc.waitpid(pid, None, 0x40000000)
"""


# A process that runs prints at once.
WAKE_SECONDS = 20.0


def state(pid):
    return procfs.stat(pid).state


@pytest.fixture
def asleep(tmp_path):
    """A process in an uninterruptible sleep, and a function that wakes it and says whether it then runs."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = subprocess.Popen([sys.executable, "-c", ASLEEP, pipe], stdout=subprocess.PIPE)

    def runs_when_woken():
        os.close(os.open(pipe, os.O_WRONLY))
        return all(line_of(process, WAKE_SECONDS) for _ in range(5))

    try:
        assert line_of(process)
        until(lambda: state(process.pid) == "D")
        yield process, runs_when_woken
    finally:
        # What it has started waits for the pipe even when it is killed.
        os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        process.kill()
        process.wait()


@pytest.fixture
def tracer(tmp_path):
    """`tracer(then)` is a program that attaches to a process, does `then` and waits."""

    def make(then="pass"):
        program = tmp_path / "tracer"
        program.write_text(TRACER.format(then=then))
        program.chmod(0o755)
        return str(program)

    return make


def test_a_stopper_that_is_killed_leaves_nobody_stopped(asleep, tracer, monkeypatch):
    process, runs_when_woken = asleep
    program = tracer()
    monkeypatch.setattr(dump, "find_py_spy", lambda: program)
    monkeypatch.setattr(dump, "NATIVE_PATIENCE_SECONDS", 1.0)
    with pytest.raises(SourceError, match="no answer in 1 s"):
        dump.native_frames([process.pid])
    assert runs_when_woken(), procfs.status(process.pid)


def test_py_spy_itself_is_killed_and_leaves_nobody_stopped(asleep, monkeypatch):
    process, runs_when_woken = asleep
    monkeypatch.setattr(dump, "NATIVE_PATIENCE_SECONDS", 0.5)
    with pytest.raises(SourceError, match="no answer in "):
        dump.native_frames([process.pid])
    assert runs_when_woken(), procfs.status(process.pid)


def test_a_gdb_that_is_killed_leaves_nobody_stopped(asleep, tracer):
    process, runs_when_woken = asleep
    guard = [sys.executable, "-I", "-S", str(Path(gdb_guard.__file__)), str(process.pid), "5"]
    command = [tracer("os.kill(os.getpid(), signal.SIGKILL)"), str(process.pid)]
    subprocess.run([*guard, *command], check=True, timeout=20)
    assert runs_when_woken(), procfs.status(process.pid)


def test_what_does_not_run_on_is_said_and_no_other_is_looked_at(asleep, tracer, monkeypatch):
    """As where py-spy cannot be ended: the process is still being traced."""
    process, _ = asleep
    looked_at = []

    def left_running(program, pid):
        looked_at.append(pid)
        tracing.append(subprocess.Popen([tracer(), str(pid)]))
        until(lambda: procfs.status(pid)["TracerPid"] != "0")
        return SimpleNamespace(code=None)

    tracing = []
    monkeypatch.setattr(dump, "PySpy", lambda program, arguments, native: left_running(program, process.pid))
    monkeypatch.setattr(dump, "_ended", lambda spy, patience: spy)
    monkeypatch.setattr(dump, "RUNS_ON_SECONDS", 0.3)
    try:
        with pytest.raises(dump.LeftStoppedError, match=f"process {process.pid} .*does not run on: it is being traced"):
            dump.native_frames([process.pid, os.getppid()])
        assert looked_at == [process.pid]
    finally:
        for holder in tracing:
            holder.kill()
            holder.wait()


def test_a_process_that_its_user_had_stopped_stays_stopped(start):
    process = start([sys.executable, "-S", "-c", "while True: pass"], wait=False)
    os.kill(process.pid, signal.SIGSTOP)
    until(lambda: state(process.pid) == "T")
    runs_on = RunsOn(process.pid)
    assert runs_on.hindrance(killed=True) is None and state(process.pid) == "T"
    process.kill()
    process.wait()
    assert runs_on.hindrance(killed=True) is None, "it is gone"
