"""Requests of web servers that were under way before the hook came.

An event loop has a task for each, which tells when it ends. A thread that is busy with one is recognised by its stack,
and nothing tells when it is done. So while there are such threads, how many requests are under way is not known.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

BETWEEN_LOOKS_NS = 50_000_000


class Earlier:
    """The tasks and threads that answer requests which nobody saw begin. `changed` is called as tasks end.

    `tasks_run`, `threads_run`: the code that answers a request in a task or in a thread, as it is without the hook.
    """

    __slots__ = ("changed", "due", "looked", "tasks", "tasks_run", "threads", "threads_run", "waits")

    def __init__(self, tasks_run: set[CodeType], threads_run: set[CodeType], changed: Callable[[], None]) -> None:
        self.tasks_run, self.threads_run, self.changed = tasks_run, threads_run, changed
        # In which a thread waits for the next request of a connection.
        file = getattr(sys.modules.get("socket"), "SocketIO", None)
        self.waits = getattr(getattr(file, "readinto", None), "__code__", None)
        self.tasks: set[Any] = set()
        self.looked = False
        self.due = 0
        self.threads = set(_current_frames()) if threads_run else set[int]()
        self._leave_out_idle_threads()
        self.look_at_loop()

    def look_at_loop(self) -> None:
        """Find the tasks of the event loop that runs here, once."""
        asyncio = sys.modules.get("asyncio")
        if self.looked or asyncio is None or not self.tasks_run:
            return
        try:
            tasks = asyncio.all_tasks()
        except RuntimeError:
            # No loop runs in this thread.
            return
        self.looked = True
        for task in tasks:
            if getattr(task.get_coro(), "cr_code", None) in self.tasks_run:
                self.tasks.add(task)
                task.add_done_callback(self.ended)

    def ended(self, task: Any) -> None:
        """Take note that a task has ended."""
        self.tasks.discard(task)
        self.changed()

    def number(self, now: int) -> int | None:
        """Return how many there are; None while a thread may be busy with one."""
        if self.threads and now > self.due:
            self.due = now + BETWEEN_LOOKS_NS
            self._leave_out_idle_threads()
        return None if self.threads else len(self.tasks)

    def over(self) -> None:
        """Leave the tasks alone."""
        while self.tasks:
            self.tasks.pop().remove_done_callback(self.ended)

    def _leave_out_idle_threads(self) -> None:
        frames = _current_frames()
        self.threads = {ident for ident in self.threads if self._is_busy(frames.get(ident))}

    def _is_busy(self, frame: FrameType | None) -> bool:
        inner: CodeType | None = None
        while frame is not None:
            if frame.f_code in self.threads_run:
                return inner is None or inner is not self.waits
            inner = frame.f_code
            frame = frame.f_back
        return False


def _current_frames() -> dict[int, FrameType]:
    """Return the frame of each thread, by its identifier.

    The interpreter holds its list of threads locked meanwhile. A garbage collection that begins then, and frees a
    `threading.local`, waits for that lock for good (python/cpython#106883; seen with 3.11.2 and 3.11.7).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if enabled:
            gc.enable()
