"""A small program of its own that runs a debugger on a process, and sees to it that the process runs on.

    python -I -S debugger_guard.py PID SECONDS COMMAND ...

It outlives the monitor that started it, so that nothing is left half-way when that one is killed. After SECONDS
the debugger is interrupted: it then takes back a call that it has the process make, and lets go. It is never
killed, which would cost the process its life in the middle of such a call, and does so where somebody else kills it
then; at every other moment a process that is left stopped is told to go on. Prints for how many microseconds the
process was being traced, then what the debugger said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time

POLL_S = 0.001
INTERRUPT_AGAIN_S = 5.0
SETTLE_S = 0.2


def status(pid: int) -> dict[str, str]:
    """The fields of `/proc/PID/status`, none where the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {}


def is_traced(pid: int) -> bool:
    """Whether anybody traces the process."""
    return status(pid).get("TracerPid", "0") != "0"


def run(pid: int, seconds: float, command: list[str]) -> tuple[int, float, str]:
    """Runs the debugger to its end. Returns its exit status, for how many seconds it traced, and its output."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        traced = watch(pid, process, seconds)
        output.seek(0)
        return process.returncode, traced, output.read().decode("utf-8", "replace")


def watch(pid: int, process: subprocess.Popen[bytes], seconds: float) -> float:
    """Waits for the debugger, interrupting it from the end of its time on. Returns for how long it traced."""
    last = time.monotonic()
    interrupt_at = last + seconds
    traced = 0.0
    while process.poll() is None:
        time.sleep(POLL_S)
        now = time.monotonic()
        if is_traced(pid):
            traced += now - last
        last = now
        if now > interrupt_at:
            process.send_signal(signal.SIGINT)
            interrupt_at = now + INTERRUPT_AGAIN_S
    return traced


def let_go_on(pid: int, started: str) -> None:
    """Wakes the process where a debugger that was killed has left it stopped."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until and start_time(pid) == started:
        now = status(pid)
        if now.get("State", "").startswith("T") and now.get("TracerPid") == "0":
            os.kill(pid, signal.SIGCONT)
        time.sleep(SETTLE_S / 10)


def start_time(pid: int) -> str:
    """What tells this process from a later one of the same pid; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def main() -> None:
    """The program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which the debugger would inherit.
        signal.signal(number, lambda *_: None)
    pid, seconds, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    started = start_time(pid)
    code, traced, said = run(pid, seconds, command)
    if code:
        let_go_on(pid, started)
    sys.stdout.write(f"{traced * 1e6:.0f}\n{said}")


if __name__ == "__main__":
    main()
