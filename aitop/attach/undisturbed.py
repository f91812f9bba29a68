"""What keeps our own process from getting between the stop of a thread and its end."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

# Longer than any stop, and than anything that may hold one up: nobody asks for the GIL meanwhile.
SWITCH_INTERVAL_S = 1.0

Result = TypeVar("Result")
_alone = threading.Lock()


def in_own_thread(work: Callable[[], Result]) -> Result:
    """Runs `work` in a thread that ends with it, so that the kernel ends every tracing `work` began.

    The thread is preferred to everything else on this machine where we may ask for that.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def body() -> None:
        # A target that stands still should not wait until we get a processor.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        try:
            with _undisturbed():
                results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="aitop-tracer", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection, and no other thread of ours that asks for the GIL in the middle of a stop."""
    with _alone:
        interval, collects = sys.getswitchinterval(), gc.isenabled()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.disable()
        try:
            yield
        finally:
            sys.setswitchinterval(interval)
            if collects:
                gc.enable()
