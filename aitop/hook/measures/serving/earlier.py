"""Counts the requests that a web server was already answering when the hook came in.

In an event loop each such request has a task, which reports when it ends. A thread that is answering one is recognised
by its stack, but nothing reports when it is done. So while there are such threads, the number of requests in flight is
not known.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

BETWEEN_LOOKS_NS = 50_000_000


class Earlier:
    """The tasks and threads that answer requests which began before the hook came in.

    `changed` is called when such a task ends. `tasks_run` and `threads_run` are the original (unwrapped) functions'
    code objects that answer a request in a task or in a thread. `threads` are identifiers of threads that may be busy.
    """

    def __init__(self, tasks_run: set[CodeType], threads_run: set[CodeType], changed: Callable[[], None]) -> None:
        self.tasks_run, self.threads_run, self.changed = tasks_run, threads_run, changed
        # The code in which a thread waits for the next request on a connection.
        file = getattr(sys.modules.get("socket"), "SocketIO", None)
        self.waits = getattr(getattr(file, "readinto", None), "__code__", None)
        self.tasks: set[Any] = set()
        self.looked = False
        self.due = 0
        self.threads = set(_current_frames()) if threads_run else set[int]()
        self._leave_out_idle_threads()
        self.look_at_loop()

    def look_at_loop(self) -> None:
        """Find the tasks of the event loop that runs in this thread, once: later calls have no effect."""
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
            answers = task.get_coro()
            if getattr(answers, "cr_code", None) in self.tasks_run and not _head_is_sent(answers):
                self.tasks.add(task)
                task.add_done_callback(self.ended)

    def ended(self, task: Any) -> None:
        """Forget a task that has ended."""
        self.tasks.discard(task)
        self.changed()

    def number(self, now: int) -> int | None:
        """Return how many such requests there are; None while a thread may be busy with one."""
        if self.threads and now > self.due:
            self.due = now + BETWEEN_LOOKS_NS
            self._leave_out_idle_threads()
        # A task is done some time before the loop calls `ended`; uvloop may take up the next request in between.
        return None if self.threads else sum(not task.done() for task in tuple(self.tasks))

    def over(self) -> None:
        """Remove our callbacks from the tasks."""
        while self.tasks:
            self.tasks.pop().remove_done_callback(self.ended)

    def _leave_out_idle_threads(self) -> None:
        frames = _current_frames()
        try:
            # In place, as other threads take themselves out meanwhile.
            self.threads.difference_update([one for one in tuple(self.threads) if not self._is_busy(frames.get(one))])
        finally:
            # This thread's own frame is among them: it would refer to itself, and keep what the program's functions
            # hold until a garbage collection.
            frames.clear()

    def _is_busy(self, frame: FrameType | None) -> bool:
        """Return whether a thread is in a request, and does not wait for the next one on its connection."""
        inner: CodeType | None = None
        while frame is not None:
            if frame.f_code in self.threads_run:
                return inner is None or inner is not self.waits
            inner = frame.f_code
            frame = frame.f_back
        return False


def _head_is_sent(answers: Any) -> bool:
    """Return whether uvicorn has sent the head of an answer, which this coroutine makes.

    It may go on for as long as somebody listens, as a page of events does. Whether the model computes for it is not
    known, so nobody is taken to wait for it.
    """
    frame = answers.cr_frame
    cycle = None if frame is None else frame.f_locals.get("self")
    return getattr(cycle, "response_started", None) is True


def _current_frames() -> dict[int, FrameType]:
    """Return the current frame of each thread, by the thread's identifier.

    The garbage collector is off during the call, because the interpreter holds the lock on its list of threads. A
    collection that begins then and frees a `threading.local` waits for that lock and deadlocks (python/cpython#106883;
    seen with 3.11.2 and 3.11.7).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if enabled:
            gc.enable()
