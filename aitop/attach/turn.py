"""One injector at a time: a lock between all monitors on this machine that leaves nothing behind."""

from __future__ import annotations

import socket
import time
from types import TracebackType

from aitop.attach.refusal import AttachRefused

POLL_S = 0.01


class Turn:
    """Context manager: waits until nobody else is attaching to `pid`, at most until `deadline` (monotonic seconds).

    The lock is a name in the abstract socket namespace: the kernel frees it when its owner dies.
    """

    def __init__(self, pid: int, deadline: float) -> None:
        self._pid, self._deadline = pid, deadline
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> None:
        while True:
            try:
                self._socket.bind(f"\0aitop-attach-{self._pid}")
            except OSError as error:
                if time.monotonic() > self._deadline:
                    self._socket.close()
                    reason = f"another aitop is attaching to process {self._pid}"
                    raise AttachRefused("failed", reason, "try again", passing=True) from error
                time.sleep(POLL_S)
            else:
                return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
