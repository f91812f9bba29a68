"""The last way in: gdb, where it is installed, queues the line. For machines whose registers we do not know.

gdb stops the whole program for a moment, has the main thread call `Py_AddPendingCall`, and lets go. It needs no
symbols for that: where the function lies is known, and what it is given is in its place before. It runs under
a guard of its own (debugger_guard.py), which bounds its time and outlives us.

gdb is the one part of this that must not be killed: the process would run into the breakpoint that gdb has left
on its stack, and die: 30 of 30 did where gdb was killed inside the call, 1 of 35 at a random moment of its stay. So it
is never used on x86-64, where the ways before it have no such moment, and nothing here ever kills it. lldb dies the
same death, and stops a torch process for seconds: it is no way in at all.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from aitop.attach import debugger_guard
from aitop.attach.from_outside import cannot_be_woken, on_x86_64
from aitop.attach.proc_status import same_process
from aitop.attach.python_image import NEEDED, PythonImage
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.request import Request
from aitop.attach.target import Target, put_line, wipe

# When gdb is interrupted, and how long we then wait for it.
GDB_SECONDS = 10.0
GUARD_SECONDS = 6.0
NOWHERE = "/nonexistent"
MISSING = "gdb is not installed"
QUEUED, ENDING = re.compile(r"^\$\d+ = 0$", re.M), re.compile(r"^\$\d+ = 7$", re.M)


def gdb_command(program: str, pid: int, call: str) -> list[str]:
    """Nothing of the user's gdb settings is read, and no symbols: those are what makes gdb stop a program for long."""
    settings = (
        *("auto-load off", "auto-solib-add off", "debuginfod enabled off", f"sysroot {NOWHERE}", "pagination off"),
        *("confirm off", "unwindonsignal on", "print thread-events off"),
    )
    before = [word for setting in settings for word in ("-iex", f"set {setting}")]
    return [program, "-batch", "-nx", "-nh", "-q", *before, "-p", str(pid), "-ex", f"print {call}", "-ex", "detach"]


def queue_if_initialized(python: PythonImage, line: int) -> str:
    """What gdb is to evaluate, 0 where the text at `line` was queued, 7 where the interpreter would not take it."""
    queue, run = python.address("Py_AddPendingCall"), python.address("PyRun_SimpleString")
    initialized = python.address("Py_IsInitialized")
    queued = f"((int (*)(unsigned long, unsigned long)) {queue:#x})({run:#x}, {line:#x})"
    return f"((int (*)(void)) {initialized:#x})() ? {queued} : 7"


class Gdb:
    """Has the user's own gdb queue the line. With `always` it does so where a better way is open, too."""

    name = "gdb"
    patience = 1.0
    costly = True
    alone = False

    def __init__(self, *, always: bool = False) -> None:
        self._always = always

    def obstacle(self, target: Target) -> str | None:
        if on_x86_64() and not self._always:
            return "gdb is for other machines than x86-64"
        if not all(name in target.python.symbols for name in NEEDED):
            return "its Python does not export its functions"
        if target.python.scratch is None:
            return "it has no room for the hook's first line"
        return None if shutil.which("gdb") else MISSING

    def enter(self, target: Target, request: Request) -> float:
        program = shutil.which("gdb")
        if program is None or not sys.executable:
            raise NotNow(MISSING)
        if cannot_be_woken(target.pid):
            raise NotNow("the main thread is in an uninterruptible system call")
        call = queue_if_initialized(target.python, target.scratch.address)
        put_line(target, request.line)
        target.memory.write(target.scratch.address, request.line[:1])
        if not same_process(target.status):
            raise AttachRefused("absent", f"process {target.pid} ended")
        traced_us, said = guarded(target.pid, GDB_SECONDS, gdb_command(program, target.pid, call))
        if ENDING.search(said):
            raise NotNow("its Python has not begun, or is ending")
        if not QUEUED.search(said):
            words = " ".join(said.split())[-200:]
            raise AttachRefused("failed", f"gdb did not get into process {target.pid}: {words}")
        return traced_us

    def withdraw(self, target: Target, *, in_use: bool) -> None:
        wipe(target, in_use=in_use)


def guarded(pid: int, seconds: float, command: list[str]) -> tuple[float, str]:
    """For how many microseconds the process was being traced, and what gdb said."""
    guard = [sys.executable, "-I", "-S", str(Path(debugger_guard.__file__)), str(pid), str(seconds), *command]
    process = subprocess.Popen(
        guard,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
        # A Ctrl-C that ends us must not reach it.
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds + GUARD_SECONDS)
    except subprocess.TimeoutExpired:
        # Neither it nor gdb is killed: they end by themselves.
        raise AttachRefused("failed", "gdb does not come back") from None
    traced, _, said = said.partition("\n")
    return float(traced) if traced.isdigit() else 0.0, said
