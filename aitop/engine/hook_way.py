"""Joins the way in (attach) to the channel (hook ring), which do not know each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from aitop.attach import AttachRefused, install, remove
from aitop.sources.hook_ring import find_ring, should_stay
from aitop.sources.source import SourceError

SELF_REMOVAL_SECONDS = 0.6


def way_in(pid: int, given_up: Callable[[], bool]) -> None:
    """Put the hook into `pid`, unless somebody has `given_up` before the process could take it.

    Raises SourceError with the reason and the remedy where that is refused.
    """
    try:
        install(pid, given_up=given_up)
    except AttachRefused as refused:
        raise SourceError(refused.state, refused.reason, refused.remedy) from refused


def take_out(pids: Iterable[int]) -> None:
    """Make sure that no hook of ours stays: wait for it to leave by itself, else ask the process to drop it.

    A hook that came with the program, or that another monitor uses, is left alone.
    """
    deadline = time.monotonic() + SELF_REMOVAL_SECONDS
    left = [pid for pid in pids if find_ring(pid) and not should_stay(pid)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [pid for pid in left if find_ring(pid)]
    for pid in left:
        try:
            remove(pid)
        except AttachRefused:
            # The lease has ended, so the hook leaves by itself as soon as the process runs Python again.
            continue
