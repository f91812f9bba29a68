"""Pauses of Python's garbage collector."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .journal import COLLECT, GONE, MOST_WORDS
from .wrappers import Keeper

_now = time.monotonic_ns


def gc_callback(keeper: Keeper) -> Callable[[str, Any], None]:
    """For `gc.callbacks`: a collection stops every thread, so whose it is does not matter.

    Those of the youngest objects are many, and over in some microseconds: they are left out.
    """
    journal = keeper.journal

    def collected(phase: str, info: Any) -> None:
        if not info["generation"]:
            return
        if phase == "start":
            journal.collecting = _now()
        elif journal.owner != GONE and len(journal.words) < MOST_WORDS:
            journal.extend((COLLECT, journal.collecting, _now(), 0, 0))

    return collected
