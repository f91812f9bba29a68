"""A process beside an attach: it outlives a monitor that is killed in the middle, and cleans up after it.

Parts of the hook that have arrived would otherwise stay in the target until its next garbage collection, which a loop
that makes few objects may not have for minutes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import aitop
from aitop.attach.inspection.process import ProcStatus

SCRIPT = Path(__file__).with_name("watchdog_child.py")


class Watchdog:
    """One child process for all attaches under way; it is there only while there are any. Any thread may call.

    It reads which targets are in the middle of an attach, one line each; the end of its input means that we are gone.
    Where it cannot be started, or is killed too, the target drops the parts at a garbage collection.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._under_way = 0

    @contextlib.contextmanager
    def over(self, target: ProcStatus) -> Iterator[None]:
        """While this is open, parts that arrived in the target are taken out of it if we are killed."""
        name = f"{target.pid} {target.started}\n"
        with self._lock:
            self._under_way += 1
            if self._child is None:
                self._child = _start()
            self._write("+" + name)
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1
                self._write("-" + name)
                if not self._under_way:
                    self._end()

    def _write(self, line: str) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.write(line.encode())

    def _end(self) -> None:
        """Kills the child, which has nothing under way."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()


def _start() -> subprocess.Popen[bytes] | None:
    """Starts the child in a session of its own, so that what ends our terminal or process group does not end it."""
    if not sys.executable:
        return None
    package_folder = Path(aitop.__file__).parents[1]
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT), str(package_folder)],
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
