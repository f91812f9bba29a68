"""The last way in: a debugger that is installed here queues the line. For machines whose registers we do not know.

gdb or lldb stops the whole program, has the main thread call `Py_AddPendingCall`, and lets go. It needs no
symbols for that: where the function lies is known, and what it is given is in its place before. It runs under
a guard of its own (debugger_guard.py), which bounds its time and outlives us.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from aitop.attach import debugger_guard
from aitop.attach.from_outside import cannot_be_woken
from aitop.attach.proc_status import same_process
from aitop.attach.python_image import NEEDED
from aitop.attach.refusal import AttachRefused, NotNow
from aitop.attach.request import Request
from aitop.attach.target import Target, frame_obstacle, put_line, wipe

# When the debugger is interrupted, and how long we then wait for it.
GDB_SECONDS, LLDB_SECONDS = 10.0, 30.0
GUARD_SECONDS = 6.0
NOWHERE = "/nonexistent"
QUEUED = re.compile(r"^(?:\$\d+|\(int\) \$\d+) = 0$", re.M)


def gdb_command(program: str, pid: int, call: str) -> list[str]:
    """Nothing of the user's gdb settings is read, and no symbols: those are what makes gdb stop a program for long."""
    settings = (
        *("auto-load off", "auto-solib-add off", "debuginfod enabled off", f"sysroot {NOWHERE}", "pagination off"),
        *("confirm off", "unwindonsignal on", "print thread-events off"),
    )
    before = [word for setting in settings for word in ("-iex", f"set {setting}")]
    return [program, "-batch", "-nx", "-nh", "-q", *before, "-p", str(pid), "-ex", f"print {call}", "-ex", "detach"]


def lldb_command(program: str, pid: int, call: str) -> list[str]:
    """What keeps lldb from the most of its reading; it still stops a program with many libraries for seconds."""
    commands = (
        "settings set target.preload-symbols false",
        "settings set symbols.enable-external-lookup false",
        "settings set target.memory-module-load-level minimal",
        "settings set plugin.jit-loader.gdb.enable off",
        f"process attach -p {pid}",
        # Breakpoints ignored, unwound on error, given up after two seconds.
        f"expression -i true -u true -t 2000000 -- {call}",
        "detach",
        "quit",
    )
    return [program, "--batch", "--no-lldbinit", *(word for command in commands for word in ("-o", command))]


class Debugger:
    """Has `program`, of the user's own, queue the line. With `always` it does so where a better way is open, too."""

    patience = 1.0
    costly = True
    alone = False

    def __init__(
        self, program: str, command: Callable[[str, int, str], list[str]], seconds: float, *, always: bool = False
    ) -> None:
        self.name = program
        self._command, self._seconds = command, seconds
        self._always = always

    def obstacle(self, target: Target) -> str | None:
        if frame_obstacle(target) is None and not self._always:
            return f"{self.name} is not needed"
        if not all(name in target.python.symbols for name in NEEDED):
            return "its Python does not export its functions"
        if target.python.scratch is None:
            return "it has no room for the hook's first line"
        return None if shutil.which(self.name) else f"{self.name} is not installed"

    def enter(self, target: Target, request: Request) -> float:
        program = shutil.which(self.name)
        if program is None or not sys.executable:
            raise NotNow(f"{self.name} is not installed")
        if cannot_be_woken(target.pid):
            raise NotNow("the main thread is in an uninterruptible system call")
        queue, run = (target.python.address(name) for name in ("Py_AddPendingCall", "PyRun_SimpleString"))
        call = f"((int (*)(unsigned long, unsigned long)) {queue:#x})({run:#x}, {target.scratch.address:#x})"
        put_line(target, request.line)
        target.memory.write(target.scratch.address, request.line[:1])
        if not same_process(target.status):
            raise AttachRefused("absent", f"process {target.pid} ended")
        traced_us, said = guarded(target.pid, self._seconds, self._command(program, target.pid, call))
        if not QUEUED.search(said):
            words = " ".join(said.split())[-200:]
            raise AttachRefused("failed", f"{self.name} did not get into process {target.pid}: {words}")
        return traced_us

    def withdraw(self, target: Target, *, in_use: bool) -> None:
        wipe(target, in_use=in_use)


def guarded(pid: int, seconds: float, command: list[str]) -> tuple[float, str]:
    """For how many microseconds the process was being traced, and what the debugger said."""
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
        # Neither it nor the debugger is killed: they end by themselves.
        raise AttachRefused("failed", f"{Path(command[0]).name} does not come back") from None
    traced, _, said = said.partition("\n")
    return float(traced) if traced.isdigit() else 0.0, said


GDB = Debugger("gdb", gdb_command, GDB_SECONDS)
LLDB = Debugger("lldb", lldb_command, LLDB_SECONDS)
