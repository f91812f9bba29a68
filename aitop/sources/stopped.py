"""Proof that a process runs on after something has stopped it, such as py-spy for native frames.

What traces a process may send each of its threads a SIGSTOP (PTRACE_ATTACH). Where it is killed before a thread has
taken that signal, the signal is left: a thread in an uninterruptible sleep takes it when the sleep ends, and then the
whole process stops, for good. SIGCONT continues a stopped process and takes back such signals.
"""

from __future__ import annotations

import os
import signal
import time

from aitop.sources import procfs

# How long a process may take to run on, and how long one is watched whose tracer was killed: a thread that has just
# been let go may still have to take its signal.
PATIENCE_SECONDS, WATCHED_SECONDS, POLL_SECONDS = 2.0, 0.2, 0.01
PENDING = 1 << signal.SIGSTOP - 1
TRACED = "it is being traced"
STOPPED = "it is stopped"
STOPS_SOON = "a signal that stops it is under way"


class RunsOn:
    """Made before a process is stopped; `hindrance` says afterwards what keeps it from running."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = self._start()
        self._before = self._state()

    def hindrance(self, *, killed: bool) -> str | None:
        """What still keeps the process from running, in words; None where nothing does, or did so before as well.

        `killed`: what had stopped it was killed itself, so a stop is what it has left, and is taken back.
        """
        now = time.monotonic()
        watched, deadline = now + (WATCHED_SECONDS if killed else 0.0), now + PATIENCE_SECONDS
        while True:
            state, now = self._state(), time.monotonic()
            if state in (None, self._before):
                if now >= watched:
                    return None
            elif now >= deadline:
                return f"process {self._pid} was stopped for a look, and does not run on: {state}"
            elif killed and state != TRACED:
                try:
                    os.kill(self._pid, signal.SIGCONT)
                except OSError as error:
                    return f"process {self._pid} was left stopped, and cannot be continued: {error.strerror}"
            time.sleep(POLL_SECONDS)

    def _start(self) -> int | None:
        stat = procfs.stat(self._pid)
        return None if stat is None or stat.ended else stat.start

    def _state(self) -> str | None:
        """What keeps any of its threads from running; None where nothing does or the process is gone."""
        if self._started is None or self._start() != self._started:
            return None
        folder = f"{procfs.PROC}/{self._pid}/task"
        threads = [procfs.parse_fields(procfs.text(f"{folder}/{tid}/status") or "") for tid in procfs.numbered(folder)]
        if any(thread.get("TracerPid", "0") != "0" for thread in threads):
            return TRACED
        if any(thread.get("State", "").startswith("T") for thread in threads):
            return STOPPED
        signals = (thread.get(name, "0") for thread in threads for name in ("SigPnd", "ShdPnd"))
        return STOPS_SOON if any(int(text, 16) & PENDING for text in signals) else None
