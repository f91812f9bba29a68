"""The last way in, for machines other than x86-64: the user's gdb queues the line as a pending call.

gdb stops the whole program for a moment, has the main thread call `Py_AddPendingCall`, and detaches. It needs no
symbols for that, because the function's address is known. It runs under a guard (gdb_guard.py), which limits its time
and outlives us.

gdb must never be killed: the process would run into the breakpoint that gdb has left on its stack, and die (30 of 30
did when gdb was killed inside the call, 1 of 35 at a random moment). So nothing here kills gdb, and it is not used on
x86-64, where the other ways have no such moment. lldb has the same flaw and also stops a torch process for seconds, so
it is not used at all.

A gdb that is installed may still not work: one that is older than the machine may fail to write its vector registers
("Couldn't write extended state status: Bad address") in the middle of the call. So it is first tried on a process of
our own (`fault_of_gdb`).
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

from aitop.attach.inspection.process import cannot_be_woken, on_x86_64, same_process
from aitop.attach.inspection.python_image import PythonImage
from aitop.attach.payload.request import Request
from aitop.attach.refusal import AttachRefused, NotNow, ended
from aitop.attach.ways import NO_ROOM, Obstacle, TargetProcess, WayIn, gdb_guard, put_line

# Seconds after which gdb is interrupted, and how much longer we wait for its guard.
GDB_SECONDS = 10.0
GUARD_SECONDS = 6.0
NOWHERE = "/nonexistent"
MISSING = Obstacle("gdb is not installed", "install gdb, or start it with: aitop run -- CMD")
QUEUED, ENDING = re.compile(r"^\$\d+ = 0$", re.M), re.compile(r"^\$\d+ = 7$", re.M)
# What gdb is tried on: a Python that prints the address of `Py_IsInitialized`, waits, and exits with 0 unless harmed.
TRIAL = (
    "import ctypes, sys; print(ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value, flush=True); "
    "sys.stdin.read()"
)
CALLED = re.compile(r"^\$\d+ = 1$", re.M)
TRIAL_SECONDS = 5.0
REPLACE_GDB = "install a newer gdb, or start it with: aitop run -- CMD"


def gdb_command(program: str, pid: int, call: str) -> list[str]:
    """Return the command of a gdb that reads none of the user's settings.

    It reads no symbols either, because that would stop the program for long.
    """
    settings = (
        *("auto-load off", "auto-solib-add off", "debuginfod enabled off", f"sysroot {NOWHERE}", "pagination off"),
        *("confirm off", "unwindonsignal on", "print thread-events off"),
    )
    before = [word for setting in settings for word in ("-iex", f"set {setting}")]
    return [program, "-batch", "-nx", "-nh", "-q", *before, "-p", str(pid), "-ex", f"print {call}", "-ex", "detach"]


def queue_if_initialized(python: PythonImage, line: int) -> str:
    """Return the expression for gdb. It gives 0 if the text at `line` was queued, 7 if the interpreter does not run."""
    queue, run = python.address("Py_AddPendingCall"), python.address("PyRun_SimpleString")
    initialized = python.address("Py_IsInitialized")
    queued = f"((int (*)(unsigned long, unsigned long)) {queue:#x})({run:#x}, {line:#x})"
    return f"((int (*)(void)) {initialized:#x})() ? {queued} : 7"


class Gdb(WayIn):
    """Has the user's gdb queue the line."""

    name = "gdb"
    patience = 1.0
    costly = True

    def obstacle(self, target: TargetProcess) -> Obstacle | None:
        if on_x86_64():
            return Obstacle("gdb is for other machines than x86-64")
        if target.python.scratch is None:
            return NO_ROOM
        program = shutil.which("gdb")
        return MISSING if program is None else fault_of_gdb(program)

    def enter(self, target: TargetProcess, request: Request) -> None:
        program = shutil.which("gdb")
        if program is None or not sys.executable:
            raise NotNow(MISSING.reason)
        if cannot_be_woken(target.pid):
            raise NotNow("the main thread is in an uninterruptible system call")
        call = queue_if_initialized(target.python, target.scratch.address)
        put_line(target, request.line)
        target.memory.write(target.scratch.address, request.line[:1])
        if not same_process(target.status):
            raise ended(target.pid)
        output = run_guarded(target.pid, GDB_SECONDS, gdb_command(program, target.pid, call))
        if ENDING.search(output):
            raise NotNow("its Python has not begun, or is ending")
        if not QUEUED.search(output):
            raise AttachRefused("failed", f"gdb did not get into process {target.pid}: {_end_of(output)}")


def run_guarded(pid: int, seconds: float, command: list[str]) -> str:
    """Run gdb under its guard, which interrupts it after `seconds`. Returns gdb's output."""
    guard = [sys.executable, "-I", "-S", str(Path(gdb_guard.__file__)), str(pid), str(seconds), *command]
    process = subprocess.Popen(
        guard,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        # A Ctrl-C in our terminal must not reach it.
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds + GUARD_SECONDS)
    except subprocess.TimeoutExpired:
        # Neither the guard nor gdb is killed: they end by themselves.
        raise AttachRefused("failed", "gdb does not come back") from None
    return output


@functools.cache
def fault_of_gdb(program: str) -> Obstacle | None:
    """Try this gdb on a Python of our own. Returns None if it works: its call returns and that Python is unharmed.

    Takes about a third of a second; the result is cached.
    """
    pipe = subprocess.PIPE
    try:
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", TRIAL], stdin=pipe, stdout=pipe) as child:
            try:
                assert child.stdin is not None and child.stdout is not None
                call = f"((int (*)(void)) {int(child.stdout.readline()):#x})()"
                output = run_guarded(child.pid, TRIAL_SECONDS, gdb_command(program, child.pid, call))
                child.stdin.close()
                harmed = _exit_status(child) != 0
            finally:
                child.kill()
    except (OSError, ValueError, AttachRefused) as error:
        return Obstacle(f"gdb cannot be tried: {error}", REPLACE_GDB)
    if harmed:
        return Obstacle(f"gdb harms processes here: {_end_of(output)}", REPLACE_GDB)
    return None if CALLED.search(output) else Obstacle(f"gdb does not work here: {_end_of(output)}", REPLACE_GDB)


def _exit_status(child: subprocess.Popen[bytes]) -> int | None:
    """Return the child's exit status, None if it does not end in time."""
    try:
        return child.wait(TRIAL_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _end_of(output: str) -> str:
    """Return the end of gdb's output, which has its error message, on one line."""
    return " ".join(output.split())[-200:] or "it says nothing"
