"""A program of its own that runs gdb on a process, and sees to it that the process runs on.

    python -I -S gdb_guard.py PID SECONDS COMMAND ...

It outlives the monitor that started it, so that nothing is left half-way when the monitor is killed. After SECONDS it
interrupts gdb, which then takes back the call that it has the process make, and lets go. It never kills gdb: that would
cost the process its life in the middle of a call. Where somebody else kills gdb, a process that is left stopped is
continued. Prints for how many microseconds the process was traced, then gdb's output.
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
    """The fields of `/proc/PID/status`; empty where the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {}


def is_traced(pid: int) -> bool:
    """Whether anybody traces the process."""
    return status(pid).get("TracerPid", "0") != "0"


def run(pid: int, seconds: float, command: list[str]) -> tuple[int, float, str]:
    """Runs gdb to its end. Returns its exit status, for how many seconds it traced, and its output."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        traced = watch(pid, process, seconds)
        output.seek(0)
        return process.returncode, traced, output.read().decode("utf-8", "replace")


def watch(pid: int, process: subprocess.Popen[bytes], seconds: float) -> float:
    """Waits for gdb, and interrupts it once its time is over. Returns for how many seconds it traced."""
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


def continue_stopped(pid: int, started: str) -> None:
    """Continues the process where a gdb that was killed has left it stopped."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until and start_time(pid) == started:
        now = status(pid)
        if now.get("State", "").startswith("T") and now.get("TracerPid") == "0":
            os.kill(pid, signal.SIGCONT)
        time.sleep(SETTLE_S / 10)


def start_time(pid: int) -> str:
    """Start time in clock ticks after boot, which identifies the process; empty where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def main() -> None:
    """Runs the program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which gdb would inherit.
        signal.signal(number, lambda *_: None)
    pid, seconds, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    started = start_time(pid)
    code, traced, output = run(pid, seconds, command)
    if code:
        continue_stopped(pid, started)
    sys.stdout.write(f"{traced * 1e6:.0f}\n{output}")


if __name__ == "__main__":
    main()
