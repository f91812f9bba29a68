"""One injector at a time: a lock between all monitors on this machine that leaves nothing behind."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from types import TracebackType

from aitop.attach.refusal import AttachRefused

POLL_S = 0.01


class Turn:
    """Context manager: waits until nobody else is attaching to `pid`, at most until `deadline` (monotonic seconds).

    The lock lies on the target's memory as `/proc` shows it: only who may attach can open that and so take it, and
    the kernel frees it when its owner dies. Raises OSError where the memory cannot be opened.
    """

    def __init__(self, pid: int, deadline: float) -> None:
        self._pid, self._deadline = pid, deadline
        self._fd = -1

    def __enter__(self) -> None:
        self._fd = os.open(f"/proc/{self._pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            while not self._is_taken():
                if time.monotonic() > self._deadline:
                    reason = f"another aitop is attaching to process {self._pid}"
                    raise AttachRefused("failed", reason, "try again", passing=True)
                time.sleep(POLL_S)
        except BaseException:
            os.close(self._fd)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def _is_taken(self) -> bool:
        """Tries to take the lock; whether it is ours."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EINTR):
                return False
            raise
        return True
