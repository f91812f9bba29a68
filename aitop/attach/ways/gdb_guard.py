"""A separate program that runs gdb on a process, and makes sure that the process goes on running afterwards.

    python -I -S gdb_guard.py PID SECONDS COMMAND ...

It outlives the monitor that started it, so that nothing is left half done if the monitor is killed. After SECONDS it
interrupts gdb, which then undoes the call that it is having the process make, and detaches. It never kills gdb: in the
middle of a call that would kill the process as well. If somebody else kills gdb and leaves the process stopped, the
process is continued. Prints gdb's output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time

INTERRUPT_AGAIN_S = 5.0
SETTLE_S = 0.2


def status(pid: int, tid: int) -> dict[str, str]:
    """Return the fields of a thread's `/proc` status file; empty if the thread is gone."""
    try:
        with open(f"/proc/{pid}/task/{tid}/status", encoding="utf-8", errors="replace") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except OSError:
        return {}


def stop_is_left(pid: int) -> bool:
    """Return whether the process is stopped without a tracer, or has a SIGSTOP pending that will stop it."""
    try:
        threads = [status(pid, int(tid)) for tid in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return False
    stopped = any(thread.get("State", "").startswith("T") and thread.get("TracerPid") == "0" for thread in threads)
    signals = (thread.get(name, "0") for thread in threads for name in ("SigPnd", "ShdPnd"))
    return stopped or any(int(text, 16) & 1 << signal.SIGSTOP - 1 for text in signals)


def run(seconds: float, command: list[str]) -> tuple[int, str]:
    """Run gdb to its end, and interrupt it when its time is over. Returns its exit status and its output."""
    # A file, not a pipe to the monitor, because the monitor may be killed.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        while process.returncode is None:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                seconds = INTERRUPT_AGAIN_S
        output.seek(0)
        return process.returncode, output.read().decode("utf-8", "replace")


def continue_stopped(pid: int, started: str) -> None:
    """Continue the process if a gdb that was killed has left it stopped. `started` identifies the process."""
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until and start_time(pid) == started:
        if stop_is_left(pid):
            os.kill(pid, signal.SIGCONT)
        time.sleep(SETTLE_S / 10)


def start_time(pid: int) -> str:
    """Return the start time in clock ticks after boot, which identifies the process; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def main() -> None:
    """Run the program."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Not SIG_IGN, which gdb would inherit.
        signal.signal(number, lambda *_: None)
    pid, seconds, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    started = start_time(pid)
    code, output = run(seconds, command)
    if code:
        continue_stopped(pid, started)
    sys.stdout.write(output)


if __name__ == "__main__":
    main()
