"""A process beside an attach in parts: it outlives a monitor that is killed half-way, and clears up after it.

Between two parts the target has nothing that would make it forget those that came: it does so at a garbage collection,
which a loop that makes few objects may not have for minutes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import aitop
from aitop.attach.proc_status import ProcStatus

SCRIPT = Path(__file__).with_name("watchdog_child.py")


class Watchdog:
    """One process for all attaches under way, there only while there are any. Any thread may call.

    It reads which targets are in the middle of an attach, one line each; the end of its input is our death. An attach
    goes on where it cannot be started or is killed: what came is then forgotten at a garbage collection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._under_way = 0

    @contextlib.contextmanager
    def over(self, target: ProcStatus) -> Iterator[None]:
        """While this is open, parts that came into the target are taken out of it where we are killed."""
        name = f"{target.pid} {target.started}\n"
        with self._lock:
            self._under_way += 1
            if self._child is None:
                self._child = _start()
            self._tell("+" + name)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._tell("-" + name)
                if not self._under_way:
                    self._end()

    def _tell(self, line: str) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.write(line.encode())

    def _end(self) -> None:
        """It has begun nothing: it may be killed."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


def _start() -> subprocess.Popen[bytes] | None:
    """In a session of its own, so that what ends the monitor's terminal or process group does not end it too."""
    if not sys.executable:
        return None
    place = Path(aitop.__file__).parents[1]
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), str(place)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return None


WATCHDOG = Watchdog()
